"""One turn of transformers: its generate, with assistant_model where there is one, in bf16."""

from __future__ import annotations

from typing import Any

import torch
import turn
from transformers import AutoModelForCausalLM


class Streamer:
    """Tells the clock what generate puts out; the first thing it puts is the prompt."""

    def __init__(self, clock: turn.Clock) -> None:
        self.clock, self.prompt = clock, True

    def put(self, value: torch.Tensor) -> None:
        if not self.prompt:
            self.clock.add(value.flatten().tolist())
        self.prompt = False

    def end(self) -> None:
        pass


def load(settings: dict[str, Any]) -> turn.Generate:
    target, assistant = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval() if folder else None
        for folder in (settings["target"], settings["assistant"])
    )
    prompt = torch.tensor([settings["prompt"]])
    for model in filter(None, (target, assistant)):
        # No end of text, and none of the checkpoint's sampling and penalties: the argmax alone.
        model.generation_config = type(model.generation_config)(pad_token_id=0, do_sample=False)

    def generate(new_tokens: int, clock: turn.Clock) -> None:
        with torch.inference_mode():
            target.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=new_tokens,
                streamer=Streamer(clock),
                **({"assistant_model": assistant} if assistant is not None else {}),
            )

    return generate


if __name__ == "__main__":
    turn.main(load, ("torch", "transformers"))
