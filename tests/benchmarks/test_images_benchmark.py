"""images.py on a tiny model: both programs get the same prompts, and what is timed is there."""

from __future__ import annotations

import json
from typing import Any

import images
import pytest
from conftest import HAS_NATIVE, HAS_SERVE

ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
TEXT: dict[str, Any] = {
    **{"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
    "rope_parameters": ROPE,
}
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}
pytestmark = [
    pytest.mark.alone,
    pytest.mark.one_stack,
    pytest.mark.skipif(not (HAS_NATIVE and HAS_SERVE), reason="it times a server of the native core"),
]


def test_both_read_the_same(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An image of other rows for one of them would make its time say nothing."""
    for shape, fields in ((images.TEXT, TEXT), (images.VISION, VISION)):
        for name, value in fields.items():
            monkeypatch.setitem(shape, name, value)
    assert images.run(images.parse(["--layers", "4", "--size", "288x256", "--repeats", "1"])) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    ours, theirs = result["table"]
    assert ours["prompt tokens"] == theirs["prompt tokens"] > 9 * 8
    assert all(min(each["tower"] + each["first"]) > 0 for each in result["results"].values())
    assert all(len(each) == 1 for each in result["gaps_ms"].values())


def test_pages_differ() -> None:
    """Else the second one would come from the prefix cache."""
    assert len({images.page(128, 96, number) for number in range(4)}) == 4
