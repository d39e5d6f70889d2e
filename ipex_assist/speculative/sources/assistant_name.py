"""Values of `--assistant-model`: a model or draft head, `auto`, `mtp`, `self`, `lookup`, or several with + between."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ipex_assist.env.errors import UsageError
from ipex_assist.env.options import suggestion

LOOKUP, SELF, AUTO, NONE = "lookup", "self", "auto", "none"
MTP = "mtp"  # the head inside the target's own checkpoint that predicts further tokens


@dataclass(frozen=True)
class AssistantName:
    """lookup: try prompt lookup first. model: "auto", "self", "mtp", a source for `open_checkpoint`, or None.

    second: a model that drafts in turn with `model`, of which one is a draft head: named as `model` is, but never mtp.
    """

    lookup: bool = False
    model: str | None = None
    second: str | None = None


def parse_assistant(name: str | None) -> AssistantName:
    """Parse `--assistant-model`; a folder named like one of the keywords is written ./self.

    auto-lookup is lookup+auto. Raises UsageError for lookup+ without a model, for two assistants of which none is a
    head or a small model by its name, and for a misspelt keyword: models of the hub have an owner before a slash, but
    for a few old ones.
    """
    if name is None or name.lower() == NONE:
        return AssistantName()
    if name == "auto-lookup":
        return AssistantName(True, AUTO)
    if name == LOOKUP:
        return AssistantName(True)
    if name.endswith(f"+{LOOKUP}") and not os.path.exists(name):
        name = f"{LOOKUP}+{name.removesuffix(f'+{LOOKUP}')}"
    if not name.startswith(f"{LOOKUP}+"):
        if "+" in name and not os.path.exists(name):
            return _two(name)
        if similar := _similar_keyword(name):
            raise UsageError(f"no such folder here, and none of the keywords{similar}")
        return AssistantName(False, name)
    model = name.partition("+")[2]
    if not model or model.lower() == NONE or (found := parse_assistant(model)).lookup:
        raise UsageError(
            "a model must follow lookup+ (a hub id, a folder, auto, mtp or self); without a model it is called lookup"
        )
    return AssistantName(True, found.model, found.second)


def _two(name: str) -> AssistantName:
    """A draft head and a small model, in either order; the head is first where its name says which it is."""
    head, _, model = name.partition("+")
    if name.endswith(f"+{MTP}") and head != MTP:
        head, model = MTP, name.removesuffix(f"+{MTP}")
    shown = head or "+"
    if not head or not model or model.lower() == NONE:
        raise UsageError(f"a small model must follow {shown}+ (a hub id, a folder, auto or self); alone it is {shown}")
    if head == model:
        raise UsageError(f"{name} names the same assistant twice: {MTP}+ID is a draft head and a small model")
    if head in (AUTO, SELF, LOOKUP) or LOOKUP in model.split("+"):
        raise UsageError(
            f"{name}: two assistants are a draft head and a small model, as {MTP}+ID, {MTP}+{AUTO} or HEAD+ID, with "
            f"{LOOKUP}+ before them where text is to be copied as well"
        )
    if "+" in model and not os.path.exists(model):
        raise UsageError(f"{name}: at most two models draft for a target, a draft head and a small one, as {MTP}+ID")
    for each in (head, model):
        if similar := _similar_keyword(each):
            raise UsageError(f"{each}: no such folder here, and none of the keywords{similar}")
    return AssistantName(False, head, model)


def _similar_keyword(name: str) -> str:
    if name in (AUTO, SELF, MTP) or os.sep in name or os.path.exists(name):
        return ""
    return suggestion(name, (SELF, LOOKUP, MTP, "auto-lookup"))
