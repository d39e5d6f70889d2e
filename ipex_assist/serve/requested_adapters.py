"""Which LoRA adapter a request's text has, and with what scale."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ipex_assist.serve.errors import ApiError
from ipex_assist.serve.protocol.adapters import AdapterFields
from ipex_assist.serve.protocol.common import AdapterScale
from ipex_assist.speculative.options import GenerationOptions


class RequestedAdapters:
    """The adapters of a served model."""

    def __init__(self, folders: Callable[[], Mapping[str, str]], model_names: Callable[[], Sequence[str]]) -> None:
        """folders: by the adapters' names. model_names: of the model itself, which come before an adapter's."""
        self._folders, self._model_names = folders, model_names
        self._scales: dict[str, float] = {}  # of requests that name an adapter as their model, where not 1

    @property
    def folders(self) -> Mapping[str, str]:
        """By the adapters' names. Raises NotReady before the model is loaded."""
        return self._folders()

    def scale(self, name: str) -> float:
        """Of requests that name this adapter as their model; POST /lora-adapters sets it."""
        return self._scales.get(name, 1.0)

    def named(self, model: str | None) -> str | None:
        """The adapter that a model's name stands for; None for the model itself."""
        return model if model in self.folders and model not in self._model_names() else None

    def apply(self, options: GenerationOptions, body: AdapterFields) -> GenerationOptions:
        """The options of a request with its adapter: by the model's name, or what its `lora` says. Raises ApiError."""
        chosen = self.named(body.model)
        scale = 0.0 if chosen is None else self.scale(chosen)
        if body.lora is not None:
            chosen, scale = self._only(body.lora)
        if chosen is None or scale == 0:
            return replace(options, lora=None)
        return replace(options, lora=chosen, lora_scale=scale)

    def set_scales(self, given: Iterable[AdapterScale]) -> None:
        """Set the scales of requests to come; an adapter that is not listed gets 0. Raises ApiError."""
        scales = {self._numbered(each.id): each.scale for each in given}
        self._scales = {name: scales.get(name, 0.0) for name in self.folders}

    def _only(self, scales: Sequence[AdapterScale]) -> tuple[str | None, float]:
        """The adapter of a list that has one whose scale is not 0, or none."""
        found = [(self._numbered(each.id), each.scale) for each in scales]
        used = [each for each in found if each[1] != 0]
        if len(used) > 1:
            raise ApiError(400, f"lora: {len(used)} adapters at once, and a text has one here", param="lora")
        return used[0] if used else (None, 0.0)

    def _numbered(self, number: int) -> str:
        """The name of an adapter by its number. Raises 400 where there is none."""
        adapters = list(self.folders)
        if number >= len(adapters):
            raise ApiError(400, f"lora: there is no adapter {number}; there are {len(adapters)}", param="lora")
        return adapters[number]
