"""Decode speed of a pair, plain and assisted, beside transformers' own plain and assisted generation.

All contenders live in one process and take turns, so that a change of the machine's speed meets them alike. Speed is
tokens after the first ÷ seconds after the first.

    ipex-launch -- python benchmarks/assisted.py --target FOLDER --assistant FOLDER [--executor ipex] [--rival]

The rival is transformers, with `ipex.optimize` on its models when the executor is ipex.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import measure

import ipex_assist
from ipex_assist.commands.shared.load import leave_cores_to_native

PROMPT = "Write a quick-sort implementation in Python."


def ours(model: Any, args: argparse.Namespace, assisted: bool) -> tuple[float, list[int], dict[str, Any]]:
    """Tokens per second, tokens, and how the draft did."""
    result = model.generate(
        args.prompt,
        chat=True,
        max_new_tokens=args.max_new_tokens,
        assisted=assisted,
        num_assistant_tokens=args.num_assistant_tokens,
    )
    assert result.tokens_per_s is not None
    return result.tokens_per_s, result.tokens, vars(result.draft)


def transformers_contenders(args: argparse.Namespace, executor: str) -> dict[str, Callable[[], Any]]:
    """transformers' generate, plain and assisted, in bf16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.target)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": args.prompt}], tokenize=False, add_generation_prompt=True
    )
    inputs = tokenizer(text, add_special_tokens=False, return_tensors="pt")

    def load(folder: str) -> Any:
        model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.bfloat16).eval()
        if executor == "ipex":
            import intel_extension_for_pytorch as ipex

            model = ipex.optimize(model, dtype=torch.bfloat16, inplace=True)
        return model

    target = load(args.target)
    assistant = load(args.assistant) if args.assistant else None

    class Clock:
        """A streamer that notes when the first generated token came; generate puts the prompt first."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def put(self, value: Any) -> None:
            self.times.append(time.perf_counter())

        def end(self) -> None:
            pass

    def run(draft_model: Any) -> tuple[float, list[int], dict[str, Any]]:
        clock = Clock()
        with torch.inference_mode():
            out = target.generate(
                **inputs,
                max_new_tokens=args.max_new_tokens,
                do_sample=False,
                # An assisted streamer may bring several tokens at once; the first put after the prompt is the start.
                streamer=clock,
                **({"assistant_model": draft_model} if draft_model is not None else {}),
            )
        tokens = out[0, inputs["input_ids"].shape[1] :].tolist()
        return (len(tokens) - 1) / (time.perf_counter() - clock.times[1]), tokens, {}

    contenders: dict[str, Callable[[], Any]] = {"transformers plain": lambda: run(None)}
    if assistant is not None:
        contenders["transformers assisted"] = lambda: run(assistant)
    return contenders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--assistant")
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--assistant-precision")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--num-assistant-tokens", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rival", action="store_true", help="measure transformers in the same run")
    args = parser.parse_args()

    model: Any = ipex_assist.load(
        args.target,
        assistant=args.assistant,
        precision=args.precision,
        assistant_precision=args.assistant_precision,
        executor=args.executor,
    )
    leave_cores_to_native()
    contenders: dict[str, Callable[[], Any]] = {"plain": lambda: ours(model, args, False)}
    if args.assistant:
        contenders["assisted"] = lambda: ours(model, args, True)
    if args.rival:
        contenders |= transformers_contenders(args, model.identity.executor)

    samples: dict[str, list[float]] = {name: [] for name in contenders}
    outputs: dict[str, tuple[list[int], dict[str, Any]]] = {}
    for turn in range(args.repeats + 1):
        for name, run in contenders.items():
            speed, tokens, draft = run()
            if turn:  # the first turn warms up
                samples[name].append(speed)
            outputs[name] = (tokens, draft)

    plain = measure.summary(samples["plain"])["median"]
    rows, results = [], {}
    for name in contenders:
        figures, (tokens, draft) = measure.summary(samples[name]), outputs[name]
        results[name] = {
            "tokens_per_s": figures,
            "new_tokens": len(tokens),
            "equals_plain": tokens == outputs["plain"][0],
            "draft": draft,
        }
        rows.append(
            {
                "contender": name,
                "tokens/s": f"{figures['median']:.2f}",
                "spread": f"{figures['min']:.2f} to {figures['max']:.2f}",
                "÷ plain": f"{figures['median'] / plain:.2f}",
                "tokens = plain": tokens == outputs["plain"][0],
            }
        )
    measure.report(rows, {"executor": model.identity.executor, "precision": args.precision, "results": results})


if __name__ == "__main__":
    main()
