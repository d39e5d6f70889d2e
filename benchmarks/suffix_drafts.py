"""Suffix lookup beside the n-gram lookup before it: recorded turns of a coding agent, drafted again token by token.

    python benchmarks/suffix_drafts.py -m FOLDER [--sessions N] [--answers FILE] [--no-corpus]

Nothing is computed by a model: an answer is known, and after each pass a source drafts what it can. FOLDER has the
tokenizer. Turns are those of agent_turns.py, whose answers are real edits of this repository; --answers FILE has what
a model answered to such prompts (record_answers.py). The corpus is the repository before the first of these edits.
Both sources are asked for as many tokens as their confidence makes worthwhile on a machine where each row of a pass
takes a part of what the first one takes, after Acceptance learnt how often each confidence is right. Times are those
of this machine, everything else is counted.
"""

from __future__ import annotations

import argparse
import json
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import agent_turns
import measure
from tokenizers import Tokenizer

from ipex_assist.native.token_index import TokenIndex
from ipex_assist.speculative.costs.acceptance import Acceptance
from ipex_assist.speculative.schedule import LONGEST_DRAFT
from ipex_assist.speculative.sources.earlier_text import Caller, EarlierAnswers, EarlierText
from ipex_assist.speculative.sources.suffix_lookup import SuffixLookup

MEMORY = 0.995  # of acceptance counts, as where many requests are counted together
# What a row of a pass takes, as a part of a pass of one: two cores without AMX, two with, and many.
ROWS = {"2 cores, vectors": 0.15, "2 cores, AMX": 0.03, "256 threads": 0.003}
LONGEST = 15  # tokens of a draft before
HISTORY = 64 << 20  # bytes
CORPUS = ("docs", "ipex_assist", "README.md")  # of the checkout before the first session
CALLER = Caller("key 0")

Draft = tuple[list[int], list[float]]


class NgramLookup:
    """The lookup before: the longest match among the last 8 places of the last two tokens."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._indexed = 2

    def draft(self, tokens: Sequence[int]) -> Draft:
        for end in range(self._indexed, len(tokens)):
            places = self._places.setdefault(tuple(tokens[end - 2 : end]), [])
            places.append(end)
            del places[:-8]
        self._indexed = max(self._indexed, len(tokens))
        place, length = 0, 0
        for each in reversed(self._places.get(tuple(tokens[-2:]), ())):
            agreeing = 0
            while agreeing < min(32, each) and tokens[each - 1 - agreeing] == tokens[len(tokens) - 1 - agreeing]:
                agreeing += 1
            if agreeing > length:
                place, length = each, agreeing
        copied: list[int] = []
        for i in range(LONGEST if length else 0):
            at = place + i
            copied.append(tokens[at] if at < len(tokens) else copied[at - len(tokens)])
        return copied, [1 - 1 / (length + i + 1) for i in range(len(copied))]


class Suffixes:
    """Suffix lookup as it is, with drafts of at most `longest` tokens."""

    def __init__(self, earlier: EarlierText, longest: int) -> None:
        self._lookup, self._longest = SuffixLookup(earlier), longest

    def draft(self, tokens: Sequence[int]) -> Draft:
        found = self._lookup.after(tokens)
        return found.tokens[: self._longest], found.confidence[: self._longest]


@dataclass
class Counts:
    """What a source did for answers: passes of the target, tokens that came, drafted and accepted ones."""

    passes: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    cost: float = 0.0  # of all passes, in passes of one row
    seconds: list[float] = field(default_factory=list)

    def add(self, drafted: int, accepted: int, row: float) -> None:
        self.passes += 1
        self.tokens += accepted + 1
        self.drafted += drafted
        self.accepted += accepted
        self.cost += 1 + row * drafted


@dataclass(frozen=True)
class Recorded:
    """A turn in tokens."""

    session: int
    form: str
    prompt: list[int]
    answer: list[int]


def worthwhile(chances: Sequence[float], row: float) -> int:
    """How many tokens to verify: the number with the most expected tokens for what the pass takes."""
    best, tokens, rate = 0, 1.0, 1.0
    for count, chance in enumerate(chances, 1):
        tokens += chance
        if tokens / (1 + row * count) > rate:
            best, rate = count, tokens / (1 + row * count)
    return best


def replay(
    turn: Recorded, draft: Callable[[Sequence[int]], Draft], known: Acceptance, row: float, counts: Counts
) -> None:
    """Count the passes of one answer. Its first token comes with the prompt."""
    tokens = [*turn.prompt, turn.answer[0]]
    draft(tokens)
    while (done := len(tokens) - len(turn.prompt)) < len(turn.answer):
        started = time.perf_counter()
        drafted, confidence = draft(tokens)
        counts.seconds.append(time.perf_counter() - started)
        left = turn.answer[done:]
        most = min(len(drafted), len(left) - 1)
        [chances] = known.chances([confidence[:most]], [most])
        kept = worthwhile(chances, row)
        accepted = next((i for i in range(kept) if drafted[i] != left[i]), kept)
        if confidence:
            known.observe(confidence[:most], kept, accepted)
        counts.add(kept, accepted, row)
        tokens += left[: accepted + 1]


def contenders(corpus: TokenIndex | None, answers: EarlierAnswers) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names, and what makes the source of one turn."""
    earlier = [*answers.of(CALLER).indexes, *([] if corpus is None else [corpus])]
    yield "n-grams", NgramLookup
    yield "suffixes", lambda: Suffixes(EarlierText(), LONGEST)
    yield "and earlier answers", lambda: Suffixes(EarlierText(earlier[:1]), LONGEST)
    if corpus is not None:
        yield "and a corpus", lambda: Suffixes(EarlierText(earlier), LONGEST)
    yield "all, up to 63 tokens", lambda: Suffixes(EarlierText(earlier), LONGEST_DRAFT)


