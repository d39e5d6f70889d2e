"""A LoRA adapter's packed matrices in the native core."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.native.library import last_error

if TYPE_CHECKING:
    import torch

    from ipex_assist.native.model import PackedModel


class PackedAdapter:
    """An adapter of a packed model. Freed with the object, which must outlive the passes that use it."""

    def __init__(self, model: PackedModel) -> None:
        self.model, self.library = model, model.library
        self.handle = self.library.ia_adapter_new(model.handle)
        if not self.handle:
            raise IpexAssistError(f"the native core failed: {last_error()}")

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.library.ia_adapter_delete(self.handle)

    @property
    def nbytes(self) -> int:
        """Bytes of its matrices."""
        return int(self.library.ia_adapter_bytes(self.handle))

    def pack(self, name: str, a: torch.Tensor, b: torch.Tensor, scale: float) -> None:
        """Add scale · b · a to one of our weights: a (rank, in) and b (out, rank), contiguous and in fp32."""
        status = self.library.ia_adapter_pack(
            *(self.handle, self.model.pool.handle, name.encode(), a.data_ptr(), b.data_ptr()),
            *(a.shape[0], b.shape[0], a.shape[1], ctypes.c_float(scale)),
        )
        self.model.check(status)
        if status:
            raise IpexAssistError(f"{name} takes no adapter of {b.shape[0]} × {a.shape[1]}")
