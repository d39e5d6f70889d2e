"""The executors by name, in the order `auto` prefers them: precisions, whether each works here, how it loads."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ipex_assist.env.versions import install_command
from ipex_assist.quantization.precision import PRECISIONS

if TYPE_CHECKING:
    from ipex_assist.executors.interface import Model
    from ipex_assist.executors.load_request import LoadRequest

ExecutorName = Literal["auto", "native", "ipex", "torch"]


@dataclass(frozen=True)
class Executor:
    """One way to run a DecoderSpec. `unavailable` says why it does not work here, None where it does."""

    name: str
    precisions: tuple[str, ...]
    unavailable: Callable[[], str | None]
    load: Callable[[LoadRequest], Model]

    def available(self) -> bool:
        """Whether this executor works on this machine."""
        return self.unavailable() is None


# What an executor is made of is imported when it is used: IPEX alone takes seconds.


def _native_unavailable() -> str | None:
    from ipex_assist.native.library import unavailable

    return unavailable()


def _load_native(request: LoadRequest) -> Model:
    from ipex_assist.executors.native.loading import load_native

    return load_native(request)


def _ipex_unavailable() -> str | None:
    if importlib.util.find_spec("intel_extension_for_pytorch") is not None:
        return None
    return f"intel-extension-for-pytorch is not installed here: {install_command('ipex')}"


def _load_ipex(request: LoadRequest) -> Model:
    from ipex_assist.executors.torch.ipex_kernels import make_ipex_kernels
    from ipex_assist.executors.torch.loading import load_torch

    return load_torch(request, make_ipex_kernels(request.precision, request.group), "ipex")


def _load_torch(request: LoadRequest) -> Model:
    from ipex_assist.executors.torch.kernels import make_torch_kernels
    from ipex_assist.executors.torch.loading import load_torch

    return load_torch(request, make_torch_kernels(request.precision), "torch")


_QUANTIZING = ("bf16", "fp32", "int8", "int4")
EXECUTORS = {
    executor.name: executor
    for executor in (
        Executor("native", PRECISIONS, _native_unavailable, _load_native),
        Executor("ipex", _QUANTIZING, _ipex_unavailable, _load_ipex),
        Executor("torch", ("bf16", "fp32"), lambda: None, _load_torch),
    )
}
