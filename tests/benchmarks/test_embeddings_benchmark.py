"""embeddings.py on a tiny model: both sides must compute the same vectors, or their speeds say nothing."""

from __future__ import annotations

import json

import embeddings
import pytest
from conftest import HAS_NATIVE

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
pytestmark = [
    pytest.mark.alone,
    pytest.mark.one_stack,
    pytest.mark.skipif(not HAS_NATIVE, reason="it times the native core"),
]


def test_both_compute_the_same(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Vectors of other tokens, of padding, or in the order of lengths."""
    for name, size in (SIZES | {"vocab_size": 1000}).items():
        monkeypatch.setitem(embeddings.SHAPE, name, size)
    embeddings.main(["--layers", "2", "--texts", "40", "--lengths", "3,20", "--repeats", "1"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [each["length"] for each in result["results"]] == [3, 20]
    for each in result["results"]:
        assert each["cosine"] > 0.999
        assert each["ratio"] == pytest.approx(each["ours"]["median"] / each["transformers"]["median"])
