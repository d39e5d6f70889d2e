"""Whether drafting ahead would pay: on paper, from the times of passes.

    python benchmarks/draft_ahead.py

While the target verifies k drafted tokens, an assistant on cores of its own drafts on from its own guess. That is of
use where all of them and the guess of the token after them are right: in p^(k+1) of the rounds, p of a token. Its price
is what the target loses with those cores. Each row: tokens a second ÷ those of drafting and verifying in turns, each
with its best k, if the target lost nothing; and how much slower its passes may become until nothing is gained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

LONGEST = 15
Rate = Callable[[int], float]


@dataclass(frozen=True)
class Pair:
    """Milliseconds of the target's passes of 1, 2 … rows (longer ones as the last), and of a draft step.

    ahead_ms: a draft step on the cores that the assistant has alone.
    """

    name: str
    verify_ms: tuple[float, ...]
    draft_ms: float
    ahead_ms: float

    def verify(self, rows: int) -> float:
        return self.verify_ms[min(rows, len(self.verify_ms)) - 1]


# Two threads are measured (Zen 5, Qwen2.5-Coder 1.5B with 0.5B in int4); the others are bytes ÷ 250 and 1,100 GB/s,
# with barriers, and an assistant of 0.6B in the cache.
PAIRS = (
    Pair("2 threads, int4", (19.5, 20, 21, 22, 22.5, 23, 23.5, 24, 26, 28, 29, 30, 32, 34, 37, 39), 6.3, 9.0),
    Pair("2 threads, bf16", (64, 65, 67, 69, 70, 71, 71.5, 72, 80, 81, 81.5, 82, 82, 82.5, 83, 83), 6.3, 9.0),
    Pair("56 threads, 8B in int4", (21,), 2.0, 2.0),
    Pair("56 threads, 8B in bf16", (68,), 2.0, 2.0),
    Pair("256 threads, 8B in bf16", (18,), 1.2, 1.2),
    Pair("256 threads, 70B in bf16", (133,), 2.0, 2.0),
)


def tokens(p: float, k: int) -> float:
    """Of a round, on average."""
    return (1 - p ** (k + 1)) / (1 - p)


def in_turns(pair: Pair, p: float, k: int) -> float:
    """Tokens a millisecond."""
    return tokens(p, k) / (k * pair.draft_ms + pair.verify(k + 1))


def ahead(pair: Pair, p: float, k: int, slower: float = 0.0) -> float:
    """Likewise, where a draft that was in vain ends at once. slower: what the target's passes lose, as a share."""
    verify = pair.verify(k + 1) * (1 + slower)
    ready = max(0, min(k, int(verify / pair.ahead_ms) - 1))  # one step guesses the token after the draft
    return tokens(p, k) / (verify + (k - p ** (k + 1) * ready) * pair.ahead_ms)


def best(rate: Rate) -> float:
    return max(rate(k) for k in range(1, LONGEST + 1))


def gain(pair: Pair, p: float, slower: float = 0.0) -> float:
    """Tokens a second ÷ those of turns, - 1."""
    return best(lambda k: ahead(pair, p, k, slower)) / best(lambda k: in_turns(pair, p, k)) - 1


def bearable(pair: Pair, p: float) -> float:
    """The share by which the target may become slower until nothing is gained; 0 where nothing is to be gained."""
    low, high = 0.0, 1.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if gain(pair, p, middle) > 0 else (low, middle)
    return low


def main() -> None:
    print("| | p | gain | the target may lose |\n|---|---|---|---|")
    for pair in PAIRS:
        for p in (0.7, 0.8, 0.9):
            print(f"| {pair.name} | {p} | {gain(pair, p):+.1%} | {bearable(pair, p):.1%} |")


if __name__ == "__main__":
    main()
