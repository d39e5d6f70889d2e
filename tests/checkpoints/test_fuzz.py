"""Files with anything in them: a model that works, or one sentence of ours; nothing else, and nothing from outside.

Continuous integration runs about a hundred examples of each; IPEX_ASSIST_FUZZ=50 runs fifty times as many.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkpoint_files
import compressed_files
import float4_files
import pytest
import quantized_files
import tiny_models
import torch
from conftest import HAS_NATIVE
from fuzzing import JUNK, changed, damaged_bytes, examples, watched
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from ipex_assist import load
from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.checkpoints.packed_size import estimate_bytes
from ipex_assist.commands.shared.memory_need import estimate_need
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.speculative.costs import pair_cache
from ipex_assist.speculative.costs.acceptance import Acceptance
from ipex_assist.speculative.costs.pair_cache import PairCache
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.tokenization.tokenizer import encode_prompt, eos_token_ids, load_tokenizer

pytestmark = pytest.mark.one_stack

VARIANTS = ("llama", "mistral-window", "qwen2-window", "qwen3", "opt-350m", "gpt-bigcode")
# Keys that a config may have and these do not.
OTHER_KEYS = (
    *("rope_scaling", "rope_theta", "head_dim", "quantization_config", "sliding_window", "layer_types", "mlp_bias"),
    *("partial_rotary_factor", "attention_bias", "use_sliding_window", "max_window_layers", "torch_dtype", "n_inner"),
)
ROPE = ("rope_type", "type", "factor", "rope_theta", "original_max_position_embeddings", "beta_fast", "beta_slow")
ROPE_KINDS = st.sampled_from(("default", "linear", "dynamic", "yarn", "llama3", "longrope", 7))


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that are whole, a working folder "m" for the damaged one, and "outside", which nothing may read."""
    folder = tmp_path_factory.mktemp("house")
    for variant in VARIANTS:
        tiny_models.save(folder / "whole" / variant, variant, vocab_size=320)
        checkpoint_files.tiny_tokenizer().save_pretrained(folder / "whole" / variant)
    (folder / "outside").mkdir()
    shutil.copy(folder / "whole" / "llama" / "model.safetensors", folder / "outside" / "model.safetensors")
    checkpoint_files.write_gguf(checkpoint_files.tiny_model("llama"), folder / "whole" / "m.gguf")
    return folder


def fresh(house: Path, variant: str = "llama") -> Path:
    """The working folder with a whole model in it."""
    shutil.rmtree(house / "m", ignore_errors=True)
    shutil.copytree(house / "whole" / variant, house / "m")
    return house / "m"


def use(folder: Path, *, run: bool = True) -> None:
    """Estimate, open, read and, where our decoder has it, run it; IpexAssistError is the one way to fail."""
    estimate_bytes(str(folder), "int4")
    estimate_need(str(folder), "auto", None, None, 8)
    try:
        checkpoint = open_checkpoint(str(folder))
        if checkpoint.why_not_ours():
            return  # what transformers makes of it is a test of its own
        checkpoint.check_weights()
        for _, tensor in checkpoint.tensors():
            assert tensor.numel() >= 0
        if run:
            _run(checkpoint)
    except IpexAssistError as error:
        _is_a_sentence(error)


def _run(checkpoint: Checkpoint) -> None:
    for executor in ("torch", *(["native"] if HAS_NATIVE else [])):
        model = load_model(LoadRequest(checkpoint, "fp32", executor, exact=False))
        assert model.extend(model.new_sequence(4), [3, 5, 7]).isfinite().all()


def _is_a_sentence(error: IpexAssistError) -> None:
    text = str(error)
    assert text.strip()
    assert len(text) < 2000
    assert "Traceback" not in text


@st.composite
def configs(draw: st.DrawFn) -> tuple[str, Any]:
    """A variant and changes of its config.json (a function of the stored one would not shrink)."""
    changes = draw(st.dictionaries(st.integers(0, 200), JUNK, min_size=1, max_size=3))
    rope = draw(st.none() | st.dictionaries(st.sampled_from(ROPE), JUNK | st.floats(0.1, 64), max_size=4))
    if rope is not None and draw(st.booleans()):
        rope["rope_type"] = draw(ROPE_KINDS)
    return draw(st.sampled_from(VARIANTS)), (changes, rope)


