"""How much memory a run will fill, from headers and configs alone. Never imports torch."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ipex_assist.checkpoints.open import OpenCheckpoints, check_source
from ipex_assist.checkpoints.packed_size import estimate_bytes
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.memory import gib, read_memory, resident_bytes
from ipex_assist.executors.kv_memory import spare_beside
from ipex_assist.executors.planned_bytes import ModelBytes, total_bytes
from ipex_assist.native.rows import PASS_ROWS
from ipex_assist.quantization.precision import DRAFT_INT4_GROUP, INT4_GROUP, beside_experts
from ipex_assist.speculative.schedule import LONGEST_DRAFT
from ipex_assist.speculative.sources.assistant_name import AUTO, MTP, SELF, AssistantName, parse_assistant
from ipex_assist.speculative.sources.default_assistants import default_assistant, default_head
from ipex_assist.vision.memory import vision_bytes

RUNTIME_BYTES = 700 << 20  # Python, torch and IPEX with a tokenizer, as measured after start
PROMPT_TOKENS = 512  # room assumed for a prompt that has not been read yet


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes by purpose; None where a model's size is not known.

    kv: keys and values of all sequences that run at a time, and `kv_each` those of each, where that is known.
    workspace: what passes need beside them. pooled: keys and values lie in a pool of what the weights leave, a part of
    which stays free (see KvMemory). limited: kv is what --kv-memory says. adapters: LoRA adapters of the target.
    """

    target: int | None
    assistant: int | None
    kv: int
    kv_each: tuple[int, ...] = ()
    workspace: int = 0
    pooled: bool = False
    limited: bool = False
    adapters: int = 0

    @property
    def spare(self) -> int:
        """Bytes beside weights, keys and values, without the runtime's."""
        return spare_beside(self.kv, self.workspace) if self.pooled else self.workspace

    @property
    def total(self) -> int | None:
        """Bytes for all purposes, the runtime's own among them; None where the target's size is not known."""
        if self.target is None:
            return None
        return self.target + (self.assistant or 0) + self.adapters + self.kv + self.spare + RUNTIME_BYTES


def need_of(
    target: ModelBytes, assistant: ModelBytes | None, lengths: Sequence[int], *, copy: bool = False
) -> MemoryNeed:
    """Memory of models, and of sequences with these numbers of tokens. copy: the assistant is the target's own copy,
    and shares its table.
    """
    sizes = tuple(target.kv(tokens) + (assistant.kv(tokens) if assistant else 0) for tokens in lengths)
    own = None
    if assistant is not None and assistant.weights is not None:
        own = assistant.weights - (assistant.table if copy else 0)
    workspace = target.workspace + (assistant.workspace if assistant else 0)
    return MemoryNeed(target.weights, own, sum(sizes), sizes, workspace, pooled=target.unit > 1)


def within(need: MemoryNeed, kv_memory: int | None) -> MemoryNeed:
    """The need where keys and values have a pool of `kv_memory` bytes, which fills up in the end; None: no limit.

    Prefixes for later requests are kept there, too.
    """
    return need if kv_memory is None or not need.pooled else replace(need, kv=kv_memory, pooled=False, limited=True)


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
    lengths: Sequence[int] = (),
    kv_precision: str | None = None,
    native: bool = False,
    wanted: int | None = None,
    resident: int | None = None,
) -> MemoryNeed:
    """Estimate the bytes that `load(model, assistant)` and a generation will take, without downloading anything.

    precision None: bf16, or the 4 bits a checkpoint is stored in. offline: read only what is on this machine; else the
    hub is asked for the sizes of models that are not. checkpoints: those that are open already; what is opened here
    joins them. lengths: in tokens, of each sequence that runs at a time; none: one, of usual length.
    kv_precision: of keys and values; None: that of attention.
    native: they run on the native core, which says itself what it takes. wanted: rows of a pass of the target whose
    logits are wanted; as many as drafts may have where None. resident: bytes of the target's weights in memory, where
    its experts are read as they are needed.
    Raises UsageError for a path to nothing, so that nobody plans with it.
    """
    lengths = lengths or (max_new_tokens + PROMPT_TOKENS,)
    plan = _Plan(
        OpenCheckpoints() if checkpoints is None else checkpoints, offline, native, max(lengths), kv_precision, resident
    )
    name = parse_assistant(assistant)
    drafts = name.model  # lookup takes next to nothing
    if name.second is not None:
        return plan.need_of_two((model, precision, revision), name, assistant_precision, lengths, wanted)
    copy = drafts == SELF
    if copy:
        drafts, assistant_precision = model, assistant_precision or "int4"
    for source in (model, *([drafts] if drafts and drafts != MTP else [])):
        _check(source)
    target = plan.target_bytes(model, precision, revision, wanted=wanted or wanted_rows(len(lengths)))
    rows = min(len(lengths), PASS_ROWS)
    of = model, plan.precision(model, precision, revision), assistant_precision, revision
    if drafts in (AUTO, MTP):
        if (head := plan.head(*of, wanted=rows)) is not None:
            return need_of(target, head, lengths)
        drafts = plan.default_assistant(model, revision)
    if drafts is None:
        return need_of(target, None, lengths)
    if not copy and (head := plan.head(*of, wanted=rows, named=drafts)) is not None:
        return need_of(target, head, lengths)
    drafts_in = assistant_precision or plan.stored(drafts) or beside_experts(plan.precision(model, precision, revision))
    other = plan.model_bytes(drafts, drafts_in, revision if copy else None, wanted=rows, group=DRAFT_INT4_GROUP)
    return need_of(target, other, lengths, copy=copy and native)


