"""Loads a checkpoint's weights on an executor, and draft heads for a loaded target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.phases import phase
from ipex_assist.executors.interface import Model
from ipex_assist.executors.layer_chain import LayerChain
from ipex_assist.executors.load_request import HeadRequest, LoadRequest
from ipex_assist.executors.registry import EXECUTORS
from ipex_assist.models.config import NotComputed
from ipex_assist.models.head_common import DraftHead, check_target
from ipex_assist.models.heads import is_trained_mtp, own_head, published_head
from ipex_assist.models.weights import NotFiniteError, check_stored, stored_form
from ipex_assist.quantization.precision import INT4_GROUP

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ipex_assist.checkpoints.base import Checkpoint
    from ipex_assist.executors.kv_memory import KvMemory
    from ipex_assist.models.spec import DecoderSpec


def load_model(request: LoadRequest) -> Model:
    """Load and pack a checkpoint.

    Raises:
        IpexAssistError: the checkpoint is incomplete, or a weight is not a finite number.
        UsageError: the model cannot have this precision.
    """
    checkpoint = request.checkpoint
    if request.precision == "mxfp4" and request.spec.experts is None:
        raise UsageError(f"{checkpoint.source} has no experts, and mxfp4 is theirs: choose another --precision")
    if request.precision == "stored" and checkpoint.stored_precision != "stored":
        raise UsageError(
            f"{checkpoint.source} has no weights in blocks, which --precision stored keeps as they are: leave it out"
        )
    if request.resident is not None:
        from ipex_assist.executors.native.resident import check_resident

        check_resident(request)
    checkpoint.check_weights()  # before memory is taken for shapes that only the config has
    try:
        with phase(f"loading {short_name(checkpoint.source)}"):
            return EXECUTORS[request.executor].load(request)
    except NotFiniteError as error:
        raise IpexAssistError(f"{checkpoint.source}: {error}") from None


def head_of(target: Checkpoint, checkpoint: Checkpoint | None = None) -> DraftHead | None:
    """The head that a checkpoint, the target's own where None, holds for a target: by headers. None: it has none.

    Raises IpexAssistError where it is another target's, or incomplete.
    """
    stored = target if checkpoint is None else checkpoint
    try:
        if checkpoint is None:
            found = own_head(target.architecture, target.config, target.names())
            if found is None:
                return None
        else:
            found = _of_another(checkpoint, target)
        check_target(found.spec, target.decoder_spec())
        shapes = stored.shapes()
        for each in (found, *found.further):
            check_stored(each.spec, stored_form(each.sources, shapes), shapes)
    except NotComputed as error:
        raise UsageError(f"{stored.source} does not draft for {target.source}: {error}") from error
    except IpexAssistError as error:
        raise IpexAssistError(f"{stored.source}: {error}") from error
    return found


def _of_another(checkpoint: Checkpoint, target: Checkpoint) -> DraftHead:
    """The head of a checkpoint of its own. A trained MTP layer has the shape of those of its target's family."""
    if not is_trained_mtp(checkpoint.config):
        return published_head(checkpoint.config, checkpoint.names(), target.decoder_spec())
    found = own_head(target.architecture, target.config, checkpoint.names())
    if found is None:
        raise NotComputed(f"it is a layer that predicts further tokens (MTP), and {target.architecture} has no such")
    return found


def head_precision(target: str, head: DecoderSpec) -> str:
    """The precision of a draft head by default: bf16, since it is small and what it drafts is right more often then.

    One with a mixture of experts has billions of weights, and is as coarse as its target.
    """
    return target if target == "fp32" or head.experts is not None else "bf16"


def load_head(
    target_checkpoint: Checkpoint,
    target: Model,
    checkpoint: Checkpoint | None,
    precision: str,
    executor: str,
    *,
    group: int = INT4_GROUP,
    kv_memory: KvMemory | None = None,
    kv_precision: str | None = None,
) -> Model:
    """Load and pack a draft head, which shares the target's embedding and lm_head where it has none of its own.

    checkpoint: the head's; None for that of the target's own checkpoint. The other arguments are those of LoadRequest.

    Raises:
        IpexAssistError: there is no such head, it is incomplete, or a weight is not a finite number.
        UsageError: it is the head of another target.
    """
    head = head_of(target_checkpoint, checkpoint)
    if head is None:
        raise UsageError(f"{target_checkpoint.source} has no layers that predict further tokens (MTP)")
    stored = target_checkpoint if checkpoint is None else checkpoint
    try:
        with phase(f"loading the draft head of {short_name(stored.source)}"):
            models = [
                _load_one(
                    HeadRequest(
                        *(stored, precision, executor),
                        exact=False,  # what it drafts is verified
                        group=group,
                        kv_memory=kv_memory,
                        kv_precision=kv_precision,
                        head=each,
                        target=target,
                        token_order=_token_order(stored, each),
                    )
                )
                for each in (head, *head.further)
            ]
    except NotFiniteError as error:
        raise IpexAssistError(f"{stored.source}: {error}") from None
    return models[0] if len(models) == 1 else LayerChain(models)


def _load_one(request: HeadRequest) -> Model:
    assert request.head is not None
    made = EXECUTORS[request.executor].load(request)
    made.target_tokens, made.token_order = _target_tokens(request.checkpoint, request.head), request.token_order
    return made


def _token_order(checkpoint: Checkpoint, head: DraftHead) -> NDArray[np.int32] | None:
    """The tokens of its clusters, one cluster after the other."""
    import numpy as np

    if head.ordering is None:
        return None
    [(_, order)] = checkpoint.tensors([head.ordering])
    found: NDArray[np.int32] = order.numpy().astype(np.int32)
    if not np.array_equal(np.sort(found), np.arange(head.spec.vocab_size)):
        raise IpexAssistError(
            f"{checkpoint.source}: {head.ordering} has {len(found):,} numbers, which must be those of the "
            f"{head.spec.vocab_size:,} tokens, each once. Download it again"
        )
    return found


def _target_tokens(checkpoint: Checkpoint, head: DraftHead) -> NDArray[np.int32] | None:
    """Which tokens of the target the rows of its lm_head are, by their stored differences."""
    import numpy as np

    if head.tokens is None:
        return None
    [(_, offsets)] = checkpoint.tensors([head.tokens])
    tokens = offsets.numpy().astype(np.int64) + np.arange(len(offsets))
    count, size = head.spec.head and head.spec.head.draft_vocab_size, head.spec.vocab_size
    if len(tokens) != count or tokens[0] < 0 or tokens[-1] >= size or (np.diff(tokens) < 1).any():
        raise IpexAssistError(
            f"{checkpoint.source}: {head.tokens} names {len(tokens):,} tokens from {tokens.min():,} to "
            f"{tokens.max():,}; it must be {count:,} in ascending order, below {size:,}. Download it again"
        )
    found: NDArray[np.int32] = tokens.astype(np.int32)
    return found
