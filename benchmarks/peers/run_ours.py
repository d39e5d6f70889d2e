"""One turn of ipex-assist on its native core; the adaptive schedule is the default, as for every user."""

from __future__ import annotations

from typing import Any

import turn

import ipex_assist
from ipex_assist.commands.load import leave_cores_to_native


def load(settings: dict[str, Any]) -> turn.Generate:
    model: Any = ipex_assist.load(
        settings["target"],
        settings["assistant"],
        precision=settings["precision"],
        assistant_precision=settings["draft_precision"],
        executor="native",
        offline=True,
    )
    leave_cores_to_native()

    def generate(new_tokens: int, clock: turn.Clock) -> None:
        assisted = settings["assistant"] is not None
        generation = model.stream(settings["prompt"], max_new_tokens=new_tokens, assisted=assisted, ignore_eos=True)
        for chunk in generation:
            clock.add(chunk.tokens)

    return generate


if __name__ == "__main__":
    turn.main(load, ("ipex-assist", "torch", "transformers"))
