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
    from ipex_assist.generation.assisted_model import AssistedModel
    from ipex_assist.generation.result import Chunk, Result
    from ipex_assist.generation.stream import Generation
    from ipex_assist.speculative.grammar import GrammarSpec

__all__ = ["AssistedModel", "Chunk", "Generation", "GrammarSpec", "Result", "__version__", "load"]

_HOMES = {
    "AssistedModel": "generation.assisted_model",
    "load": "api",
    "Chunk": "generation.result",
    "Generation": "generation.stream",
    "GrammarSpec": "speculative.grammar",
    "Result": "generation.result",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
