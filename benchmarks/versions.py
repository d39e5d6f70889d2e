"""Two versions of this project beside each other: whole passes, and a real pair, in turns within one run.

    python benchmarks/versions.py --old PYTHON --new PYTHON --target FOLDER --assistant FOLDER [--precisions …]

PYTHON is the interpreter of an environment with an editable install, of which the checkout's own benchmarks/forward.py
is run. Turns alternate (old, new, new, old, …), so that a machine that becomes slower strikes both. The ratio is the
median of the turns' ratios, new ÷ old: of speeds, so that less than 1 is a loss.
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
Figures = dict[str, float]


def checkout(python: str) -> Path:
    """The folder that an environment's editable install points to."""
    code = "import ipex_assist, pathlib; print(pathlib.Path(ipex_assist.__file__).resolve().parents[1])"
    return Path(
        subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, cwd="/").stdout.strip()
    )


def command(python: str, name: str) -> str:
    """Return the path of one of our commands in the environment of `python`."""
    return str(Path(python).parent / name)


def passes(python: str, models: str, precisions: str, rows: str) -> Figures:
    """Passes a second by model, precision and rows."""
    script = checkout(python) / "benchmarks" / "forward.py"
    argv = [command(python, "ipex-launch"), "--", python, str(script), "--models", models, "--precisions", precisions]
    argv += ["--rows", rows, "--contexts", "256", "--repeats", "7"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    results = json.loads(done.stdout.strip().splitlines()[-1])["results"]
    return {f"pass {r['model']} {r['precision']} {r['rows']} rows": 1000 / r["ms"]["median"] for r in results}


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


def turn(python: str, args: argparse.Namespace) -> Figures:
    """Measure all figures of one version once."""
    figures = passes(python, args.models, args.precisions, args.rows)
    for precision in args.precisions.split(","):
        if args.target:
            figures |= pair(python, args.target, args.assistant, precision)
    return figures


def compared(old: list[Figures], new: list[Figures]) -> list[dict[str, Any]]:
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
    parser.add_argument("--precisions", default="bf16,int8,int4")
    parser.add_argument("--rows", default="1,5")
    parser.add_argument("--turns", type=int, default=4)
    args = parser.parse_args()
    samples: dict[str, list[Figures]] = {args.old: [], args.new: []}
    for number in range(args.turns):
        for python in (args.old, args.new) if number % 2 == 0 else (args.new, args.old):
            samples[python].append(turn(python, args))
            print(f"turn {number + 1}: {samples[python][-1]}", flush=True)
    rows = compared(samples[args.old], samples[args.new])
    commits = {
        which: subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=checkout(python), capture_output=True, text=True
        ).stdout.strip()
        for which, python in (("old", args.old), ("new", args.new))
    }
    measure.report(rows, {"commits": commits, "samples": samples})


if __name__ == "__main__":
    main()
