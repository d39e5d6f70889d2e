"""Makes transformers sample from a generator of our own instead of torch's global one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ipex_assist.speculative.options import SamplingOptions


class SeededDraws(TorchFunctionMode):
    """A context in which transformers samples tokens with `generator`; it holds for the thread that enters it.

    It redirects torch.multinomial, and torch.rand_like, which accepts drafted tokens. So generating does not advance
    torch's global generator, which belongs to the caller, and the caller's use of that does not change the output.
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
        """Call `func`, a torch function, with our generator where it draws random numbers."""
        told = dict(kwargs or {})
        if func is torch.multinomial or func is torch.Tensor.multinomial:
            told["generator"] = self.generator
        elif func is torch.rand_like:
            like = args[0] if args else told.pop("input")
            told = {"dtype": like.dtype, "device": like.device, **told, "generator": self.generator}
            return torch.rand(like.shape, **told)
        return func(*args, **told)


def draws_of(sampling: SamplingOptions) -> AbstractContextManager[object]:
    """The context to generate in: SeededDraws by the seed; a null context without a seed, or for greedy decoding."""
    if not sampling.draws or sampling.seed is None:
        return nullcontext()
    return SeededDraws(torch.Generator().manual_seed(sampling.seed))
