"""Reads a file of prompts, one JSON object a line: which lines can be run, and what is wrong with the others."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from ipex_assist.batch.images import contents, line_images, placed_images
from ipex_assist.batch.line_models import LineModels
from ipex_assist.batch.options import FIELDS, LineError, check_messages, check_options
from ipex_assist.env.errors import UsageError
from ipex_assist.env.options import options_of
from ipex_assist.speculative.options import DraftOptions, GenerationOptions
from ipex_assist.workers.wire import TextRequest

Id = int | str
DIGEST_LENGTH = 16
# The draft changes the speed of a text and not the text (of a sampled one, not its distribution).
SPEED_ONLY = tuple(options_of(DraftOptions))


@dataclass(frozen=True)
class Prompt:
    """One line: a text or a conversation, and how to continue it.

    images: names of files, or data: URLs, for placeholders in messages, or before a text.
    undecided: nobody has said whether the text is a user's message; it is continued as it is. model: as the line says;
    no_model: why that is none that runs, which is the prompt's result.
    """

    id: Id
    prompt: str | None
    messages: list[dict[str, Any]] | None
    chat: bool
    options: GenerationOptions
    images: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    undecided: bool = False
    model: str | None = None
    no_model: str | None = None

    def request(self, number: int, folder: Path = Path()) -> TextRequest:
        """What an instance is sent. folder: of the file, for names of images.

        Raises LineError where the line names a model that does not run, or an image that cannot be read.
        """
        if self.no_model is not None:
            raise LineError(self.no_model)
        images = contents(self.images, folder)
        return TextRequest(number, self.prompt, self.messages, self.chat, self.options, images=images)

    def digest(self) -> str:
        """A hash of all that decides the text but the model: whether a result belongs to this very prompt."""
        # Those as by default are left out: an option that is new in a later version changes no digest.
        decisive = {name: value for name, value in self.options.changed().items() if name not in SPEED_ONLY}
        unknown = [] if self.no_model is None else [self.model]
        images = [{"images": self.images}] if self.images else []
        text = json.dumps([self.prompt, self.messages, self.chat, decisive, *images, *unknown], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


@dataclass(frozen=True)
class Defaults:
    """Options from the command's flags, for lines that have none of their own. chat: None without such a flag.

    models: what a line's `model` may say.
    """

    options: GenerationOptions = field(default_factory=GenerationOptions)
    chat: bool | None = None
    models: LineModels = field(default_factory=LineModels)


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a prompt stands in its file. `line` counts from 1; offset and length are in bytes.

    max_new_tokens: of its options.
    """

    id: Id
    line: int
    offset: int
    length: int
    digest: str
    max_new_tokens: int = 0


@dataclass(frozen=True)
class Problem:
    """A line that cannot be run."""

    line: int
    message: str