@given(case=configs())
@examples(110)
def test_configs(house: Path, case: tuple[str, tuple[dict[int, Any], Any]]) -> None:
    """Any values at one to three keys, or as rotary positions."""
    variant, (changes, rope) = case
    folder = fresh(house, variant)
    config = json.loads((folder / "config.json").read_text())
    keys = [*config, *OTHER_KEYS]
    config |= {keys[index % len(keys)]: value for index, value in changes.items()}
    if rope is not None:
        config["rope_parameters"] = rope
    (folder / "config.json").write_text(json.dumps(config))
    with watched(house / "outside"):
        use(folder)


@given(case=configs())
@examples(12)
def test_configs_through_the_whole(house: Path, case: tuple[str, tuple[dict[int, Any], Any]]) -> None:
    """`load` and a text of two tokens, by transformers where our decoder lacks something."""
    variant, (changes, rope) = case
    folder = fresh(house, variant)
    config = json.loads((folder / "config.json").read_text())
    keys = [key for key in (*config, *OTHER_KEYS) if key not in ("architectures", "model_type")]
    config |= {keys[index % len(keys)]: value for index, value in changes.items()}
    if rope is not None:
        config["rope_parameters"] = rope
    (folder / "config.json").write_text(json.dumps(config))
    try:
        load(str(folder), None, precision="fp32").generate("a", max_new_tokens=2)
    except IpexAssistError as error:
        _is_a_sentence(error)


@given(data=st.data())
@examples(60)
def test_bytes_of_configs(house: Path, data: st.DataObject) -> None:
    """Not JSON at all, mostly."""
    folder = fresh(house)
    name = data.draw(st.sampled_from(("config.json", "generation_config.json", "tokenizer_config.json")))
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(data.draw(damaged_bytes(whole, len(whole))))
    with watched(house / "outside"):
        use(folder, run=False)


