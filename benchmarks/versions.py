"""Two versions of this project beside each other: whole passes, and a real pair, in turns within one run.

    python benchmarks/versions.py --old PYTHON --new PYTHON [--target FOLDER --assistant FOLDER] [--precisions …]

PYTHON is the interpreter of an environment with an editable install of a version. Passes: both versions hold the same
model (version_passes.py) and are asked for some passes in turn, old, new, new, old, so that both meet the same memory
speed. Both have their memory in huge pages; where it lies differs all the same, so both start again several times
(--starts), the one and the other first. A pair is run as a command, in turns. The ratio is the median of the turns'
ratios, new ÷ old: of speeds,
so that less than 1 is a loss.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from pathlib import Path
from typing import Any

import measure

PROMPT = "Write a quick-sort implementation in Python."
FEW = 16  # rows of a pass that is short
HERE = Path(__file__).resolve().parent
Figures = dict[str, float]
Turns = list[Figures]


def checkout(python: str) -> Path:
    """The folder that an environment's editable install points to."""
    code = "import ipex_assist, pathlib; print(pathlib.Path(ipex_assist.__file__).resolve().parents[1])"
    return Path(
        subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, cwd="/").stdout.strip()
    )


def command(python: str, name: str) -> str:
    """Return the path of one of our commands in the environment of `python`."""
    return str(Path(python).parent / name)


class PassProcess:
    """A version's passes, in a process of its own."""

    def __init__(self, python: str, model: str, precision: str) -> None:
        argv = [command(python, "ipex-launch"), "--", python, str(HERE / "version_passes.py")]
        argv += [str(checkout(python)), model, precision]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self._answer() != "ready":
            raise RuntimeError(f"{python} has no passes of {model} in {precision}: see above")

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def seconds(self, rows: int, count: int) -> float:
        """The median seconds of `count` passes of `rows` rows, after one that wakes the threads."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{rows} {count + 1}\n")
        self._process.stdin.flush()
        return statistics.median(json.loads(self._answer())[1:])

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def passes(old: str, new: str, model: str, precision: str, args: argparse.Namespace) -> tuple[Turns, Turns]:
    """Passes a second of both versions, by turns: of several processes each."""
    before: Turns = []
    after: Turns = []
    for start in range(args.starts):
        started = {python: PassProcess(python, model, precision) for python in ((old, new), (new, old))[start % 2]}
        processes = [started[python] for python in (old, new)]
        for number in range(args.turns):
            figures: list[Figures] = [{}, {}]
            for rows in args.rows.split(","):
                for which in (0, 1) if number % 2 == 0 else (1, 0):
                    seconds = processes[which].seconds(int(rows), 3 if int(rows) <= FEW else 1)
                    figures[which][f"pass {model} {precision} {rows} rows"] = 1 / seconds
            before.append(figures[0])
            after.append(figures[1])
        for process in processes:
            process.close()
    return before, after


def pair(python: str, target: str, assistant: str, precision: str) -> Figures:
    """Tokens a second of one prompt, plain and assisted."""
    figures = {}
    for name, flags in (
        ("plain", ["--no-assisted"]),
        ("assisted", ["--assistant-model", assistant, "--assistant-precision", "int4"]),
    ):
        argv = [
            command(python, "ipex-assist"),
            "-m",
            target,
            "--precision",
            precision,
            "--chat",
            "-p",
            PROMPT,
            "--json",
        ]
        done = subprocess.run([*argv, *flags], capture_output=True, text=True, check=True)
        figures[f"{name} {precision}"] = json.loads(done.stdout.strip().splitlines()[-1])["tokens_per_s"]
    return figures


def compared(old: Turns, new: Turns) -> list[dict[str, Any]]:
    """A row for each figure: medians of both versions' turns, and of the ratios within each turn, with their spread."""
    rows = []
    for name in old[0]:
        ratios = [after[name] / before[name] for before, after in zip(old, new, strict=True)]
        rows.append(
            {
                "what": name,
                "old, a second": f"{statistics.median(figures[name] for figures in old):.2f}",
                "new, a second": f"{statistics.median(figures[name] for figures in new):.2f}",
                "new ÷ old": f"{statistics.median(ratios):.3f}",
                "spread": f"{min(ratios):.3f} to {max(ratios):.3f}",
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", required=True)
    parser.add_argument("--new", required=True)
    parser.add_argument("--target")
    parser.add_argument("--assistant")
    parser.add_argument("--models", default="qwen2.5-1.5b")
    parser.add_argument("--precisions", default="fp32,bf16,int8,int4")
    parser.add_argument("--rows", default="1,5,8,16,256")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--starts", type=int, default=3, help="processes of each version that passes are timed in")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    samples: list[tuple[Turns, Turns]] = []
    for model in args.models.split(","):
        for precision in args.precisions.split(","):
            samples.append(passes(args.old, args.new, model, precision, args))
            found = compared(*samples[-1])
            print(*(json.dumps(row, ensure_ascii=False) for row in found), sep="\n", flush=True)
            rows += found
    if args.target:
        for precision in args.precisions.split(","):
            turns: dict[str, Turns] = {args.old: [], args.new: []}
            for number in range(args.turns):
                for python in (args.old, args.new) if number % 2 == 0 else (args.new, args.old):
                    turns[python].append(pair(python, args.target, args.assistant, precision))
            samples.append((turns[args.old], turns[args.new]))
            rows += compared(*samples[-1])
    commits = {
        which: subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=checkout(python), capture_output=True, text=True
        ).stdout.strip()
        for which, python in (("old", args.old), ("new", args.new))
    }
    measure.report(rows, {"commits": commits, "samples": samples})


if __name__ == "__main__":
    main()
