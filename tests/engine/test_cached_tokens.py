"""How many tokens of a prompt the prefix cache had is told with each result."""

from __future__ import annotations

from pathlib import Path

import checkpoint_files
import pytest

import ipex_assist
from ipex_assist.native import library

pytestmark = pytest.mark.one_stack


@pytest.mark.skipif(library.unavailable() is not None, reason="the prefix cache needs the native core")
def test_ten_turns_read_what_is_new(tmp_path: Path) -> None:
    """A conversation grows by each answer and a question; a turn reads those alone, as an agent's client relies on."""
    folder = checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path)
    model = ipex_assist.load(str(folder), "none", precision="fp32", executor="native")
    prompt = [*range(7, 27)]  # shorter ones are not kept
    known = 0
    for turn in range(10):
        result = model.generate(prompt, max_new_tokens=4, ignore_eos=True)
        assert result.prompt_tokens == len(prompt)
        # The last token of an answer was chosen, and not read.
        assert result.cached_tokens == known, f"turn {turn}"
        known = len(prompt) + 3
        prompt = [*prompt, *result.tokens, 40 + turn, 50, 60]
    assert model.generate([200, *prompt], max_new_tokens=2).cached_tokens == 0
