"""How much memory a run will fill, from headers and configs alone. Never imports torch."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from ipex_assist.checkpoints.open import OpenCheckpoints, check_source
from ipex_assist.checkpoints.packed_size import estimate_bytes
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.memory import read_memory
from ipex_assist.quantization.precision import kv_precision_of, kv_sizes
from ipex_assist.speculative.assistant_name import SELF, parse_assistant
from ipex_assist.speculative.default_assistants import default_assistant

RUNTIME_BYTES = 700 << 20  # Python, torch and IPEX with a tokenizer, as measured after start
PROMPT_TOKENS = 512  # room assumed for a prompt that has not been read yet


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes by purpose; None where a model's size is not known.

    kv: keys and values of all texts that are under way at a time, and `texts` those of each, where that is known.
    """

    target: int | None
    assistant: int | None
    kv: int
    texts: tuple[int, ...] = ()

    @property
    def total(self) -> int | None:
        """Bytes for all purposes, the runtime's own among them; None where the target's size is not known."""
        if self.target is None:
            return None
        return self.target + (self.assistant or 0) + self.kv + RUNTIME_BYTES


def estimate_need(
    model: str,
    assistant: str | None,
    precision: str | None,
    assistant_precision: str | None,
    max_new_tokens: int,
    revision: str | None = None,
    *,
    offline: bool = True,
    checkpoints: OpenCheckpoints | None = None,
    texts: Sequence[int] = (),
    kv_precision: str | None = None,
) -> MemoryNeed:
    """Estimate the bytes that `load(model, assistant)` and a generation will take, without downloading anything.

    precision None: bf16, or the 4 bits a checkpoint is stored in. offline: read only what is on this machine; else the
    hub is asked for the sizes of models that are not. checkpoints: those that are open already; what is opened here
    joins them. texts: the tokens of each text that is under way at a time; none: one, of a prompt of usual length.
    kv_precision: of keys and values; None: that of attention.
    Raises UsageError for a path to nothing, so that nobody plans with it.
    """
    sizes: tuple[int, ...] = ()
    checkpoints = OpenCheckpoints() if checkpoints is None else checkpoints
    assistant = parse_assistant(assistant).model  # lookup takes next to nothing
    assistant_revision = None
    if assistant == SELF:
        assistant, assistant_precision, assistant_revision = model, assistant_precision or "int4", revision
    for source in (model, *([assistant] if assistant else [])):
        _check(source)
    try:
        checkpoint = checkpoints.open(model, revision=revision, offline=True)
        if assistant == "auto":
            assistant = default_assistant(checkpoint.config, model)
        spec = checkpoint.decoder_spec()
        per_token = spec.kv_bytes_per_token(*kv_sizes(kv_precision_of(precision, kv_precision)))
        if assistant is not None:
            drafted = kv_precision_of(assistant_precision or precision, kv_precision)
            per_token += _kv_bytes(assistant, drafted, assistant_revision, checkpoints)
        lengths = texts or (max_new_tokens + PROMPT_TOKENS,)
        sizes = tuple(min(tokens, spec.context_length) * per_token for tokens in lengths)
    except IpexAssistError:
        # Our decoder does not run it, or else what is wrong with the checkpoint is said when it is loaded.
        assistant = None if assistant == "auto" else assistant

    def size(source: str, precision: str | None, revision: str | None) -> int | None:
        try:
            return estimate_bytes(source, precision, revision=revision, offline=offline, checkpoints=checkpoints)
        except IpexAssistError:
            return None

    return MemoryNeed(
        target=size(model, precision, revision),
        assistant=size(assistant, assistant_precision or precision, assistant_revision) if assistant else None,
        kv=sum(sizes),
        texts=sizes,
    )


def _check(source: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # said as it is opened
        check_source(source)


def _kv_bytes(source: str, kv_precision: str, revision: str | None, checkpoints: OpenCheckpoints) -> int:
    """Bytes of keys and values of a token; 0 where our decoder does not run the model, or it is not here."""
    try:
        spec = checkpoints.open(source, revision=revision, offline=True).decoder_spec()
    except IpexAssistError:
        return 0
    return spec.kv_bytes_per_token(*kv_sizes(kv_precision))


def check_memory(need: MemoryNeed) -> None:
    """IpexAssistError with the numbers where a run cannot fit; better than being killed half way."""
    available = read_memory().available
    if need.total is None or not available or need.total <= available:
        return
    parts = [f"{gib(need.target or 0)} for the target"]
    if need.assistant:
        parts.append(f"{gib(need.assistant)} for the assistant")
    parts.append(f"{gib(need.kv + RUNTIME_BYTES)} for the cache and the libraries")
    raise IpexAssistError(
        f"too little memory: {gib(need.total)} are needed ({', '.join(parts)}) and {gib(available)} are available. "
        "Use a smaller --precision or model, fewer --max-new-tokens, or --no-assisted"
    )


def gib(size: int) -> str:
    """Return a number of bytes as text in GiB."""
    return f"{size / (1 << 30):.1f} GiB"
