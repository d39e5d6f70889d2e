"""What an instance of the benchmark counts: bytes that a round reads, and memory by node."""

from __future__ import annotations

from pathlib import Path

import checkpoint_files
import multi_socket_instance as instance
import pytest
from conftest import HAS_NATIVE

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.traffic import Traffic, traffic_of
from ipex_assist.speculative.round import Round

pytestmark = pytest.mark.one_stack


def test_a_round_reads_the_target_once_and_the_assistant_for_every_drafted_token() -> None:
    """Counting tokens instead of passes would have assisted decoding read more than there is."""
    target, assistant = Traffic(1000, 10), Traffic(100, 1)
    assert instance.bytes_of(Round([1], prompt=True), 20, target, assistant) == 0
    assert instance.bytes_of(Round([1]), 20, target, None) == 1200
    assert instance.bytes_of(Round([1, 2, 3], drafted=4, accepted=2), 20, target, assistant) == 1200 + 4 * 120


@pytest.mark.skipif(not HAS_NATIVE, reason="the native core is not built here")
@pytest.mark.parametrize(("precision", "size"), [("fp32", 4.0), ("bf16", 2.0), ("int8", 1.0), ("int4", 0.5 + 4 / 64)])
@pytest.mark.parametrize("tied", [False, True])
def test_traffic_is_that_of_the_linears(tmp_path: Path, precision: str, size: float, tied: bool) -> None:
    """The embedding table, half of this model, is in memory and is not read: it would double the GB/s of a pass."""
    model = checkpoint_files.tiny_model(
        "llama", vocab_size=4096, hidden_size=256, intermediate_size=512, tie_word_embeddings=tied
    )
    checkpoint_files.save(model, tmp_path, tokenizer=False)
    ours = load_model(LoadRequest(open_checkpoint(str(tmp_path)), precision, "native"))
    linears = 4096 * 256 + 2 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 256 * 512)
    assert traffic_of(ours, precision).weight_bytes == pytest.approx(linears * size, rel=0.1)


def test_resident_memory_by_node() -> None:
    """Huge pages count with their size, and names of files are not taken for nodes."""
    lines = [
        "7f0000000000 bind:0 anon=3 dirty=3 active=0 N0=2 N1=1 kernelpagesize_kB=4",
        "7f0000200000 bind:0 anon=2 dirty=2 N1=2 kernelpagesize_kB=2048",
        "7f0000300000 default file=/tmp/N=9 mapped=1 N0=1 kernelpagesize_kB=4",
        "7f0000400000 default stack",
    ]
    assert instance.memory_by_node(lines) == {0: 3 * 4096, 1: 4096 + 2 * (2 << 20)}
