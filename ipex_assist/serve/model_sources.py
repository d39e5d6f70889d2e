"""Which models a server has: NAME=SOURCE,… of -m, and the folders and GGUF files of --models-dir. Starts nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ipex_assist.checkpoints.open import check_source
from ipex_assist.env.errors import UsageError
from ipex_assist.generation.load_options import LoadOptions

_NAME = re.compile(r"([\w.:/@+-]{1,200})=(.+)", re.DOTALL)
_OPTION = re.compile(r",(assistant|precision)=([^,]*)")
_SHARD = re.compile(r"-(\d{5})-of-\d{5}\.gguf$")


@dataclass(frozen=True)
class ModelSource:
    """A model of a server. name: in requests. assistant, precision: None where they are as for all models."""

    name: str
    source: str
    assistant: str | None = None
    precision: str | None = None

    def load_options(self, load: LoadOptions) -> LoadOptions:
        """How it is loaded, where `load` is how all are. Raises UsageError for a value that cannot be."""
        load = replace(load, target=self.source)
        if self.assistant is not None:
            load = replace(load, assistant=self.assistant)
        return load if self.precision is None else replace(load, precision=self.precision)


def split_name(text: str) -> tuple[str | None, str]:
    """The name and the rest of NAME=SOURCE…; None and all of it where it has no name, or is a path that exists."""
    found = _NAME.fullmatch(text)
    if found is None or text[0] in "/.~" or os.path.exists(text):
        return None, text
    return found[1], found[2]


def name_of(source: str) -> str:
    """The name of a source in requests, where none is given: the hub id, or the name of the folder or file."""
    path = Path(os.path.expanduser(source))
    return path.resolve().name.removesuffix(".gguf") if path.exists() else source


def read_source(text: str) -> ModelSource:
    """One -m: [NAME=]SOURCE[,assistant=ID][,precision=P]. Raises UsageError, also for a path to nothing."""
    name, rest = split_name(text)
    values: dict[str, str] = {}
    if not os.path.exists(os.path.expanduser(rest)):
        head, *_ = _OPTION.split(rest, maxsplit=1)
        for key, value in _OPTION.findall(rest[len(head) :]):
            if not value or key in values:
                raise UsageError(f"-m {text}: {key}= must be given once, with a value")
            values[key] = value
        if "," in _OPTION.sub("", rest[len(head) :]) or "," in head:
            raise UsageError(f"-m {text}: only assistant=ID and precision=P may follow the model, after commas")
        rest = head
    check_source(rest)
    return ModelSource(name or name_of(rest), rest, values.get("assistant"), values.get("precision"))


def found_in(folder: str) -> list[ModelSource]:
    """Every folder with a config.json and every GGUF file of a folder, in the order of their names.

    Of a GGUF file in parts it is the first part. Raises UsageError where the folder cannot be read or has no model.
    """
    path = Path(os.path.expanduser(folder))
    try:
        entries = sorted(path.iterdir())
    except OSError as error:
        raise UsageError(f"--models-dir {folder} cannot be read: {error.strerror}") from None
    found = []
    for entry in entries:
        shard = _SHARD.search(entry.name)
        if entry.is_dir() and (entry / "config.json").is_file():
            found.append(ModelSource(entry.name, str(entry)))
        elif entry.suffix == ".gguf" and entry.is_file() and (shard is None or int(shard[1]) == 1):
            found.append(ModelSource(_SHARD.sub("", entry.name).removesuffix(".gguf"), str(entry)))
    if not found:
        raise UsageError(f"--models-dir {folder} has no model: neither a folder with a config.json nor a .gguf file")
    return found


def read_sources(models: Sequence[str], folder: str | None) -> list[ModelSource]:
    """All models of a server, those of -m first. Raises UsageError where two have one name."""
    sources = [*map(read_source, models), *(found_in(folder) if folder is not None else ())]
    names: dict[str, ModelSource] = {}
    for each in sources:
        if (other := names.setdefault(each.name, each)) is not each:
            raise UsageError(
                f"two models have the name {each.name!r}, {other.source} and {each.source}: give one of them another, "
                "-m NAME=ID"
            )
    return sources
