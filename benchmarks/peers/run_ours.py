"""One turn of ipex-assist on its native core; the adaptive schedule is the default, as for every user."""

from __future__ import annotations

from typing import Any

import turn

import ipex_assist
from ipex_assist.commands.shared.load import leave_cores_to_native
from ipex_assist.speculative.options import GenerationOptions


def model_of(settings: dict[str, Any]) -> Any:
    """Return the pair as its users load it."""
    model = ipex_assist.load(
        settings["target"],
        settings["assistant"],
        precision=settings["precision"],
        assistant_precision=settings["draft_precision"],
        executor="native",
        offline=True,
    )
    leave_cores_to_native()
    return model


def load(settings: dict[str, Any]) -> turn.Generate:
    model = model_of(settings)
    assisted = settings["assistant"] is not None

    def generate(new_tokens: int, clock: turn.Clock) -> None:
        engine = model.engine()  # a new one, which remembers no prompt
        options = GenerationOptions.of(max_new_tokens=new_tokens, assisted=assisted, ignore_eos=True)
        for chunk in engine.submit(settings["prompt"], options):
            clock.add(chunk.tokens)
        engine.close()

    return generate


def load_many(settings: dict[str, Any]) -> turn.Serve:
    model, prompts = model_of(settings), settings["prompts"]
    assisted = settings["assistant"] is not None

    def serve(new_tokens: int, load: turn.Load) -> None:
        engine = model.engine()  # a new one, which remembers no prompt
        options = GenerationOptions.of(
            max_new_tokens=new_tokens, assisted=assisted, ignore_eos=True, streamed=False
        )  # as in `ipex-assist batch`
        handles = dict(enumerate(engine.submit(prompt, options) for prompt in prompts))
        while handles:
            engine.step()
            for number, handle in list(handles.items()):
                while handle.has_round:
                    load.add(number, next(handle).tokens)
                if handle.ended:
                    next(handles.pop(number), None)  # raises what it failed by
        load.passes = engine.stats.passes
        engine.close()

    return serve


if __name__ == "__main__":
    turn.main(load, ("ipex-assist", "torch", "transformers"), load_many)
