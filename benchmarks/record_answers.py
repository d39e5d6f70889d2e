"""Writes down what a model answers to a coding agent's prompts (agent_turns.py), for suffix_drafts.py.

    python benchmarks/record_answers.py -m MODEL [--assistant-model ID] [--sessions N] [-o FILE]

Greedy, so that the same model in the same precision answers the same; about N × 3 answers of at most 400 tokens.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import agent_turns

import ipex_assist

HERE = Path(__file__).parent
LONGEST = 400  # tokens of an answer


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--assistant-model", default="lookup")
    parser.add_argument("--precision", default="int4")
    parser.add_argument("--sessions", type=int, default=36, help="commits, of which those of one short file are taken")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "agent_answers.json")
    args = parser.parse_args()
    model = ipex_assist.load(args.model, args.assistant_model, precision=args.precision, assistant_precision="int4")
    answers: dict[str, list[str]] = {}

    def answer(session: int, prompt: str) -> str:
        found = model.generate(prompt, max_new_tokens=LONGEST)
        answers.setdefault(str(session), []).append(found.text)
        print(f"{session}: {found.prompt_tokens} + {found.new_tokens} tokens", flush=True)
        stored = {"model": Path(args.model).name, "precision": args.precision, "sessions": args.sessions}
        args.output.write_text(json.dumps({**stored, "answers": answers}, indent=1) + "\n", encoding="utf-8")
        return found.text

    for _ in agent_turns.answered_turns(args.sessions, answer):
        pass
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