def wanted_rows(texts: int) -> int:
    """Rows of a pass whose logits are wanted, where all texts draft as long as they ever do."""
    return min(PASS_ROWS, texts * (1 + LONGEST_DRAFT))


@dataclass(frozen=True)
class _Plan:
    """Where sizes come from; see `estimate_need`."""

    checkpoints: OpenCheckpoints
    offline: bool
    native: bool
    longest: int
    kv_precision: str | None
    resident: int | None = None  # bytes of the target's weights in memory

    def target_bytes(self, source: str, precision: str | None, revision: str | None, *, wanted: int) -> ModelBytes:
        """The bytes of the target, and of reading images where it takes any."""
        found = self.model_bytes(source, precision, revision, wanted=wanted, resident=self.resident)
        try:
            checkpoint = self.checkpoints.open(source, revision=revision, offline=True)
            model_type = checkpoint.config_spec().model_type
            seeing = vision_bytes(checkpoint, model_type, self.precision(source, precision, revision))
        except IpexAssistError:  # loading reports it
            return found
        return replace(found, workspace=found.workspace + seeing)

    def model_bytes(
        self,
        source: str,
        precision: str | None,
        revision: str | None,
        *,
        wanted: int,
        group: int = INT4_GROUP,
        resident: int | None = None,
    ) -> ModelBytes:
        """The bytes of one model; those of texts are 0 where our decoder does not run it, or it is not here."""
        try:
            checkpoint = self.checkpoints.open(source, revision=revision, offline=True)
            spec = checkpoint.config_spec()
            from ipex_assist.executors.model_bytes import checkpoint_bytes, library_bytes  # late: most of a start

            chosen = self.precision(source, precision, revision)
            if self.native:
                return checkpoint_bytes(
                    checkpoint,
                    chosen,
                    wanted=wanted,
                    longest=self.longest,
                    group=group,
                    kv_precision=self.kv_precision,
                    resident=resident,
                )
            weights = self._weights(source, precision, revision)
            return replace(library_bytes(spec, chosen, kv_precision=self.kv_precision), weights=weights)
        except IpexAssistError:
            # Loading reports what is wrong with the checkpoint.
            return ModelBytes(self._weights(source, precision, revision), 0, 1, 0, 0, 0)

    def _weights(self, source: str, precision: str | None, revision: str | None) -> int | None:
        try:
            return estimate_bytes(
                source, precision, revision=revision, offline=self.offline, checkpoints=self.checkpoints
            )
        except IpexAssistError:
            return None

    def precision(self, source: str, precision: str | None, revision: str | None) -> str:
        """The precision that a model will have."""
        return precision or self.stored(source, revision) or "bf16"

    def stored(self, source: str, revision: str | None = None) -> str | None:
        """The precision of a checkpoint that is quantized already, where the native core keeps it."""
        try:
            checkpoint = self.checkpoints.open(source, revision=revision, offline=True)
            return checkpoint.stored_precision if self.native and not checkpoint.why_not_ours() else None
        except IpexAssistError:
            return None

    def head(
        self,
        model: str,
        target: str,
        precision: str | None,
        revision: str | None,
        *,
        wanted: int,
        named: str | None = None,
    ) -> ModelBytes | None:
        """The bytes of the draft head in a target's checkpoint, or of that with a name; None where there is none.

        target: its precision.
        """
        try:
            checkpoint = self.checkpoints.open(model, revision=revision, offline=True)
            if checkpoint.why_not_ours():
                return None
            from ipex_assist.executors.load import head_of, head_precision  # late: most of a start
            from ipex_assist.executors.model_bytes import head_bytes, library_bytes
            from ipex_assist.generation.second_assistant import is_draft_head

            other = None if named is None else self.checkpoints.open(named, offline=True)
            found = head_of(checkpoint, other) if other is None or is_draft_head(other) else None
            if found is None:
                return None
            chosen = precision or head_precision(target, found.spec)
            heads = [found, *found.further]
            if not self.native:
                return total_bytes([library_bytes(each.spec, chosen, kv_precision=self.kv_precision) for each in heads])
            return total_bytes(
                [
                    head_bytes(
                        *(other or checkpoint, each, chosen),
                        wanted=wanted,
                        longest=self.longest,
                        group=DRAFT_INT4_GROUP,
                        kv_precision=self.kv_precision,
                    )
                    for each in heads
                ]
            )
        except IpexAssistError:
            return None

    def need_of_two(
        self,
        target: tuple[str, str | None, str | None],
        name: AssistantName,
        assistant_precision: str | None,
        lengths: Sequence[int],
        wanted: int | None,
    ) -> MemoryNeed:
        """The need with a draft head and a small model, in either order. target: its source, precision and revision."""
        model, precision, revision = target
        whole, rows = self.precision(model, precision, revision), min(len(lengths), PASS_ROWS)
        parts, copied = [], 0
        for source in (name.model, name.second):
            if source == AUTO:
                source = self.family_assistant(model, revision)
            if source == SELF:
                chosen = assistant_precision or "int4"
                parts.append(self.model_bytes(model, chosen, revision, wanted=rows, group=DRAFT_INT4_GROUP))
                copied = parts[-1].table * self.native
            elif source == MTP:
                head = self.head(model, whole, assistant_precision, revision, wanted=rows)
                parts += [] if head is None else [head]
            elif source is not None:
                _check(source)
                head = self.head(model, whole, assistant_precision, revision, wanted=rows, named=source)
                chosen = assistant_precision or self.stored(source) or beside_experts(whole)
                parts.append(head or self.model_bytes(source, chosen, None, wanted=rows, group=DRAFT_INT4_GROUP))
        _check(model)
        of_target = self.target_bytes(model, precision, revision, wanted=wanted or wanted_rows(len(lengths)))
        need = need_of(of_target, total_bytes(parts) if parts else None, lengths)
        return need if need.assistant is None else replace(need, assistant=need.assistant - copied)

    def default_assistant(self, model: str, revision: str | None) -> str | None:
        """A published head of the model, or its family's assistant."""
        return default_head(model) or self.family_assistant(model, revision)

    def family_assistant(self, model: str, revision: str | None) -> str | None:
        """The small model of its family."""
        try:
            config = self.checkpoints.open(model, revision=revision, offline=True).config
            return default_assistant(config, model)
        except IpexAssistError:
            return None


