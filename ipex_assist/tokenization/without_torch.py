"""Keeps torch out of a process that only tokenizes, which saves seconds at start."""

from __future__ import annotations

import os
import sys

_NO_ADVICE = "TRANSFORMERS_NO_ADVISORY_WARNINGS"


def leave_torch_out() -> None:
    """Import transformers as if torch were not installed; from here on nothing in this process can import torch.

    transformers imports torch if it is installed: 4.x at once, 5.x with AutoTokenizer. Tokenizers need it only to
    return tensors. None in sys.modules makes an import fail (docs.python.org, "The module cache"). This cannot be
    undone, so it is for programs, not libraries. Does nothing if torch has been imported already.
    """
    if "torch" in sys.modules:
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    said = os.environ.get(_NO_ADVICE)
    os.environ[_NO_ADVICE] = "1"  # it would advise to install torch
    try:
        import transformers  # noqa: F401
    finally:
        if said is None:
            del os.environ[_NO_ADVICE]
        else:
            os.environ[_NO_ADVICE] = said
