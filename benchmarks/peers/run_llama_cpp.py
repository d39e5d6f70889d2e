"""One turn of llama.cpp: its own programs, for plain and for draft-model decoding, which report their own times."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import turn

# llama-completion times passes after the prompt's; llama-speculative-simple times everything after the prompt.
PLAIN = re.compile(r"\beval time =\s*([\d.]+) ms /\s*(\d+) runs")
PROMPT = re.compile(r"prompt eval time =\s*([\d.]+) ms /\s*(\d+) tokens")
ASSISTED = re.compile(r"decoded\s+(\d+) tokens in\s+([\d.]+) seconds")
ENCODED = re.compile(r"encoded\s+(\d+) tokens in\s+([\d.]+) seconds")
ACCEPTED = re.compile(r"n_accept\s*=\s*(\d+)")


def command(settings: Mapping[str, Any], prompt_file: str) -> list[str]:
    """Return the program and its arguments."""
    program = "llama-speculative-simple" if settings["assistant"] else "llama-completion"
    argv = [
        str(Path(settings["programs"]) / program),
        # A binary file is read as it is; of a text file the last newline is dropped.
        *("-m", settings["target"], "-bf", prompt_file, "-n", str(settings["new_tokens"])),
        *("-t", str(settings["threads"]), "-c", str(len(settings["prompt"]) + settings["new_tokens"] + 64)),
        *("--temp", "0", "--ignore-eos", "--no-escape", "--perf"),
    ]
    if settings["assistant"]:
        draft = ["-md", settings["assistant"], "--spec-type", "draft-simple"]
        return [*argv, *draft, "--spec-draft-n-max", str(settings["num_assistant_tokens"])]
    return [*argv, "--no-conversation", "--no-display-prompt"]


def figures(said: str, assisted: bool, prompt_tokens: int) -> dict[str, Any]:
    """Return what the program reported. Raises ValueError where it reported no speed, or read another prompt."""
    decoded, prompt = (ASSISTED, ENCODED) if assisted else (PLAIN, PROMPT)
    spoken, encoded = decoded.findall(said), prompt.findall(said)
    if not spoken or not encoded:
        raise ValueError("no times in what llama.cpp printed")
    if assisted:
        tokens, seconds = int(spoken[-1][0]), float(spoken[-1][1])
        read, first = int(encoded[-1][0]), float(encoded[-1][1])
        accepted = int(ACCEPTED.findall(said)[-1])
        found: dict[str, Any] = {"tokens": tokens, "passes": tokens - accepted}
    else:
        # The times of a pass over the prompt begin with "prompt", and the pattern of the others finds those too.
        milliseconds, runs = spoken[-1]
        tokens, seconds = int(runs), float(milliseconds) / 1000
        read, first = int(encoded[-1][1]), float(encoded[-1][0]) / 1000
        found = {"tokens": tokens + 1, "passes": tokens + 1}
    if read != prompt_tokens:
        raise ValueError(f"llama.cpp read {read} tokens of prompt, the others read {prompt_tokens}")
    return {**found, "seconds": first + seconds, "first_token_s": first, "tokens_per_s": tokens / seconds}


def main() -> None:
    settings, answer = turn.settings_and_answer()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(settings["text"])
        file.flush()
        done = subprocess.run(
            command(settings, file.name), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    said = done.stdout + done.stderr
    print(said)
    if done.returncode:
        raise SystemExit(f"llama.cpp ended with {done.returncode}")
    answer({**figures(said, bool(settings["assistant"]), len(settings["prompt"])), "versions": settings["versions"]})


if __name__ == "__main__":
    main()
