"""The folder that a run works in: answers and hidden states, which a later run with the same options finds there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.memory import gib

RESERVE = 1 << 30  # bytes that a disk keeps free
NAMES = {
    "target": "target",
    "precision": "precision",
    "prompts": "prompts or options of their answers",
    "max_length": "--max-length",
    "aux_layers": "layers that the head reads",
    "head": "kind or shape of the head, or --start-from",
}


@dataclass(frozen=True)
class AnsweredPrompt:
    """A prompt and the target's answer to it: token ids, of which the first `prompt_tokens` are the prompt's."""

    digest: str
    tokens: list[int]
    prompt_tokens: int


class WorkFolder:
    """Files of a run: distill.json says of what, answers.jsonl has the answers, data/ is in `speculators`' format.

    data/ holds samples.jsonl and hidden_states/hs_0.safetensors, hs_1.safetensors, … in the same order; verifier/ has
    the target's embedding, final norm and lm_head; state/ is the training's.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers, self.data = path / "answers.jsonl", path / "data"
        self.hidden_states, self.verifier, self.state = self.data / "hidden_states", path / "verifier", path / "state"

    def open(self, facts: Mapping[str, Any]) -> None:
        """Make the folder, or take what is there. Raises UsageError where that is of something else."""
        manifest = self.path / "distill.json"
        if manifest.exists():
            try:
                known = json.loads(manifest.read_text(encoding="utf-8"))
            except ValueError:
                raise UsageError(f"{manifest} is damaged: delete {self.path}, or name another folder") from None
            other = [NAMES[name] for name in facts if known.get(name) != facts[name]]
            if other:
                raise UsageError(
                    f"{self.path} has the work of another run, which differs in {', '.join(other)}: delete it, or name "
                    "another folder with --work"
                )
        elif self.path.exists() and any(self.path.iterdir()):
            raise UsageError(f"{self.path} is not empty, and no work of `distill`: name another folder with --work")
        try:
            for folder in (self.hidden_states, self.verifier, self.state):
                folder.mkdir(parents=True, exist_ok=True)
            if not manifest.exists():
                write(manifest, json.dumps(facts))
        except OSError as error:
            raise IpexAssistError(f"{self.path} cannot be written: {error.strerror}") from error

    def samples(self) -> Iterator[AnsweredPrompt]:
        """The answers that are there; a last line that was cut off is not."""
        if not self.answers.exists():
            return
        with self.answers.open("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    yield AnsweredPrompt(**json.loads(line))

    def mend(self) -> None:
        """Cut off a last line that a run that was killed has left unfinished."""
        if self.answers.exists():
            content = self.answers.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                os.truncate(self.answers, whole)

    def add(self, sample: AnsweredPrompt) -> None:
        """Append an answer."""
        with self.answers.open("a", encoding="utf-8") as file:
            file.write(json.dumps(vars(sample)) + "\n")

    def hidden_file(self, index: int) -> Path:
        """Where the hidden states of a sample are, by its number in data/samples.jsonl."""
        return self.hidden_states / f"hs_{index}.safetensors"

    def check_room(self, needed: int, what: str) -> None:
        """Raise IpexAssistError where the disk has too little room for so many bytes more."""
        free = shutil.disk_usage(self.path).free
        if needed + RESERVE > free:
            raise IpexAssistError(
                f"{what} take {gib(needed)} in {self.path}, and its disk has {gib(free)} free, of which {gib(RESERVE)} "
                "stay so: name a folder on another disk with --work, or give fewer --prompts or --max-new-tokens"
            )


def write(path: Path, text: str) -> None:
    """Write a file, which is never seen half written."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
