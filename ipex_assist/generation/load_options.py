"""The options of loading a target and its assistant, with defaults, ranges and help. Never imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from ipex_assist.checkpoints.lora_folder import parse_adapter
from ipex_assist.env.errors import UsageError
from ipex_assist.env.options import Choice, Number, Options, Size, Switch, Text, Texts, checked, documented, option
from ipex_assist.executors.registry import EXECUTORS
from ipex_assist.quantization.precision import KV_PRECISIONS, PRECISIONS
from ipex_assist.speculative.sources.assistant_name import AUTO, NONE, parse_assistant

_PRECISIONS = f"{', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}"


def _assistant(name: str) -> None:
    try:
        parse_assistant(name)
    except UsageError as error:
        raise ValueError(str(error)) from None


DEMO = "SmolLM2-135M"  # the embedded model, by the name that help gives it


@documented
@dataclass(frozen=True)
class LoadOptions(Options):
    """Which target and assistant to load, and how. With target None the commands use the embedded model."""

    target: str | None = option(
        None, f"hub id, folder or .gguf file (default: {DEMO})", Text(), "ID", flags=("-m", "--model")
    )
    assistant: str = option(
        AUTO,
        "ID, mtp[+ID], self, lookup[+ID], auto-lookup (default: mtp, or by family)",
        Text(_assistant),
        "ID",
        flags=("--assistant-model",),
    )
    precision: str | None = option(None, f"{_PRECISIONS} (default: bf16, GGUF as stored)", Choice(PRECISIONS), "P")
    assistant_precision: str | None = option(
        None, "(default: the target's; of self int4, of a draft head bf16)", Choice(PRECISIONS), "P"
    )
    universal: bool = option(False, "allow an assistant with another tokenizer (by its text)", Switch())
    draft_vocabulary: int | None = option(
        None, "draft only among the first N token ids", Number(256, 10_000_000, whole=True), "N"
    )
    draft_threads: int | None = option(
        None, "threads for the assistant's small passes (default: measured)", Number(1, 65_535, whole=True), "N"
    )
    draft_corpus: str | None = option(None, "text that drafts may copy (adds lookup)", Text(), "FILE")
    draft_history: int | None = option(
        None, "memory for earlier answers that drafts may copy, as 64M (adds lookup)", Size(), "SIZE"
    )
    recalibrate: bool = option(False, "measure this pair on this machine again", Switch())
    executor: str = option(
        "auto",
        "native, ipex or torch (default: the first that works here)",
        Choice(("auto", *EXECUTORS)),
        "NAME",
    )
    kv_memory: int | None = option(
        None, "memory for keys and values, as 8G (default: what the weights leave)", Size(), "SIZE"
    )
    kv_precision: str | None = option(
        None, "of keys and values: bf16 or int8, half as large (default: attention's)", Choice(KV_PRECISIONS), "P"
    )
    resident: int | None = option(
        None, "memory for a GGUF mixture's weights, as 200G; others are read as needed", Size(), "SIZE"
    )
    lora: tuple[str, ...] = option((), "a LoRA adapter in PEFT's format; repeatable", Texts(), "NAME=FOLDER")
    lora_by_default: bool = option(False, "whether texts that name no adapter get the last one", Switch(), flags=())
    kv_share: float | None = option(
        None,
        "part of the memory that is left which may become keys and values (default: by the launcher's plan)",
        Number(0.001, 1),
        flags=(),
    )
    cache_packed: bool | None = option(
        None, "keep packed weights, for quick starts (default: where the disk has room)", Switch(both=True)
    )
    allow_special_tokens: bool = option(False, "read special tokens in messages as tokens, not as text", Switch())
    generation_config: str = option(
        AUTO,
        "sampling defaults: auto (the model's), none, or a FOLDER's",
        Text(),
        "FROM",
    )
    revision: str | None = option(None, "branch, tag or commit of the target on the hub", Text(), "REV")
    offline: bool = option(False, "use only what is on this machine", Switch())
    progress: bool = option(False, "show how far loading is, on standard error", Switch(), flags=())
    quick_start: bool = option(
        False,
        "where nothing drafts, begin before a packed copy is in memory as a whole; the first passes take longer then",
        Switch(),
        flags=(),
    )
    calibrate: bool = option(
        True,
        "measure what passes cost, or take it from the cache folder, now and not when the adaptive schedule needs it",
        Switch(),
        flags=(),
    )

    def __post_init__(self) -> None:
        """Raise UsageError for a value of the wrong type or out of range, and for two adapters of one name."""
        super().__post_init__()
        if self.copies_earlier_text and not self.assists:
            raise UsageError("--draft-corpus and --draft-history are for drafts, and --no-assisted makes none")
        names = [checked("--lora", parse_adapter, each)[0] for each in self.lora]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UsageError(f"--lora: two adapters are named {twice}: give one of them another name, NAME=FOLDER")

    @property
    def adapters(self) -> dict[str, str]:
        """Folders of adapters by their names."""
        return dict(parse_adapter(each) for each in self.lora)

    @property
    def copies_earlier_text(self) -> bool:
        """Whether drafts may copy more than the text so far."""
        return self.draft_corpus is not None or self.draft_history is not None

    @property
    def assists(self) -> bool:
        """Whether there is to be a draft source."""
        return self.assistant.lower() != NONE
