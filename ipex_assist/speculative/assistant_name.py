"""Values of `--assistant-model`: a model or draft head, `auto`, `mtp`, `self`, `lookup`, or lookup+MODEL."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ipex_assist.env.errors import UsageError
from ipex_assist.env.options import suggestion

LOOKUP, SELF, AUTO, NONE = "lookup", "self", "auto", "none"
MTP = "mtp"  # the head inside the target's own checkpoint that predicts further tokens


@dataclass(frozen=True)
class AssistantName:
    """lookup: try prompt lookup first. model: "auto", "self", "mtp", a source for `open_checkpoint`, or None."""

    lookup: bool = False
    model: str | None = None


def parse_assistant(name: str | None) -> AssistantName:
    """Parse `--assistant-model`; a folder named like one of the keywords is written ./self.

    auto-lookup is lookup+auto. Raises UsageError for lookup+ without a model, and for a misspelt keyword: models of the
    hub have an owner before a slash, but for a few old ones.
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
        if similar := _similar_keyword(name):
            raise UsageError(f"no such folder here, and none of the keywords{similar}")
        return AssistantName(False, name)
    model = name.partition("+")[2]
    if not model or model.lower() == NONE or parse_assistant(model).lookup:
        raise UsageError(
            "a model must follow lookup+ (a hub id, a folder, auto, mtp or self); without a model it is called lookup"
        )
    return AssistantName(True, model)


def _similar_keyword(name: str) -> str:
    if name in (AUTO, SELF, MTP) or os.sep in name or os.path.exists(name):
        return ""
    return suggestion(name, (SELF, LOOKUP, MTP, "auto-lookup"))