QUANTIZED = (*float4_files.LAYOUTS, "gptq", "awq", "int4", "int8", "fp8")


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one layer in every layout of quantized linears."""
    folder = tmp_path_factory.mktemp("quantized")
    for layout in QUANTIZED:
        if layout in float4_files.LAYOUTS:
            float4_files.save(folder / layout, layout, num_hidden_layers=1)
        elif layout in ("gptq", "awq"):
            quantized_files.save(folder / layout, kind=layout, group=32, num_hidden_layers=1)
        else:
            compressed_files.save(folder / layout, scheme=compressed_files.Scheme(layout), num_hidden_layers=1)
    return folder


@given(data=st.data())
@examples(150)
def test_parts_of_quantized_linears(house: Path, quantized: Path, data: st.DataObject) -> None:
    """Any part of a linear gone, of another type, shape or content; and the config beside it."""
    layout = data.draw(st.sampled_from(QUANTIZED))
    shutil.rmtree(house / "m", ignore_errors=True)
    folder = shutil.copytree(quantized / layout, house / "m")
    tensors = load_file(folder / "model.safetensors")
    parts = [name for name in tensors if "layers." in name and "norm" not in name]
    for name in data.draw(st.lists(st.sampled_from(parts), min_size=1, max_size=2, unique=True)):
        part = _changed_part(data, tensors.pop(name))
        if part is not None:
            tensors[name] = part.contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if data.draw(st.integers(0, 3)) == 0:
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = data.draw(changed(config["quantization_config"]))
        (folder / "config.json").write_text(json.dumps(config))
    with watched(house / "outside"):
        use(folder)


def _changed_part(data: st.DataObject, tensor: torch.Tensor) -> torch.Tensor | None:
    match data.draw(st.sampled_from(("gone", "type", "cut", "repeat", "flat", "bytes", "text"))):
        case "type":
            return tensor.to(data.draw(st.sampled_from((torch.float32, torch.bfloat16, torch.uint8, torch.int32))))
        case "cut" if tensor.dim():
            side = data.draw(st.integers(0, tensor.dim() - 1))
            return tensor.narrow(side, 0, data.draw(st.integers(0, tensor.shape[side])))
        case "repeat" if tensor.dim():
            return tensor.repeat(data.draw(st.sampled_from((2, 3))), *([1] * (tensor.dim() - 1)))
        case "flat":
            return tensor.flatten()
        case "bytes" if tensor.numel():
            content = tensor.contiguous().flatten().clone()
            raw = content.view(torch.uint8)
            at = data.draw(st.integers(0, len(raw) - 1))
            raw[at : at + data.draw(st.integers(1, 64))] = data.draw(st.sampled_from((0, 127, 128, 255)))
            return content.view(tensor.shape)
        case "text" if tensor.dtype == torch.uint8 and tensor.dim() == 1:  # where a state is JSON
            return torch.tensor(list(json.dumps(data.draw(JUNK)).encode()) or [0], dtype=torch.uint8)
    return None


NAMES = st.sampled_from(
    ("../outside/model.safetensors", "shard.safetensors", "..", ".", "", "m.bin", "shard.safetensors/")
)


@given(data=st.data())
@examples(75)
def test_indexes(house: Path, data: st.DataObject) -> None:
    """Names that leave the folder in every spelling, and values of every type."""
    folder = fresh(house)
    (folder / "model.safetensors").rename(folder / "shard.safetensors")
    absolute = st.just(str(house / "outside" / "model.safetensors")) | st.just(f"{folder}/../outside/model.safetensors")
    names = NAMES | absolute | JUNK
    weight_map = data.draw(st.dictionaries(st.text(max_size=8), names, max_size=4) | JUNK)
    whole = {"metadata": {"total_size": 7}, "weight_map": weight_map}
    index = data.draw(st.just(whole) | changed(whole))
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with watched(house / "outside"):
        use(folder, run=False)


@given(data=st.data())
@examples(100)
def test_safetensors_headers(house: Path, data: st.DataObject) -> None:
    """Changed as JSON, so that the code after the parser runs as well, and as bytes."""
    folder = fresh(house)
    whole = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    if data.draw(st.integers(0, 3)):
        text = json.dumps(data.draw(changed(header))).encode()
        content = len(text).to_bytes(8, "little") + text + whole[8 + length :]
    else:
        content = data.draw(damaged_bytes(whole, 8 + length))
    (folder / "model.safetensors").write_bytes(content)
    with watched(house / "outside"):
        use(folder, run=False)


# GGUF's scalar types: struct codes by number; 8 is a string, 9 an array.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _gguf_entries(data: bytes) -> tuple[list[list[Any]], list[list[Any]], int]:
    """Metadata as [key, type, payload], tensors as [name, dimensions, type, offset], and where the header ends."""
    position = 24

    def take(count: int) -> bytes:
        nonlocal position
        position += count
        return data[position - count : position]

    def number(code: str) -> Any:
        return struct.unpack("<" + code, take(struct.calcsize("<" + code)))[0]

    def value(kind: int) -> None:
        if kind == 8:
            take(number("Q"))
        elif kind == 9:
            inner, count = number("I"), number("Q")
            for _ in range(count):
                value(inner)
        else:
            take(struct.calcsize("<" + SCALARS[kind]))

    tensors, count = struct.unpack_from("<QQ", data, 8)
    metadata = []
    for _ in range(count):
        key, kind = take(number("Q")), number("I")
        start = position
        value(kind)
        metadata.append([key, kind, data[start:position]])
    infos = []
    for _ in range(tensors):
        name, dimensions = take(number("Q")), number("I")
        infos.append([name, [number("Q") for _ in range(dimensions)], number("I"), number("Q")])
    return metadata, infos, position


@st.composite
def _payloads(draw: st.DrawFn) -> tuple[int, bytes]:
    kind = draw(st.sampled_from((*SCALARS, 8, 9, 13)))
    if kind == 8:
        return kind, _string(
            draw(st.sampled_from((b"", b"llama", b"qwen2", b"gpt2", b"yarn", b"linear", b"\xff", b"x")))
        )
    if kind == 9:
        inner = draw(st.sampled_from((4, 6, 8, 9, 99)))
        count = draw(st.sampled_from((0, 1, 3, 2**40)))
        items = draw(st.binary(max_size=24)) if inner != 8 else _string(b"a") * min(count, 3)
        return kind, struct.pack("<IQ", inner, count) + items
    size = struct.calcsize("<" + SCALARS.get(kind, "I"))
    return kind, draw(
        st.sampled_from((bytes(size), b"\xff" * size, b"\x01" + bytes(size - 1)))
        | st.binary(min_size=size, max_size=size)
    )


@given(data=st.data())
@examples(125)
def test_gguf_headers(house: Path, data: st.DataObject) -> None:
    """Metadata of other types and values, tensors of other shapes and places, as entries and as bytes."""
    whole = (house / "whole" / "m.gguf").read_bytes()
    metadata, tensors, end = _gguf_entries(whole)
    if not data.draw(st.integers(0, 3)):
        content = data.draw(damaged_bytes(whole, 900))
    else:
        for _ in range(data.draw(st.integers(1, 3))):
            _change_entry(data, metadata, tensors)
        content = whole[:8] + struct.pack("<QQ", len(tensors), len(metadata))
        content += b"".join(_string(key) + struct.pack("<I", kind) + payload for key, kind, payload in metadata)
        for name, shape, kind, offset in tensors:
            content += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        content += bytes(-len(content) % 32) + whole[end + -end % 32 :]
    (house / "m.gguf").write_bytes(content)
    with watched(house / "outside"):
        use(house / "m.gguf", run=False)
        try:
            checkpoint = open_checkpoint(str(house / "m.gguf"))
            tokenizer = load_tokenizer(checkpoint)
            eos_token_ids(checkpoint, tokenizer)
        except IpexAssistError as error:
            _is_a_sentence(error)


def _change_entry(data: st.DataObject, metadata: list[list[Any]], tensors: list[list[Any]]) -> None:
    big = st.sampled_from((0, 1, 3, 63, 64, 2**31, 2**32 - 1))
    match data.draw(st.sampled_from(("value", "value", "value", "remove", "shape", "place", "rename"))):
        case "value":
            entry = data.draw(st.sampled_from(metadata))
            entry[1:] = data.draw(_payloads())
        case "remove":
            entries = data.draw(st.sampled_from((metadata, tensors)))
            if len(entries) > 1:
                entries.remove(data.draw(st.sampled_from(entries)))
        case "shape":
            data.draw(st.sampled_from(tensors))[1] = data.draw(st.lists(big | st.just(2**63), max_size=5))
        case "place":
            entry = data.draw(st.sampled_from(tensors))
            entry[2], entry[3] = data.draw(st.integers(0, 45)), data.draw(big | st.just(2**64 - 1))
        case "rename":
            entry = data.draw(st.sampled_from(metadata + tensors))
            entry[0] = data.draw(st.sampled_from(metadata + tensors))[0]


@given(data=st.data())
@examples(100)
def test_tokenizer_files(house: Path, data: st.DataObject) -> None:
    """A tokenizer that encodes and decodes, or our error: never a panic of the library behind it."""
    folder = fresh(house)
    name = data.draw(st.sampled_from(("tokenizer.json", "tokenizer.json", "tokenizer_config.json")))
    whole = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(data.draw(changed(whole))))
    with watched(house / "outside"):
        try:
            checkpoint = open_checkpoint(str(folder))
            tokenizer = load_tokenizer(checkpoint)
            eos_token_ids(checkpoint, tokenizer)
            for chat in (False, True):
                ids = encode_prompt(tokenizer, "The quick brown fox. naïve 12345", chat)
                assert all(type(index) is int for index in ids)
                assert isinstance(tokenizer.decode([*ids, 7, 250], skip_special_tokens=True), str)
        except IpexAssistError as error:
            _is_a_sentence(error)


FACTS = {"pair": "a"}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """The files of a pair in a cache folder: its costs and its acceptance."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_cache, "cache_folder", lambda kind: folder)
        cache = PairCache(FACTS, {})
        cache.costs(_measured)
        acceptance = Acceptance()
        cache.keep_acceptance(acceptance, acceptance)
        yield sorted(folder.iterdir())


def _measured() -> Costs:
    return Costs(verify=(0.1, 0.12, 0.15), draft=0.01, rows=(0.0, 0.001), read=0.02)


@given(data=st.data())
@examples(75)
def test_calibration_cache(kept: list[Path], data: st.DataObject) -> None:
    """Whatever is in them, costs are positive and finite, and acceptance rates are rates."""
    file = data.draw(st.sampled_from(kept))
    whole = file.read_bytes()
    if data.draw(st.booleans()):
        tree = json.loads(whole)
        part = next(key for key in tree if key != "facts")
        content = json.dumps(tree | {part: data.draw(changed(tree[part]))}).encode()
    else:
        content = data.draw(damaged_bytes(whole, len(whole)))
    file.write_bytes(content)
    try:
        cache = PairCache(FACTS, {})
        costs = cache.costs(_measured)
        assert all(0 < seconds < 1e4 for seconds in costs.verify)
        for acceptance in (cache.model_acceptance, cache.lookup_acceptance):
            for splits in acceptance.splits():
                assert all(0 <= rate <= 1.0001 for rate in (*splits.above, *splits.below))
    finally:
        file.write_bytes(whole)