def parse_line(raw: bytes, number: int, defaults: Defaults) -> Prompt:
    """The prompt of one line; without an id of its own it has the line's number.

    Raises:
        LineError: the line is no prompt.
    """
    try:
        fields = json.loads(raw.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        raise LineError(f"not UTF-8 text ({error.reason} at byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise LineError(f"not JSON ({error.msg} at character {error.pos + 1})") from None
    except (RecursionError, ValueError) as error:  # nested without end; numbers of thousands of digits
        raise LineError(f"not JSON that can be read ({error})") from None
    if not isinstance(fields, dict):
        raise LineError("not an object; write for example " + '{"id": 1, "prompt": "Once upon a time"}')
    own_id = fields.get("id")
    if own_id is None:
        own_id = number
    if isinstance(own_id, bool) or not isinstance(own_id, (int, str)):
        raise LineError(f"id {json.dumps(own_id)}: must be a text or a whole number")
    text, conversation = fields.get("prompt"), fields.get("messages")
    if (text is None) == (conversation is None):
        raise LineError("needs prompt (a text) or messages (a list)" + (", not both" if text is not None else ""))
    if text is not None and not (isinstance(text, str) and text.strip()):
        raise LineError("prompt is empty" if isinstance(text, str) else "prompt must be a text")
    chat = defaults.chat if fields.get("chat") is None else fields["chat"]
    if chat is not None and not isinstance(chat, bool):
        raise LineError(f"chat {chat!r}: must be true or false")
    images = line_images(fields)
    messages = None if conversation is None else check_messages(conversation)
    if messages is not None:
        messages, placed = placed_images(messages)
        images = placed + images
    elif images and chat is None:
        chat = True  # who shows something asks about it
    options, no_model = _with_model(fields, check_options(fields, defaults.options), defaults.models)
    return Prompt(
        id=own_id,
        prompt=text,
        messages=messages,
        chat=bool(chat),
        options=options,
        images=images,
        unknown=tuple(name for name in fields if name not in FIELDS),
        undecided=text is not None and chat is None,
        model=fields.get("model"),
        no_model=no_model,
    )


def _with_model(
    fields: dict[str, Any], options: GenerationOptions, models: LineModels
) -> tuple[GenerationOptions, str | None]:
    """The options with the adapter that the line's `model` stands for, unless its `lora` names one; and what is wrong
    with that name. Raises LineError where it is no text.
    """
    model = fields.get("model")
    if model is None:
        return options, None
    if not isinstance(model, str):
        raise LineError(f"model {json.dumps(model)[:100]}: must be the text of a name")
    try:
        lora = models.lora(model)
    except LineError as error:
        return options, str(error)
    return (options if lora is None or fields.get("lora") is not None else replace(options, lora=lora)), None


class PromptFile:
    """An index of the file's prompts; texts stay on disk until they are needed.

    `shard` (index, count) takes every count-th line only; ids are compared over the whole file all the same.
    `unknown` are fields we know nothing of: name → (lines, first line). `undecided` counts prompts of which nobody has
    said whether they are a user's messages.
    """

    def __init__(self, path: str, defaults: Defaults, shard: tuple[int, int] = (0, 1)) -> None:
        self.path, self._defaults = path, defaults
        self.entries: list[Entry] = []
        self.problems: list[Problem] = []
        self.unknown: dict[str, tuple[int, int]] = {}
        self.undecided = 0
        self._file = _open(path)
        self.folder = Path(path).parent if path != "-" else Path()
        self._index(*shard)

    def _index(self, shard: int, shards: int) -> None:
        first_line: dict[Id, int] = {}
        offset = 0
        for number, raw in enumerate(self._file, start=1):
            start, offset = offset, offset + len(raw)
            if not raw.strip():
                continue
            ours = (number - 1) % shards == shard
            try:
                prompt = parse_line(raw, number, self._defaults)
                if prompt.id in first_line:
                    raise LineError(
                        f"id {json.dumps(prompt.id)} is that of line {first_line[prompt.id]} already, which is run; "
                        "this line is not"
                    )
                first_line[prompt.id] = number
            except LineError as error:
                if ours:
                    self.problems.append(Problem(number, str(error)))
                continue
            if not ours:
                continue
            self.undecided += prompt.undecided
            room = prompt.options.max_new_tokens
            self.entries.append(Entry(prompt.id, number, start, len(raw), prompt.digest(), room))
            for name in prompt.unknown:
                lines, first = self.unknown.get(name, (0, number))
                self.unknown[name] = (lines + 1, first)

    def read(self, entry: Entry) -> Prompt:
        """The prompt of `entry`.

        Raises:
            LineError: the file has been changed since the index was made.
        """
        self._file.seek(entry.offset)
        changed = f"{self.path} was changed during the run, so that line {entry.line} is another one now"
        try:
            prompt = parse_line(self._file.read(entry.length), entry.line, self._defaults)
        except LineError:
            raise LineError(changed) from None
        if (prompt.id, prompt.digest()) != (entry.id, entry.digest):
            raise LineError(changed)
        return prompt


def _open(path: str) -> IO[bytes]:
    """The file, - being standard input; of what cannot be read twice, such as a pipe from zcat, a temporary copy."""
    if path != "-" and not Path(path).exists():
        raise UsageError(f"{path}: there is no such file")
    try:
        file = open("/dev/stdin" if path == "-" else path, "rb")  # noqa: SIM115 (open as long as the run)
        if file.seekable():
            return file
        copy = tempfile.TemporaryFile()  # noqa: SIM115
        with file:
            shutil.copyfileobj(file, copy)
        copy.seek(0, os.SEEK_SET)
        return copy
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
