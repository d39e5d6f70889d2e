"""Checkpoints damaged anywhere: always our message, never a library's traceback, a hang or all of the memory."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import checkpoint_files
import gguf
import pytest

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.checkpoints.packed_size import estimate_bytes
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.tokenization import gguf_tokenizer
from ipex_assist.tokenization.tokenizer import load_tokenizer

pytestmark = pytest.mark.one_stack

CASES = 120


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Save the same tiny model as m.gguf, and in the folders safetensors/ and bin/."""
    folder = tmp_path_factory.mktemp("whole")
    model = checkpoint_files.tiny_model("llama")
    checkpoint_files.write_gguf(model, folder / "m.gguf", gguf.GGMLQuantizationType.Q8_0)
    for kind in ("safetensors", "bin"):
        checkpoint_files.save_shards(model, folder / kind, 1, kind)
    return folder


def _damaged(data: bytes, head: int, seed: int) -> Iterator[bytes]:
    """`data` cut short, and with a few bytes of its first `head` changed."""
    rng = random.Random(seed)
    for case in range(CASES):
        if case % 4 == 0:
            yield data[: rng.randrange(len(data))]
            continue
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 3, 10))):
            changed[rng.randrange(min(head, len(data)))] = rng.choice((0, 255, rng.randrange(256)))
        yield bytes(changed)


def _read_all(source: Path, tokenizer: bool) -> bool:
    """Whether the checkpoint could be read; anything but our own error goes through and fails the test."""
    estimate_bytes(str(source), "int4")
    try:
        checkpoint = open_checkpoint(str(source))
        for _ in checkpoint.tensors():
            pass
        if tokenizer:
            load_tokenizer(checkpoint)
    except IpexAssistError:
        return False
    return True


# The header, and of GGUF also the metadata before the token list alone: there most bytes matter.
@pytest.mark.parametrize(
    ("file", "head"),
    [("m.gguf", 700), ("m.gguf", 9000), ("safetensors/model.safetensors", 2000), ("bin/pytorch_model.bin", 1 << 30)],
)
def test_random_damage(whole, tmp_path, file, head):
    source = tmp_path / file.split("/")[0]
    if source.suffix != ".gguf":
        shutil.copytree(whole / file.split("/")[0], source)
    damaged = tmp_path / file
    failures = 0
    for content in _damaged((whole / file).read_bytes(), head, seed=7):
        damaged.write_bytes(content)
        failures += not _read_all(source, tokenizer=damaged.suffix == ".gguf")
    assert failures >= CASES // 4  # every cut is noticed


def _with_number(whole: Path, path: Path, key: bytes, value: int) -> Path:
    """m.gguf with another value at a 32-bit key."""
    data = (whole / "m.gguf").read_bytes()
    at = data.index(key) + len(key) + 4
    path.write_bytes(data[:at] + struct.pack("<I", value) + data[at + 4 :])
    return path


def test_a_huge_layer_count_is_not_believed(whole, tmp_path):
    """Would catch a name table built for four billion layers, which takes all memory."""
    with pytest.raises(IpexAssistError, match=r"4,294,967,295 layers by its metadata, but \d+ tensors"):
        open_checkpoint(str(_with_number(whole, tmp_path / "m.gguf", b"llama.block_count", 0xFFFFFFFF)))


@pytest.mark.parametrize("heads", [0, 3, 8])
def test_head_counts_that_do_not_fit(whole, tmp_path, heads):
    """Would catch q and k rows put into an order that belongs to other heads, which no later check could see."""
    path = _with_number(whole, tmp_path / "m.gguf", b"llama.attention.head_count", heads)
    with pytest.raises(IpexAssistError, match=r"blk\.0\.attn_q\.weight has shape \[64, 64\], but the metadata ask"):
        open_checkpoint(str(path))


def test_merges_that_are_not_in_the_vocabulary(tmp_path):
    """The tokenizers library panics on them, which no `except Exception` catches."""
    for merges in (["a b"], ["ab"], ["x a"]):
        path = checkpoint_files.write_vocabulary(
            tmp_path / "v.gguf", ["a", "b", "xa"], [1] * 3, merges=merges, pre="gpt-2"
        )
        with pytest.raises(IpexAssistError, match="its tokenizer is corrupt"):
            load_tokenizer(open_checkpoint(str(path)))


def test_an_error_beside_the_file_is_not_its_own(tmp_path, monkeypatch):
    """A folder that was gone made a tokenizer "corrupt"."""

    def gone(header):
        raise FileNotFoundError(2, "No such file or directory", "somewhere")

    path = checkpoint_files.write_vocabulary(tmp_path / "v.gguf", ["a", "b"], [1] * 2, pre="gpt-2")
    monkeypatch.setattr(gguf_tokenizer, "_build", gone)
    with pytest.raises(IpexAssistError, match=r"v\.gguf: its tokenizer cannot be built: .*somewhere"):
        load_tokenizer(open_checkpoint(str(path)))


def _header_of(path: Path, key: str, kind: int, value: bytes) -> Path:
    """A GGUF file without tensors, whose only metadata are `value` of GGUF's type `kind` at `key`."""
    name = key.encode()
    path.write_bytes(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, len(name)) + name + struct.pack("<I", kind) + value)
    return path


@pytest.mark.parametrize(
    ("key", "kind", "value", "message"),
    [
        ("a", 9, struct.pack("<IQ", 9, 1) * 5000 + struct.pack("<IQ", 4, 0), "RecursionError"),
        ("split.count", 9, struct.pack("<IQI", 4, 1, 7), r"split\.count is '\[7\]', not a count"),
        ("split.count", 4, struct.pack("<I", 2**31), r"is one of 2147483648 parts by its metadata, but is not named"),
        ("general.alignment", 8, struct.pack("<Q", 2) + b"ab", r"general\.alignment is 'ab', not a count"),
        ("general.alignment", 5, struct.pack("<i", -32), r"general\.alignment is '-32', not a count"),
    ],
    ids=["nested", "list", "parts", "text", "negative"],
)
def test_metadata_of_types_that_cannot_be(tmp_path, key, kind, value, message):
    """Arrays within arrays without end, and counts that are none, were RecursionError and TypeError to the user."""
    path = _header_of(tmp_path / "m-00001-of-00002.gguf", key, kind, value)
    with pytest.raises(IpexAssistError, match=message):
        open_checkpoint(str(path))
    assert estimate_bytes(str(path), "int4") is None
