"""Random numbers of a library that asks torch's global generator, drawn from a generator of one text instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ipex_assist.speculative.options import SamplingOptions


class SeededDraws(TorchFunctionMode):
    """While it is entered, in the thread that entered it alone, what transformers draws tokens by uses `generator`.

    That is torch.multinomial, and torch.rand_like for accepting drafted tokens. Neither takes numbers from torch's
    global generator then, which belongs to the caller, nor does what the caller draws meanwhile change a text.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call `func`, a function of torch, with our generator where it draws."""
        told = dict(kwargs or {})
        if func is torch.multinomial or func is torch.Tensor.multinomial:
            told["generator"] = self.generator
        elif func is torch.rand_like:
            like = args[0] if args else told.pop("input")
            told = {"dtype": like.dtype, "device": like.device, **told, "generator": self.generator}
            return torch.rand(like.shape, **told)
        return func(*args, **told)


def draws_of(sampling: SamplingOptions) -> AbstractContextManager[object]:
    """What a text's tokens are drawn in: random numbers by its seed, and nothing where it has none or does not draw."""
    if not sampling.draws or sampling.seed is None:
        return nullcontext()
    return SeededDraws(torch.Generator().manual_seed(sampling.seed))
