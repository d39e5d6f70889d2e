"""Adapters in requests, and bodies and answers of /lora-adapters, by llama-server's names."""

from __future__ import annotations

from typing import Literal, Protocol

from ipex_assist.serve.protocol.common import AdapterScale, ResponseBody


class AdapterFields(Protocol):
    """A body that says which adapter its text has: the model's name, or `lora`, which comes before it."""

    @property
    def model(self) -> str | None:
        """Of the model, or of an adapter."""
        ...

    @property
    def lora(self) -> list[AdapterScale] | None:
        """At most one whose scale is not 0."""
        ...


class LoadedAdapter(ResponseBody):
    """An adapter of the server. scale: of requests that name it as their model."""

    id: int
    path: str
    scale: float


class Success(ResponseBody):
    """That something was done."""

    success: Literal[True] = True
