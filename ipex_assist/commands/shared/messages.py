"""Keeps what libraries print off the user's terminal, unless something goes wrong."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator

from ipex_assist.env.phase_display import show_phases


def configure_messages(verbose: bool, form: str = "ipex-assist: %(message)s", *, progress: bool = True) -> None:
    """Messages of ours to standard error; those of libraries only if `verbose`.

    form: of a line. progress: show phases of loading, and on a terminal the hub's bars.
    """
    logging.basicConfig(format=form, level=logging.ERROR, stream=sys.stderr)
    logging.getLogger("ipex_assist").setLevel(logging.INFO if verbose else logging.WARNING)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not verbose:
        bars = progress and sys.stderr is not None and sys.stderr.isatty()
        warnings.filterwarnings("ignore")
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "0" if bars else "1")
    if progress:
        show_phases()


@contextlib.contextmanager
def quiet_stderr(enabled: bool = True) -> Iterator[None]:
    """Hold back standard error, C code's too; an exception lets it all out.

    IPEX and torch write through C++ streams and loggers of their own, out of reach of Python's warnings filter.
    """
    if not enabled:
        yield
        return
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            sys.stderr.flush()
            os.dup2(saved, 2)
            held.seek(0)
            os.write(2, held.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
