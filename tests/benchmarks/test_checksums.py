"""checksums.py on one tiny family: equal to itself, and every pattern notices a weight that has changed."""

from __future__ import annotations

import os
from pathlib import Path

import checksums
import checksums_models
import checksums_patterns
import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from native_models import pool
from safetensors.torch import load_file, save_file

from ipex_assist.native.library import unavailable

pytestmark = [
    pytest.mark.one_stack,
    pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or ""),
]
ONE = checksums_models.SETUPS["1 thread"]


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipex_assist.executors.native.loading.planned_pool", lambda: pool(1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "llama"
    tiny_models.save(made, "llama")
    return made


def change_a_weight(folder: Path) -> None:
    """One value of one matrix of the first layer; not so small that int8 rounds it away."""
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.v_proj.weight"][0, 0] += 0.5
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def test_equal_to_itself_and_no_other(folder: Path) -> None:
    """A checksum that forgets its rows, or holds an address or a time, would prove nothing."""
    before = checksums.checksums("llama", "int8", folder, ONE)
    assert set(before) == {*(pattern.__name__ for pattern in checksums_patterns.PATTERNS), "pair"}
    assert len(set(before.values())) == len(before)
    assert checksums.checksums("llama", "int8", folder, ONE) == before
    change_a_weight(folder)
    after = checksums.checksums("llama", "int8", folder, ONE)
    assert all(after[pattern] != checksum for pattern, checksum in before.items())


def test_what_a_model_cannot_have_is_said(folder: Path) -> None:
    """Else a precision that stopped working would only be absent."""
    assert checksums.checksums("llama", "mxfp4", folder, ONE) == {"load": "refused"}


@pytest.mark.parametrize(
    ("of_logits", "at"),
    [
        (torch.tensor([[0.0, -0.0]]), (0, 0)),
        (torch.tensor([[1.0, 2.0]]), (0, 1)),
    ],
)
def test_every_bit_counts(of_logits: torch.Tensor, at: tuple[int, int]) -> None:
    """The last bit of a number, and the sign of a zero."""
    other = of_logits.clone()
    other.view(torch.int32)[at] ^= 1 if of_logits[at] else -(1 << 31)
    first, second = checksums_patterns.Bits(), checksums_patterns.Bits()
    first.logits(of_logits)
    second.logits(other)
    assert first.hex() != second.hex()


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        ({"a": "1", "b": "2"}, 0, ""),
        ({"a": "1", "b": "3"}, 1, "differs: b (2 → 3)\n"),
        ({"a": "1"}, 1, "missing: b\n"),
        ({"a": "1", "b": "2", "c": "3"}, 0, "new, and compared with nothing: c\n"),
    ],
)
def test_comparison(found: dict[str, str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A difference, or something that did not run, must not end with 0."""
    parts = [{key: checksum} for key, checksum in found.items()]
    assert checksums.compare({"a": "1", "b": "2"}, parts) == code
    assert capsys.readouterr().out == f"{said}{2 - code} of 2 checksums are equal\n"


def test_nothing_compared_is_no_proof() -> None:
    """A filter that leaves no key, or other checkpoints; a family that is new is no obstacle."""
    assert checksums.compare({}, [{"a": "1"}]) == 1
    assert checksums.strangers({"llama": "1", "opt": "2"}, {"llama": "1", "opt": "3", "phi": "4"}) == ["opt"]


def test_memory_nodes_of_a_command(tmp_path: Path) -> None:
    """Each CPU has a folder of its own node, in the order of threads."""
    command = checksums.with_nodes(tmp_path, [3, 8])
    assert command[0] == "unshare"
    assert command[-1] == str(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["node0", "node1"]
    assert (tmp_path / "node1" / "cpu8").exists()


def test_a_recurrent_model_has_all_patterns(tmp_path: Path) -> None:
    """A pattern that truncates below the state, or forks below it, would end the run."""
    tiny_models.save(tmp_path / "lfm2", "lfm2")
    found = checksums.checksums("lfm2", "int8", tmp_path / "lfm2", ONE)
    assert {pattern.__name__ for pattern in checksums_patterns.PATTERNS} <= set(found)
