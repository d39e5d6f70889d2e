"""Loads a checkpoint's weights on an executor."""

from __future__ import annotations

from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.phases import phase
from ipex_assist.executors.interface import Model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.registry import EXECUTORS
from ipex_assist.models.weights import NotFiniteError


def load_model(request: LoadRequest) -> Model:
    """Load and pack a checkpoint.

    Raises:
        IpexAssistError: the checkpoint is incomplete, or a weight is not a finite number.
        UsageError: the model cannot have this precision.
    """
    checkpoint = request.checkpoint
    if request.precision == "mxfp4" and request.spec.experts is None:
        raise UsageError(f"{checkpoint.source} has no experts, and mxfp4 is theirs: choose another --precision")
    checkpoint.check_weights()  # before memory is taken for shapes that only the config has
    try:
        with phase(f"loading {short_name(checkpoint.source)}"):
            return EXECUTORS[request.executor].load(request)
    except NotFiniteError as error:
        raise IpexAssistError(f"{checkpoint.source}: {error}") from None
