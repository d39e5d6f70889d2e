"""Tokenizers in a process that needs no torch: they are the same without it, and there seconds sooner."""

from __future__ import annotations

import os
import sys

_NO_ADVICE = "TRANSFORMERS_NO_ADVISORY_WARNINGS"


def leave_torch_out() -> None:
    """Import transformers as if torch were not installed; from here on nothing in this process can import torch.

    transformers imports torch wherever there is one: 4.x at once, 5.x with AutoTokenizer. No tokenizer asks it for
    anything but tensors as its output. None in sys.modules is Python's own way of saying that a module is not to be had
    (docs.python.org, "The module cache"). There is no way back, so this is for programs. Where torch has been imported
    already nothing happens.
    """
    if "torch" in sys.modules:
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    said = os.environ.get(_NO_ADVICE)
    os.environ[_NO_ADVICE] = "1"  # which would be to install torch
    try:
        import transformers  # noqa: F401
    finally:
        if said is None:
            del os.environ[_NO_ADVICE]
        else:
            os.environ[_NO_ADVICE] = said
