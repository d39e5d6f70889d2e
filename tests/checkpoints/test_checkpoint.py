"""Checkpoints in folders and on the hub: what is read, in how much memory, and how bad input is refused."""

from __future__ import annotations

import os
from pathlib import Path

import checkpoint_files
import pytest
import torch
from safetensors.torch import save_file

from ipex_assist.checkpoints import hub as hub_module
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.checkpoints.packed_size import estimate_bytes, packed_bytes
from ipex_assist.checkpoints.safetensors_file import DTYPES
from ipex_assist.env.errors import IpexAssistError

FORMATS = [("safetensors", 1), ("safetensors", 3), ("bin", 1), ("bin", 3)]


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return checkpoint_files.tiny_model("qwen2", tie_word_embeddings=False)


@pytest.fixture
def folder(model, tmp_path: Path) -> Path:
    return checkpoint_files.save_shards(model, tmp_path / "model", 3)


@pytest.mark.parametrize(("kind", "count"), FORMATS)
def test_every_tensor_comes_out_as_it_was_saved(model, tmp_path, kind, count):
    """Would catch a lost or doubled shard, wrong offsets, wrong dtypes, and headers that disagree with the data."""
    model = model.bfloat16() if kind == "safetensors" else model.float()
    folder = checkpoint_files.save_shards(model, tmp_path / "m", count, kind)
    expected = checkpoint_files.state(model)
    checkpoint = open_checkpoint(str(folder))
    read = dict(checkpoint.tensors())
    assert read.keys() == expected.keys() == set(checkpoint.names())
    for name, tensor in expected.items():
        assert torch.equal(read[name], tensor)
        assert read[name].dtype == tensor.dtype
        assert checkpoint.shapes()[name] == tuple(tensor.shape)
    assert checkpoint.architecture == "Qwen2ForCausalLM"
    size = sum(tensor.nbytes for tensor in expected.values())
    assert checkpoint.parameter_bytes == pytest.approx(size, rel=0.1 if kind == "bin" else 0)
    elements = sum(tensor.numel() for tensor in expected.values())
    assert checkpoint.num_parameters == pytest.approx(elements, rel=0.1 if kind == "bin" else 0)


@pytest.mark.parametrize(("kind", "count"), FORMATS)
def test_named_tensors_come_in_the_order_asked(model, tmp_path, kind, count):
    folder = checkpoint_files.save_shards(model, tmp_path / "m", count, kind)
    checkpoint = open_checkpoint(str(folder))
    names = checkpoint.names()[::-3]
    expected = checkpoint_files.state(model)
    for (name, tensor), wanted in zip(checkpoint.tensors(names), names, strict=True):
        assert name == wanted
        assert torch.equal(tensor, expected[name])
    with pytest.raises(IpexAssistError, match=r"lacks 1 of 2 tensors.*model\.nonsense"):
        list(checkpoint.tensors([names[0], "model.nonsense"]))


def test_every_dtype_of_safetensors(tmp_path):
    """Would catch a wrong entry in the table of dtypes, and scalars or empty tensors that cannot be reshaped."""
    dtypes = [getattr(torch, name) for name, _ in DTYPES.values()]
    tensors = {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in dtypes}
    tensors |= {"scalar": torch.tensor(3.0), "empty": torch.empty(0, 4)}
    (tmp_path / "config.json").write_text("{}")
    save_file(tensors, tmp_path / "model.safetensors")
    read = dict(open_checkpoint(str(tmp_path)).tensors())
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert read[name].shape == tensor.shape
        assert torch.equal(read[name].view(torch.uint8), tensor.view(torch.uint8)) if tensor.dim() else read[name] == 3


