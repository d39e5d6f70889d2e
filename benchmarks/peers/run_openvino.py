"""One turn of OpenVINO GenAI on converted models, with draft_model where there is one."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
import turn


class Streamer(genai.StreamerBase):
    """Tells the clock what comes; assisted decoding writes several tokens at once."""

    def __init__(self, clock: turn.Clock) -> None:
        super().__init__()
        self.clock = clock

    def write(self, tokens: int | list[int]) -> genai.StreamingStatus:
        self.clock.add([tokens] if isinstance(tokens, int) else list(tokens))
        return genai.StreamingStatus.RUNNING

    def end(self) -> None:
        pass


def options_of(settings: dict[str, Any]) -> tuple[genai.SchedulerConfig, dict[str, Any]]:
    """Return how batches are made up, and the other options of a pipeline."""
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False  # the warm-up has the same prompt
    options: dict[str, Any] = {"INFERENCE_NUM_THREADS": settings["threads"]}
    if settings["assistant"]:
        options["draft_model"] = genai.draft_model(
            settings["assistant"], "CPU", INFERENCE_NUM_THREADS=settings["threads"]
        )
    return scheduler, options


def config_of(settings: dict[str, Any], new_tokens: int) -> genai.GenerationConfig:
    """Greedy, of exactly so many tokens."""
    config = genai.GenerationConfig(max_new_tokens=new_tokens, do_sample=False, ignore_eos=True)
    if settings["assistant"]:
        config.num_assistant_tokens = settings["num_assistant_tokens"]
    return config


def load(settings: dict[str, Any]) -> turn.Generate:
    scheduler, options = options_of(settings)
    pipeline = genai.LLMPipeline(settings["target"], "CPU", scheduler_config=scheduler, **options)
    prompt = ov.Tensor(np.array([settings["prompt"]], dtype=np.int64))

    def generate(new_tokens: int, clock: turn.Clock) -> None:
        pipeline.generate(prompt, config_of(settings, new_tokens), Streamer(clock))

    return generate


def load_many(settings: dict[str, Any]) -> turn.Serve:
    scheduler, options = options_of(settings)
    pipeline = genai.ContinuousBatchingPipeline(settings["target"], scheduler, "CPU", options)
    prompts = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in settings["prompts"]]
    numbers = iter(range(1 << 30))

    def serve(new_tokens: int, load: turn.Load) -> None:
        config = config_of(settings, new_tokens)
        handles = [pipeline.add_request(next(numbers), prompt, config) for prompt in prompts]
        load.passes = 0
        while pipeline.has_non_finished_requests():
            pipeline.step()
            load.passes += 1
            for number, handle in enumerate(handles):
                while handle.can_read():
                    for output in handle.read().values():
                        load.add(number, list(output.generated_ids))

    return serve


if __name__ == "__main__":
    turn.main(load, ("openvino-genai", "openvino", "optimum-intel", "nncf"), load_many)