def _check(source: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # opening it reports that
        check_source(source)


def with_adapters(
    need: MemoryNeed,
    model: str,
    folders: Collection[str],
    precision: str | None,
    revision: str | None = None,
    *,
    checkpoints: OpenCheckpoints | None = None,
    native: bool = False,
) -> MemoryNeed:
    """The need with the bytes of LoRA adapters of the target; as it is where a file cannot be read: loading says so.

    The other arguments are those of `estimate_need`.
    """
    if not folders:
        return need
    plan = _Plan(OpenCheckpoints() if checkpoints is None else checkpoints, True, native, 0, None)
    try:
        checkpoint = plan.checkpoints.open(model, revision=revision, offline=True)
        if checkpoint.why_not_ours():
            return need
        from ipex_assist.executors.adapter_bytes import adapter_bytes  # late: most of a start
        from ipex_assist.executors.load_request import LoadRequest

        chosen = plan.precision(model, precision, revision)
        return replace(
            need, adapters=adapter_bytes(LoadRequest(checkpoint, chosen, "native" if native else "torch"), folders)
        )
    except IpexAssistError:
        return need


def missing_bytes(need: MemoryNeed) -> int:
    """The bytes that a run needs beyond those that are available; at most 0 where it fits, or nobody knows."""
    available = read_memory().available
    if need.total is None or not available:
        return 0
    return need.total - _loaded_before() - available


def _loaded_before() -> int:
    """What this process has loaded of what every run loads, which is not needed again."""
    return min(RUNTIME_BYTES, resident_bytes())


def check_memory(need: MemoryNeed) -> None:
    """IpexAssistError with the numbers where a run cannot fit; better than being killed half way."""
    if need.total is None or missing_bytes(need) <= 0:
        return
    available, here = read_memory().available, _loaded_before()
    parts = [f"{gib(need.target or 0)} for the target"]
    if need.assistant:
        parts.append(f"{gib(need.assistant)} for the assistant")
    if need.adapters:
        parts.append(f"{gib(need.adapters)} for adapters")
    parts.append(f"{gib(need.kv)} for keys and values")
    parts.append(f"{gib(need.spare + RUNTIME_BYTES - here)} for passes and the libraries")
    raise IpexAssistError(
        f"too little memory: {gib(need.total - here)} are needed ({', '.join(parts)}) and {gib(available)} are "
        f"available. Use a smaller {'--kv-memory, ' * need.limited}--precision or model, "
        f"{'fewer --lora, ' * bool(need.adapters)}"
        f"{'fewer --max-new-tokens, ' * (not need.limited)}or --no-assisted"
    )