def test_safetensors_are_preferred_to_bin(model, tmp_path):
    folder = checkpoint_files.save_shards(model, tmp_path / "m", 1, "safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"not even read")
    assert len(dict(open_checkpoint(str(folder)).tensors())) == len(checkpoint_files.state(model))


def test_legacy_bin_files_are_read(model, tmp_path):
    """Files of torch < 1.6 are no zip archives and cannot be mapped; would catch mapping them all the same."""
    folder = checkpoint_files.save_shards(model, tmp_path / "m", 1, "bin")
    expected = checkpoint_files.state(model)
    torch.save(expected, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    read = dict(open_checkpoint(str(folder)).tensors())
    assert all(torch.equal(read[name], tensor) for name, tensor in expected.items())


_MEASURE = """
import re, sys, torch
from ipex_assist.checkpoints.open import open_checkpoint
torch.zeros(1000, 1000) @ torch.zeros(1000, 1000)
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10
checkpoint = open_checkpoint(sys.argv[1])
before = peak()
total = 0
for name, tensor in checkpoint.tensors():
    total += tensor.nbytes
    del tensor
print(total >> 20, peak() - before)
"""


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_reading_does_not_keep_pages_resident(tmp_path, kind):
    """A mapped file's touched pages count as resident: 640 MB would show in VmHWM where one 64 MB tensor should."""
    tensors = {f"layer.{index}": torch.ones(16 << 20, dtype=torch.float32) for index in range(10)}
    (tmp_path / "config.json").write_text("{}")
    if kind == "safetensors":
        save_file(tensors, tmp_path / "model.safetensors")
    else:
        torch.save(tensors, tmp_path / "pytorch_model.bin")
    del tensors
    total, grown = map(int, checkpoint_files.run_python(_MEASURE, str(tmp_path)).split())
    assert total == 640
    assert grown < (120 if kind == "safetensors" else 256 + 2 * 64 + 60)


def test_opening_needs_no_torch(folder):
    """The launcher opens checkpoints before torch is worth its second; would catch an import that crept in."""
    code = (
        "import sys\nfrom ipex_assist.checkpoints.open import open_checkpoint\n"
        "from ipex_assist.checkpoints.packed_size import estimate_bytes\n"
        "c = open_checkpoint(sys.argv[1]); c.parameter_bytes, c.num_parameters, c.architecture, c.shapes()\n"
        "estimate_bytes(sys.argv[1], 'int4')\n"
        "print([m for m in ('torch', 'transformers', 'numpy', 'huggingface_hub') if m in sys.modules])"
    )
    assert checkpoint_files.run_python(code, str(folder)).strip() == "[]"


# --- bad input


def test_a_folder_without_config_says_what_it_holds(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "tiny.gguf").write_text("")
    with pytest.raises(
        IpexAssistError, match=r"no config\.json; it holds notes\.txt, tiny\.gguf\. Pass the file itself"
    ):
        open_checkpoint(str(tmp_path))


def test_a_folder_without_weights(model, tmp_path):
    model.config.save_pretrained(tmp_path)
    with pytest.raises(IpexAssistError, match=r"has no weights: none of model\.safetensors"):
        open_checkpoint(str(tmp_path))


def test_broken_json(model, tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": [')
    with pytest.raises(IpexAssistError, match=r"config\.json is no valid JSON"):
        open_checkpoint(str(tmp_path))


def test_a_missing_shard_is_named(folder):
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(IpexAssistError, match=r"lacks 1 of 3 shards .*model-00002-of-00003\.safetensors"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize("keep", [0.9, 0.001, 0])
def test_truncated_safetensors(model, tmp_path, keep):
    """Cut within the data, within the header, and to nothing."""
    file = checkpoint_files.save_shards(model, tmp_path / "m", 1) / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(IpexAssistError, match=r"model\.safetensors is truncated or no safetensors file") as caught:
        open_checkpoint(str(file.parent))
    if keep == 0.9:
        assert f"expected {len(whole):,} bytes, found {int(len(whole) * keep):,}" in str(caught.value)


def test_corrupt_safetensors_header(model, tmp_path):
    file = checkpoint_files.save_shards(model, tmp_path / "m", 1) / "model.safetensors"
    whole = file.read_bytes()
    for broken in (whole.replace(b'"F32"', b'"F77"'), whole.replace(b"[64]", b"[63]"), whole[:8] + b"!" + whole[9:]):
        file.write_bytes(broken)
        with pytest.raises(IpexAssistError, match="its header cannot be read"):
            open_checkpoint(str(file.parent))


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("keep", [0.9, 0.01, 0])
def test_truncated_bin(model, tmp_path, keep, legacy):
    folder = checkpoint_files.save_shards(model, tmp_path / "m", 1, "bin")
    file = folder / "pytorch_model.bin"
    if legacy:
        torch.save(checkpoint_files.state(model), file, _use_new_zipfile_serialization=False)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(IpexAssistError, match=rf"is truncated or corrupt: {int(len(whole) * keep):,} bytes"):
        list(open_checkpoint(str(folder)).tensors())


class Surprise:
    """Unpickling this would run `touch`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_a_bin_that_runs_code_is_refused(model, tmp_path):
    """Would catch torch.load without weights_only."""
    folder = checkpoint_files.save_shards(model, tmp_path / "m", 1, "bin")
    torch.save({"a": torch.ones(2), "b": Surprise(tmp_path / "owned")}, folder / "pytorch_model.bin")
    with pytest.raises(IpexAssistError, match=r"was refused: unpickling it would run code.*system.*safetensors"):
        list(open_checkpoint(str(folder)).tensors())
    assert not (tmp_path / "owned").exists()


def test_a_bin_of_something_else(model, tmp_path):
    folder = checkpoint_files.save_shards(model, tmp_path / "m", 1, "bin")
    torch.save({"epoch": 3, "state_dict": {}}, folder / "pytorch_model.bin")
    with pytest.raises(IpexAssistError, match="no plain mapping of names to tensors"):
        list(open_checkpoint(str(folder)).tensors())


def test_git_lfs_pointer(model, tmp_path):
    """What `git clone` without LFS leaves behind is the commonest broken checkpoint."""
    file = checkpoint_files.save_shards(model, tmp_path / "m", 1) / "model.safetensors"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123456\n")
    with pytest.raises(IpexAssistError, match=r"Git LFS pointer.*123456 bytes.*git lfs pull"):
        open_checkpoint(str(file.parent))


def test_one_file_of_a_folder(folder):
    with pytest.raises(IpexAssistError, match="is one file of a checkpoint"):
        open_checkpoint(str(folder / "model-00001-of-00003.safetensors"))


@pytest.mark.parametrize("source", ["./nowhere", "/nowhere/at/all", "a/b/c", "nowhere.gguf"])
def test_a_path_that_does_not_exist_is_no_hub_id(source):
    with pytest.raises(IpexAssistError, match="no such file or folder"):
        open_checkpoint(source)


# --- memory


def test_packed_bytes():
    """An embedding 1000×64 and a norm stay bf16, the 64×256 linear is packed, a tied head is packed beside."""
    shapes = {"model.embed_tokens.weight": (1000, 64), "model.norm.weight": (64,), "l.q_proj.weight": (256, 64)}
    assert packed_bytes(shapes, "bf16") == 2 * (64000 + 64 + 16384)
    assert packed_bytes(shapes, "fp32") == 4 * (64000 + 64 + 16384)
    assert packed_bytes(shapes, "int8") == 2 * (64000 + 64) + 16384
    assert packed_bytes(shapes, "int4") == 2 * (64000 + 64) + 16384 // 2 + 4 * 16384 // 64
    assert packed_bytes(shapes, "int8", tied_head=True) == 2 * (64000 + 64) + 16384 + 64000


@pytest.mark.parametrize(("kind", "count"), FORMATS)
@pytest.mark.parametrize("model_type", ["qwen2", "opt", "gpt_bigcode"])
def test_estimate_is_the_same_for_every_format(tmp_path, kind, count, model_type):
    model = checkpoint_files.tiny_model(model_type)
    folder = checkpoint_files.save_shards(model, tmp_path / "m", count, kind)
    elements = sum(tensor.numel() for name, tensor in checkpoint_files.state(model).items())
    head = model.get_input_embeddings().weight.numel() if model.config.tie_word_embeddings else 0
    assert estimate_bytes(str(folder), "bf16") == pytest.approx(2 * (elements + head), rel=0.12)


def test_estimate_of_nothing():
    assert estimate_bytes("someone/else", "bf16", offline=True) is None
    assert estimate_bytes("/nowhere", "bf16") is None


def test_estimate_of_a_broken_folder_does_not_ask_the_hub(tmp_path, monkeypatch):
    """A folder named like a hub id is a folder."""
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(hub_module, "parameters_on_hub", lambda *_: pytest.fail("asked"))
    assert estimate_bytes("tiny", "bf16") is None