def read_corpus(tokenizer: Tokenizer, commit: str) -> TokenIndex:
    """The files of the repository as they were."""
    files = agent_turns.git("ls-tree", "-r", "--name-only", commit, *CORPUS).split("\n")
    tokens = array("i")
    for file in files:
        if file.endswith((".py", ".md", ".cpp", ".h")):
            tokens.extend(tokenizer.encode("\n".join(agent_turns.at(commit, file)), add_special_tokens=False).ids)
    index = TokenIndex()
    index.append(tokens)
    print(f"corpus: {len(tokens)} tokens, {index.nbytes / 1e6:.0f} MB")
    return index


def recorded(tokenizer: Tokenizer, sessions: int, answers: Path | None) -> list[Recorded]:
    """The turns, by git's history or with the answers of a model."""
    if answers is None:
        turns = agent_turns.turns(sessions)
    else:
        stored = json.loads(answers.read_text(encoding="utf-8"))
        whole = len(agent_turns.ASKED)
        left = {int(number): iter(each) for number, each in stored["answers"].items() if len(each) == whole}
        turns = agent_turns.answered_turns(stored["sessions"], lambda session, prompt: next(left[session]), left)
    return [
        Recorded(
            *(each.session, each.form),
            *(tokenizer.encode(text, add_special_tokens=False).ids for text in (each.prompt, each.answer)),
        )
        for each in turns
    ]


def rows_of(turns: Sequence[Recorded], corpus: TokenIndex | None) -> Iterator[dict[str, Any]]:
    forms = sorted({turn.form for turn in turns})
    for machine, row in ROWS.items():
        base = 0.0
        for place in range(len(list(contenders(corpus, EarlierAnswers(HISTORY))))):
            answers = EarlierAnswers(HISTORY)
            name, make = list(contenders(corpus, answers))[place]
            known, counted = Acceptance(MEMORY), {form: Counts() for form in forms}
            for turn in turns:
                replay(turn, make().draft, known, row, counted[turn.form])
                answers.add(CALLER, turn.answer)
            every = list(counted.values())
            passes, tokens = sum(each.passes for each in every), sum(each.tokens for each in every)
            drafted, accepted = sum(each.drafted for each in every), sum(each.accepted for each in every)
            cost = sum(each.cost for each in every)
            seconds = sorted(second for each in every for second in each.seconds)
            base = base or tokens / passes
            yield {
                "rows": machine,
                "drafts from": name,
                "tokens/pass": f"{tokens / passes:.2f}",
                "÷ n-grams": f"{tokens / passes / base:.2f}",
                **{form: f"{each.tokens / each.passes:.2f}" for form, each in counted.items()},
                "drafted/pass": f"{drafted / passes:.1f}",
                "accepted": f"{accepted / max(1, drafted):.0%}",
                "× plain": f"{tokens / cost:.2f}",
                "µs, p50 / p99": " / ".join(f"{seconds[len(seconds) * part // 100] * 1e6:.0f}" for part in (50, 99)),
            }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", required=True, type=Path, help="folder with tokenizer.json")
    parser.add_argument("--sessions", type=int, default=36, help="commits")
    parser.add_argument("--answers", type=Path, help="what a model answered, in place of the commits' edits")
    parser.add_argument("--no-corpus", action="store_true", help="without the repository as a corpus")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    turns = recorded(tokenizer, args.sessions, args.answers)
    lengths = [len(turn.answer) for turn in turns]
    print(
        f"{len(turns)} turns, {sum(lengths)} tokens of answers, prompts of {max(len(t.prompt) for t in turns)} at most"
    )
    corpus = None if args.no_corpus else read_corpus(tokenizer, f"{agent_turns.sessions(args.sessions)[0].commit}~")
    measure.report(list(rows_of(turns, corpus)), {"turns": len(turns), "answer_tokens": sum(lengths)})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
