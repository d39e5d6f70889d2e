"""Assisted generation for Hugging Face LLMs on Intel Xeon.

    import ipex_assist

    model = ipex_assist.load("facebook/opt-13b", assistant="facebook/opt-125m")
    print(model.generate("Once upon a time").text)

Importing this package imports neither torch nor transformers; `load` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipex_assist.version import __version__

if TYPE_CHECKING:
    from ipex_assist.api import load
    from ipex_assist.env.errors import IpexAssistError, UsageError
    from ipex_assist.generation.assisted_model import AssistedModel
    from ipex_assist.generation.load_options import LoadOptions
    from ipex_assist.generation.result import Chunk, Result
    from ipex_assist.generation.stream import Generation
    from ipex_assist.generation.text_model import TextModel
    from ipex_assist.quantization.precision import Precision
    from ipex_assist.speculative.choosing.grammar import GrammarSpec
    from ipex_assist.speculative.options import GenerationOptions

__all__ = [
    "AssistedModel",
    "Chunk",
    "Generation",
    "GenerationOptions",
    "GrammarSpec",
    "IpexAssistError",
    "LoadOptions",
    "Precision",
    "Result",
    "TextModel",
    "UsageError",
    "__version__",
    "load",
]

_HOMES = {
    "AssistedModel": "generation.assisted_model",
    "load": "api",
    "Chunk": "generation.result",
    "Generation": "generation.stream",
    "GenerationOptions": "speculative.options",
    "GrammarSpec": "speculative.choosing.grammar",
    "IpexAssistError": "env.errors",
    "LoadOptions": "generation.load_options",
    "Precision": "quantization.precision",
    "Result": "generation.result",
    "TextModel": "generation.text_model",
    "UsageError": "env.errors",
}


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
