"""Two assistants by name: which of them is the draft head, and the small model beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.checkpoints.open import OpenCheckpoints
from ipex_assist.env.errors import UsageError
from ipex_assist.executors.select_executor import stored_precision
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.models import find
from ipex_assist.models.heads import is_head
from ipex_assist.quantization.precision import beside_experts
from ipex_assist.speculative.sources.assistant_name import AUTO, MTP, SELF, AssistantName
from ipex_assist.speculative.sources.default_assistants import default_assistant, why_none


@dataclass(frozen=True)
class SecondAssistant:
    """A small model beside a draft head. copy: it is the target's own copy, in another precision."""

    checkpoint: Checkpoint
    precision: str
    copy: bool = False


def is_draft_head(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint is a draft head, by its config; tensor names are read where that leaves it open."""
    if is_head(checkpoint.config, ()):
        return True
    usual = find(checkpoint.architecture) is not None and not {"draft_vocab_size", "eagle_config"} & set(
        checkpoint.config
    )
    return not usual and is_head(checkpoint.config, checkpoint.names())


def head_first(name: AssistantName, checkpoints: OpenCheckpoints, *, offline: bool) -> AssistantName:
    """Return the name of two assistants with the head before the model. Raises UsageError for two of a kind."""
    if name.second is None:
        return name
    heads = [
        each == MTP or (each not in (AUTO, SELF) and is_draft_head(checkpoints.open(str(each), offline=offline)))
        for each in (name.model, name.second)
    ]
    if heads[0] == heads[1]:
        raise UsageError(
            f"--assistant-model {name.model}+{name.second}: both are {'draft heads' if heads[0] else 'whole models'}. "
            f"Two assistants are a draft head and a small model, as {MTP}+ID; or name one of them"
        )
    return name if heads[0] else replace(name, model=name.second, second=name.model)


def open_second(
    target: Checkpoint, name: AssistantName, options: LoadOptions, checkpoints: OpenCheckpoints
) -> Checkpoint | None:
    """Open the small model; None where there is none. Raises UsageError for one that cannot draft beside a head."""
    if name.second is None:
        return None
    asked = f"--assistant-model {name.model}+{name.second}"
    if options.universal:
        raise UsageError(f"{asked}: --universal drafts with one model; leave it out, or name that model alone")
    if name.second == SELF:
        return target
    source: str | None = name.second
    if source == AUTO:
        source = default_assistant(target.config, options.target or "")
        if source is None:
            raise UsageError(f"{asked}: {why_none(target.config)}; name one, or take {name.model} alone")
    assert source is not None
    found = checkpoints.open(source, offline=options.offline)
    if reason := found.why_not_ours():
        raise UsageError(f"{asked}: our decoder cannot run {found.source} ({reason}); name another, or one alone")
    return found


def second_assistant(
    checkpoint: Checkpoint | None, name: AssistantName, options: LoadOptions, precision: str, executor: str
) -> SecondAssistant | None:
    """Settle the precision of the small model. precision: the target's."""
    if checkpoint is None:
        return None
    copy, chosen = name.second == SELF, options.assistant_precision
    if chosen is None:
        chosen = "int4" if copy else stored_precision(checkpoint, executor) or beside_experts(precision)
    return SecondAssistant(checkpoint, chosen, copy)
