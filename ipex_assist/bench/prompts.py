"""What is measured on: our own prompts and text, instruction sets from files, and random token ids."""

from __future__ import annotations

import gzip
import importlib.resources
import json
import random
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipex_assist.env.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHIPPED = "prompts"
# Sets that people ask for by name; they are other people's, and not shipped.
ELSEWHERE = {
    "alpaca": "alpaca_data.json of github.com/tatsu-lab/stanford_alpaca",
    "humaneval": "HumanEval.jsonl.gz of github.com/openai/human-eval",
    "mt-bench": "question.jsonl of github.com/lm-sys/FastChat, fastchat/llm_judge/data/mt_bench",
}
SHOWN_PROBLEMS = 5
TOO_DEEP = "JSON that is nested too deeply to be read"


@dataclass(frozen=True)
class SamplePrompt:
    """One prompt: a text, or token ids where there is no tokenizer."""

    id: str
    prompt: str | list[int]
    kind: str = ""


@dataclass(frozen=True)
class Dataset:
    """Prompts of a set, and what is wrong with the entries that have none."""

    name: str
    prompts: list[SamplePrompt]
    problems: list[str] = field(default_factory=list)

    def sample(self, count: int | None, seed: int) -> list[SamplePrompt]:
        """`count` of them, drawn without replacement; the same for the same seed. All of them where count is None.

        Of one seed a smaller draw is the beginning of every larger one, so that a run can go on with more of them.
        """
        if count is None or count >= len(self.prompts):
            return list(self.prompts)
        return random.Random(seed).sample(self.prompts, len(self.prompts))[:count]


def shipped_text() -> str:
    """A text of ours of about 2,000 tokens."""
    return (importlib.resources.files("ipex_assist") / "data" / "text.txt").read_text(encoding="utf-8")


def shipped_prompts() -> list[SamplePrompt]:
    """Our own prompts: short beginnings, code, edits, summaries, translations, lists, questions, …"""
    text = (importlib.resources.files("ipex_assist") / "data" / "prompts.jsonl").read_text(encoding="utf-8")
    return [SamplePrompt(entry["id"], entry["prompt"], entry["kind"]) for entry in map(json.loads, text.splitlines())]


def prompt_of_length(tokenizer: PreTrainedTokenizerBase, text: str, count: int) -> list[int]:
    """The first `count` token ids of a text, as a user's prompt begins with it. UsageError where it is too short."""
    ids = list(tokenizer(text)["input_ids"])
    if len(ids) < count:
        raise UsageError(
            f"--prompt-tokens {count}: the text has {len(ids)} tokens in this model's vocabulary; "
            "give a longer one with --text FILE"
        )
    return ids[:count]


def random_prompt(count: int, vocab_size: int, seed: Sequence[int]) -> list[int]:
    """Token ids for a model that has no tokenizer."""
    import numpy

    ids: list[int] = numpy.random.default_rng(list(seed)).integers(0, vocab_size, count).tolist()
    return ids


def spread_lengths(count: int, shortest: int, longest: int) -> list[int]:
    """Lengths of which any first ones are spread evenly: multiples of the golden ratio, modulo 1 (Weyl's sequence)."""
    golden = (5**0.5 - 1) / 2
    return [shortest + round(number * golden % 1 * (longest - shortest)) for number in range(count)]


