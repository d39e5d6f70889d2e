"""Writes down what a draft says at every place of some texts: draft lengths can then be compared without a clock.

    python tests/speculative/record_drafts.py --target FOLDER --assistant FOLDER|self \
        --output tests/speculative/recorded_drafts.json

Greedy text is the same whatever is drafted, and a draft depends on the text before it alone: with the number of right
tokens and the draft's confidence at each place, every schedule's rounds follow, and with the costs of passes its time.
"""

from __future__ import annotations

import argparse
import json
import string
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # what the benchmarks share

import draft_prompts
import measure

import ipex_assist
from ipex_assist.speculative.choosing.sampling import Sampling
from ipex_assist.speculative.costs.acceptance import bin_of
from ipex_assist.speculative.schedule import LONGEST_DRAFT
from ipex_assist.speculative.sources.assistant_model import AssistantModel
from ipex_assist.tokenization.tokenizer import encode_prompt


def record(model: Any, prompt: str, new_tokens: int) -> dict[str, Any]:
    """Return for each place behind the first token: right tokens (a hexadecimal digit), a letter a drafted token."""
    ids = encode_prompt(model.tokenizer, prompt, chat=True)
    result = model.generate(prompt, chat=True, max_new_tokens=new_tokens, assisted=False)
    text = [*ids, *result.tokens]
    source = AssistantModel(
        model.assistant,
        Sampling(),
        model.target.spec.vocab_size,
        capacity=len(text) + LONGEST_DRAFT,
    )
    right, confidence = "", []
    for at in range(len(ids) + 1, len(text)):
        proposal = source.propose(text[:at], LONGEST_DRAFT)
        source.accept(0)
        pairs = list(zip(proposal.tokens, text[at:], strict=False))
        right += f"{next((i for i, (drafted, true) in enumerate(pairs) if drafted != true), len(pairs)):x}"
        confidence.append("".join(string.ascii_lowercase[bin_of(value)] for value in proposal.confidence))
    return {"prompt_tokens": len(ids), "new_tokens": len(result.tokens), "right": right, "confidence": confidence}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--assistant", required=True)
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--assistant-precision", default="int4")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    model = ipex_assist.load(
        args.target,
        assistant=args.assistant,
        precision=args.precision,
        assistant_precision=args.assistant_precision,
        executor=args.executor,
    )
    texts = {}
    for name, prompt in draft_prompts.PROMPTS.items():
        texts[name] = record(model, prompt, args.max_new_tokens)
        print(name, texts[name]["new_tokens"], flush=True)
    names = {"precision": args.precision, "assistant_precision": args.assistant_precision}
    args.output.write_text(json.dumps({"machine": measure.machine(), **names, "texts": texts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
