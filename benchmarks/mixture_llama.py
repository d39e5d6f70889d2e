"""llama.cpp beside mixture.py and formats.py: a GGUF file of the same shapes, and turns of llama-batched-bench."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.native.loading import planned_pool
from ipex_assist.native.library import read_bandwidth

PROGRAM = "llama-batched-bench"
NEW_TOKENS = 16  # of each request in a turn
BLOCK = 256  # to multiples of which llama.cpp rounds a sequence's context


@dataclass(frozen=True)
class PeerTurn:
    """Tokens/s by requests at once, and GB/s that memory read before the turn and after it, their mean."""

    speeds: Mapping[int, float]
    read: float


@dataclass(frozen=True)
class Peer:
    """llama-batched-bench in `programs` on a file. context: tokens before those that are timed; counts: requests."""

    programs: Path
    file: Path
    context: int
    counts: Sequence[int]

    def write(self, config: dict[str, Any]) -> None:
        """The file of these shapes. Raises UsageError for a model that llama.cpp has no file of."""
        import mixture_gguf

        if not (self.programs / PROGRAM).is_file():
            raise UsageError(f"--llama-cpp {self.programs}: there is no {PROGRAM}; name the folder that has it")
        try:
            mixture_gguf.write(config, self.file)
        except OSError as error:
            raise IpexAssistError(
                f"{self.file}: {error}. Is there room? --scratch FOLDER names another disk"
            ) from error

    def command(self) -> list[str]:
        """The program and its arguments, with as many threads as we have."""
        threads, longest = str(planned_pool().threads), -(-(self.context + NEW_TOKENS) // BLOCK) * BLOCK
        counts = ",".join(map(str, self.counts))
        return [
            *(str(self.programs / PROGRAM), "-m", str(self.file), "-c", str(longest * max(self.counts))),
            *("-npp", str(self.context), "-ntg", str(NEW_TOKENS), "-npl", counts, "-t", threads, "-tb", threads),
            *("--output-format", "jsonl"),
        ]

    def turn(self) -> PeerTurn:
        """One run of the program. Raises IpexAssistError where it fails or says no speed."""
        pool = planned_pool()
        before = read_bandwidth(pool, repeats=2)
        done = subprocess.run(
            self.command(), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
        )
        found = speeds(done.stdout)
        if done.returncode or sorted(found) != sorted(self.counts):
            raise IpexAssistError(
                f"{PROGRAM} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}"
            )
        return PeerTurn(found, (before + read_bandwidth(pool, repeats=2)) / 2)


def speeds(said: str) -> dict[int, float]:
    """Tokens/s of all requests together, by requests at once, of what the program printed."""
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return {int(line["pl"]): float(line["speed_tg"]) for line in lines}


def with_peer(
    table: Sequence[dict[str, str]], ours: Mapping[int, float], turns: Sequence[PeerTurn]
) -> list[dict[str, str]]:
    """The table with lines of llama.cpp and our speed beside it. ours: tokens/s by requests of a row each."""
    lines = [{**row, "÷ llama.cpp": ""} for row in table]
    for count in sorted(turns[0].speeds):
        samples = [turn.speeds[count] for turn in turns]
        speed = statistics.median(samples)
        line = dict.fromkeys(lines[0], "") | {"case": f"llama.cpp Q4_0, {count} requests", "tokens/s": f"{speed:.1f}"}
        line["spread"] = f"{min(samples):.1f} to {max(samples):.1f} tokens/s"
        line["read GB/s"] = " and ".join(f"{turn.read:.1f}" for turn in turns)
        line["÷ llama.cpp"] = f"{ours[count] / speed:.2f}" if count in ours else ""
        lines.append(line)
    return lines
