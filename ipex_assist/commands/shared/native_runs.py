"""Whether the native core will run what is asked for. Never imports torch."""

from __future__ import annotations

import argparse

from ipex_assist.checkpoints.open import OpenCheckpoints
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.registry import EXECUTORS
from ipex_assist.generation.load_options import LoadOptions


def runs_native(options: LoadOptions) -> bool:
    """Whether the native core will run what has a spec."""
    if options.executor == "auto":
        return EXECUTORS["native"].available()
    return options.executor == "native"


def flags_run_native(args: argparse.Namespace) -> bool:
    """Whether the native core will run the model that a command's flags name; False for a command without a model."""
    if not hasattr(args, "executor") or not runs_native(LoadOptions(executor=args.executor or "auto")):
        return False
    target = args.model
    if not isinstance(target, str):  # the embedded model, or several
        return True
    try:
        return OpenCheckpoints().open(target, revision=args.revision, offline=True).why_not_ours() is None
    except IpexAssistError:  # it is not here yet, or loading says what is wrong with it
        return True