def mixed_prompts(
    tokenizer: PreTrainedTokenizerBase, lengths: Sequence[int], text: str, prompts: Sequence[SamplePrompt], seed: int
) -> list[list[int]]:
    """A prompt of each length: one of `prompts`, after as much of `text` as is missing, from another place each time.

    So no two of them begin alike, which a cache of prefixes would find out: of a long one only the end is taken, which
    is half of the whole at most.
    """
    ids = list(tokenizer(text)["input_ids"])
    order = random.Random(seed).sample(range(len(prompts)), len(prompts))
    found, taken = [], set()
    for number, length in enumerate(lengths):
        asked = list(tokenizer(f"\n\n{prompts[order[number % len(order)]].prompt}")["input_ids"])[
            -max(1, length // 2) :
        ]
        missing = length - len(asked)
        places = max(1, len(ids) - missing)
        nearest = ((number * 1009 + step) % places for step in range(places))
        start = next((place for place in nearest if place not in taken), 0)
        taken.add(start)
        context = (ids[start:] + ids * (missing // len(ids) + 1))[:missing]
        found.append(context + asked)
    return found


def open_dataset(source: str) -> Dataset:
    """The shipped prompts by name, all ("prompts") or of one kind ("prompts:code"), or the prompts of a file.

    A file is a JSON list or JSON lines, also gzipped, with entries as Alpaca (instruction, input), HumanEval (prompt)
    or MT-bench (turns, of which the first is taken) have them, or with a question or a text.

    Raises:
        UsageError: there is no such set or file, or nothing in it is a prompt.
    """
    name, _, kind = source.partition(":")
    if name == SHIPPED:
        return Dataset(source, _shipped(kind))
    path = Path(source).expanduser()
    if not path.exists() or path.is_dir():
        where = ELSEWHERE.get(source.lower())
        advice = f"get {where}, and give its path" if where else f"give a file, or {SHIPPED} for our own"
        raise UsageError(f"--task dataset {source}: there is no such file; {advice}")
    prompts, problems = _read_entries(path)
    if not prompts:
        shown = "".join(f"\n  {problem}" for problem in problems[:SHOWN_PROBLEMS])
        raise UsageError(f"{path}: nothing in it is a prompt{shown}")
    return Dataset(path.name, prompts, problems)


def _shipped(kind: str) -> list[SamplePrompt]:
    prompts = [prompt for prompt in shipped_prompts() if kind in ("", prompt.kind)]
    if not prompts:
        kinds = list(dict.fromkeys(prompt.kind for prompt in shipped_prompts()))
        raise UsageError(f"{SHIPPED}:{kind}: there is no such kind; known: {', '.join(kinds)}")
    return prompts


def _read_entries(path: Path) -> tuple[list[SamplePrompt], list[str]]:
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = content.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    prompts: dict[str, SamplePrompt] = {}
    problems: list[str] = []
    for place, entry in _parsed(path, text):
        try:
            prompt = _prompt_of(json.loads(entry) if isinstance(entry, str) else entry, place)
            unique = prompt.id if prompt.id not in prompts else f"{prompt.id} ({place})"
            prompts[unique] = replace(prompt, id=unique)
        except json.JSONDecodeError as error:
            problems.append(f"{place}: no JSON ({error.msg} at column {error.colno})")
        except RecursionError:
            problems.append(f"{place}: {TOO_DEEP}")
        except ValueError as error:
            problems.append(f"{place}: {error}")
    return list(prompts.values()), problems


def _parsed(path: Path, text: str) -> Iterable[tuple[str, Any]]:
    """Entries by their places: items of a JSON list, or lines, which are yet to be parsed."""
    if not text.lstrip().startswith("["):
        return ((f"line {number}", line) for number, line in enumerate(text.split("\n"), 1) if line.strip())
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path} is no JSON: {error}") from error
    except RecursionError:
        raise UsageError(f"{path}: {TOO_DEEP}") from None
    return ((f"entry {number}", entry) for number, entry in enumerate(entries, 1))


def _prompt_of(entry: Any, place: str) -> SamplePrompt:
    """Return the prompt of one line's object. Raises ValueError, which says what is missing."""
    if not isinstance(entry, dict):
        raise ValueError(f"a {type(entry).__name__}, not an object")
    text = next((entry[name] for name in ("prompt", "instruction", "question", "text") if entry.get(name)), None)
    if text is None and isinstance(entry.get("turns"), list) and entry["turns"]:
        text = entry["turns"][0]
    if not isinstance(text, str) or not text.strip():
        raise ValueError("no prompt, instruction, question, text or turns")
    extra = entry.get("input") or entry.get("context")
    if "instruction" in entry and isinstance(extra, str) and extra.strip():
        text = f"{text}\n\n{extra}"
    own = next((entry[name] for name in ("id", "task_id", "question_id") if entry.get(name) is not None), place)
    return SamplePrompt(str(own), text, str(entry.get("kind") or entry.get("category") or ""))
