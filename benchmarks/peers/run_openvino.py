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


def load(settings: dict[str, Any]) -> turn.Generate:
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False  # the warm-up has the same prompt
    options: dict[str, Any] = {"INFERENCE_NUM_THREADS": settings["threads"], "scheduler_config": scheduler}
    if settings["assistant"]:
        options["draft_model"] = genai.draft_model(
            settings["assistant"], "CPU", INFERENCE_NUM_THREADS=settings["threads"]
        )
    pipeline = genai.LLMPipeline(settings["target"], "CPU", **options)
    prompt = ov.Tensor(np.array([settings["prompt"]], dtype=np.int64))

    def generate(new_tokens: int, clock: turn.Clock) -> None:
        config = genai.GenerationConfig(max_new_tokens=new_tokens, do_sample=False, ignore_eos=True)
        if settings["assistant"]:
            config.num_assistant_tokens = settings["num_assistant_tokens"]
        pipeline.generate(prompt, config, Streamer(clock))

    return generate


if __name__ == "__main__":
    turn.main(load, ("openvino-genai", "openvino", "optimum-intel", "nncf"))
