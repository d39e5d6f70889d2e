"""What a run is planned to take, against what it takes; and the limit: what fits is accepted, one byte less refused."""

from __future__ import annotations

import dataclasses
import gc
from pathlib import Path
from typing import Any

import adapter_files
import pytest
import tiny_models
from conftest import HAS_NATIVE

from ipex_assist.bench.giant_shapes import GIANT_CONFIGS
from ipex_assist.bench.random_checkpoint import RandomCheckpoint
from ipex_assist.checkpoints.lora_folder import read_lora
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.commands.shared import memory_need
from ipex_assist.commands.shared.load import memory_need as memory_need_of
from ipex_assist.commands.shared.memory_need import RUNTIME_BYTES, MemoryNeed, check_memory, estimate_need, need_of
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.memory import MemoryInfo, release_free_memory, resident_bytes
from ipex_assist.executors.adapter_bytes import adapter_bytes
from ipex_assist.executors.adapters import adapter_matrices
from ipex_assist.executors.interface import Rows
from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.model_bytes import checkpoint_bytes, native_bytes
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.executors.planned_bytes import ModelBytes
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.models import find
from ipex_assist.native.rows import PASS_ROWS
from ipex_assist.native.sizes import PlannedPasses, buffer_bytes, core_sizes, workspace_bytes
from ipex_assist.quantization.precision import DRAFT_INT4_GROUP
from ipex_assist.workers.capacity import InstanceNeed

pytestmark = pytest.mark.one_stack

PER_LAYER = tiny_models.known("gemma4-everything", "deepseek-v32", "glm-moe-dsa", "mimo-v2-flash", "longcat-flash")
PER_LAYER += tiny_models.known("hy-v4", "axk2", "mistral-large4")
PER_LAYER += tiny_models.known("minimax-m3", "gemma3n", "deepseek-v4")
RECURRENT = tiny_models.known("lfm2-moe", "granite-hybrid", "nemotron-h-moe", "mamba2", "kimi-linear", "jamba")
RECURRENT += tiny_models.known("mamba", "falcon-mamba", "bailing-hybrid", "glm5-next", "recurrent-gemma", "zamba2")
RECURRENT += tiny_models.known("qwen4-exp", "zamba2-adapted")

native = pytest.mark.skipif(not HAS_NATIVE, reason="the native core says what it takes")

# Little to compute, and much to keep: 8 MiB of bf16 keys and values a block.
WIDE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 60_000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
}

LATENT = WIDE | {
    **{"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_hidden_layers": 2, "head_dim": 64},
    **{"vocab_size": 4000, "num_attention_heads": 32, "num_key_value_heads": 32, "first_k_dense_replace": 2},
    **{"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_group": 1, "topk_group": 1},
    **{"q_lora_rank": 384},
    **{"kv_lora_rank": 128, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
}

# Texts of 2,048 tokens attend to 256 of them: scores and chosen positions are buffers, too.
SPARSE = LATENT | {
    **{"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32"},
    **{"index_topk": 256, "index_n_heads": 8, "index_head_dim": 64},
}

EMBEDDED = WIDE | {
    **{"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "num_kv_shared_layers": 4},
    **{"vocab_size": 4000, "hidden_size_per_layer_input": 384, "vocab_size_per_layer_input": 4000},
    **{"layer_types": ["sliding_attention", "full_attention"] * 4, "global_head_dim": 256, "sliding_window": 512},
}


@pytest.fixture(autouse=True)
def _settled() -> None:
    """What other tests had does not go in the midst of a measurement."""
    gc.collect()
    release_free_memory()


@native
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
@pytest.mark.parametrize(
    "variant", ["llama", "llama-odd-sizes", "qwen2-tied", "opt", "gpt-bigcode", "granitemoe", *RECURRENT, *PER_LAYER]
)
def test_sizes_are_those_of_the_loaded_model(variant: str, precision: str, tmp_path: Path) -> None:
    """To the byte, before anything is loaded."""
    tiny_models.save(tmp_path, variant)
    planned = checkpoint_bytes(open_checkpoint(str(tmp_path)), precision, wanted=1)
    model = tiny_models.model(tmp_path, "native", precision)
    assert isinstance(model, NativeModel)
    assert (planned.weights, planned.unit_bytes, planned.unit) == (model.packed.nbytes, model.block_bytes, 256)
    assert planned.state_bytes == model.packed.state_bytes(model.kv_precision)


@native
def test_a_run_takes_what_was_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of both, a pool that texts fill, and the buffers, as memory of this process: hardly less, never more.

    Where cores multiply much faster than memory is read, as with AMX, passes have more rows than planned if there is
    room; not here.
    """
    monkeypatch.setattr("ipex_assist.executors.native.pass_rows.useful_rows", lambda *_: PASS_ROWS)
    checkpoint = RandomCheckpoint("wide", WIDE)
    texts = (256 * 8,) * 2
    target_plan = native_bytes(checkpoint.spec, "int8", wanted=memory_need.wanted_rows(2))
    draft_plan = native_bytes(checkpoint.spec, "int4", wanted=2, group=DRAFT_INT4_GROUP)
    planned = need_of(target_plan, draft_plan, texts, copy=True)
    assert planned.target is not None
    assert planned.assistant is not None
    before = resident_bytes(own=True)
    memory = KvMemory(planned.kv)
    target = load_model(LoadRequest(checkpoint, "int8", "native", kv_memory=memory))
    assistant = load_model(
        LoadRequest(
            checkpoint, "int4", "native", exact=False, table_of=target, group=DRAFT_INT4_GROUP, kv_memory=memory
        )
    )
    loaded = resident_bytes(own=True) - before
    assert 0.96 < loaded / (planned.target + planned.assistant) < 1.15  # tables of rotations are there, too
    held = [model.new_sequence(length) for model in (target, assistant) for length in texts]
    for sequence in held:
        sequence.model.forward([Rows(sequence, [7] * texts[0], 64)])  # type: ignore[attr-defined]
    taken = resident_bytes(own=True) - before
    everything = planned.target + planned.assistant + planned.kv
    assert 0.96 * everything < taken < everything + planned.workspace
    assert planned.workspace < 0.28 * everything, "else the limits above say little"


@native
@pytest.mark.parametrize("config", [WIDE, LATENT, SPARSE, EMBEDDED], ids=["wide", "latents", "sparse", "embeddings"])
def test_buffers_are_no_larger_than_planned(config: dict[str, Any]) -> None:
    """Of the largest possible pass, after a long text, with logits of all rows."""
    checkpoint = RandomCheckpoint("wide", config)
    model = load_model(LoadRequest(checkpoint, "bf16", "native", kv_memory=KvMemory(16 * 8 << 20)))
    assert isinstance(model, NativeModel)
    sequence = model.new_sequence(2048)
    sequence.length = 1536  # of blocks that nobody wrote: zeros
    before = resident_bytes(own=True)
    kept = model.choose([Rows(sequence, [5] * PASS_ROWS, PASS_ROWS)])
    taken = resident_bytes(own=True) - before - model.block_bytes
    largest = PlannedPasses(PASS_ROWS, 2048, model.packed.pool.threads)
    planned = workspace_bytes(model.packed.handle, model.spec, largest)
    sampler = 4 * PASS_ROWS * -(-model.spec.vocab_size // 16) * 16  # none ran
    assert len(kept) == PASS_ROWS
    # Four mappings, in whole huge pages, and pages of the heap that models before have left; tests/native/workspace.h
    # compares the bytes themselves.
    assert planned - sampler - (10 << 20) < taken < planned - sampler + (8 << 20)


@native
@pytest.mark.parametrize(
    ("name", "kib", "mib"),
    [
        ("deepseek-ai/DeepSeek-V4-Flash", 7, 15),
        ("zai-org/GLM-5.3-Flash", 12, 218),
        ("deepseek-ai/DeepSeek-V3.2", 84, 0),
    ],
)
def test_long_texts_of_sparse_attention_take_little(name: str, kib: int, mib: int) -> None:
    """Buffers hold what rows can see, after as many tokens as the model reads; blocks what was said of a token, and
    states, which a text has once, what it needs of its last ones alone.
    """
    architecture = find(GIANT_CONFIGS[name]["architectures"][0])
    assert architecture is not None
    spec = architecture.spec(GIANT_CONFIGS[name])
    sizes = core_sizes(spec, "int4", 64, PlannedPasses(32, spec.context_length, 64))
    assert sizes.workspace < 2 << 30
    assert kib - 1 < sizes.block / BLOCK.unit / 1024 < kib
    assert mib - 1 < sizes.state / (1 << 20) <= mib


@native
def test_a_copy_for_each_memory_node_is_planned(tmp_path: Path) -> None:
    """Rows that all threads read are there once a node, in whole huge pages each; other buffers are not."""
    tiny_models.save(tmp_path, "llama")
    model = tiny_models.model(tmp_path, "native", "bf16")
    assert isinstance(model, NativeModel)
    one, two, four = (
        buffer_bytes(model.packed.handle, PlannedPasses(PASS_ROWS, 2048, 4, nodes)) for nodes in (1, 2, 4)
    )
    node = (four - two) // 2  # as it is mapped
    inputs = 2 * 4 * PASS_ROWS * model.spec.hidden_size  # of a linear, and of the residual stream: bytes at least
    assert node % (2 << 20) == 0
    assert inputs < node - (two - one - node) <= node


BLOCK = ModelBytes(weights=3 << 30, table=0, unit=256, unit_bytes=1 << 20, context=1 << 24, workspace=50 << 20)


@pytest.mark.parametrize("limit", [None, 512 << 20])
@pytest.mark.parametrize("tokens", [256 * 40, 256 * 1000, 256 * 9000])
def test_the_limit(tokens: int, limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With as much as is asked for a run begins, and its pool holds the text; with a byte less it is refused."""
    assistant = dataclasses.replace(BLOCK, weights=1 << 30, unit_bytes=1 << 18, workspace=20 << 20)
    need = memory_need.within(need_of(BLOCK, assistant, (tokens, 300)), limit)
    assert need.total is not None
    monkeypatch.setattr(memory_need, "resident_bytes", lambda: 0)
    monkeypatch.setattr("ipex_assist.executors.kv_memory._planned_share", lambda: 1.0)

    def available(size: int) -> None:
        for module in ("commands.shared.memory_need", "executors.kv_memory"):
            monkeypatch.setattr(f"ipex_assist.{module}.read_memory", lambda: MemoryInfo(1 << 40, size))

    available(need.total)
    check_memory(need)
    left = need.total - 4 * (1 << 30) - RUNTIME_BYTES  # when the weights are loaded
    available(left)
    memory = KvMemory(limit)
    for each in (BLOCK, assistant):
        memory.join(each.unit_bytes, each.context, each.workspace)
    wanted = -(-tokens // 256) + 2 if limit is None else limit // (5 << 18)
    assert wanted <= memory.blocks() <= wanted + 1
    available(need.total - 1)
    with pytest.raises(
        IpexAssistError, match=r"too little memory: [\d.]+ GiB are needed \(3\.0 GiB for the target, 1\.0"
    ) as refused:
        check_memory(need)
    assert ("a smaller --kv-memory" in str(refused.value)) == (limit is not None)


def test_what_is_loaded_already_is_not_needed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the second pair of a run the libraries are in memory."""
    need = MemoryNeed(1 << 30, None, 1 << 20)
    assert need.total == (1 << 30) + (1 << 20) + RUNTIME_BYTES
    for resident, available, fits in (
        (0, need.total - 1, False),
        (RUNTIME_BYTES // 2, need.total - RUNTIME_BYTES // 2, True),
        (RUNTIME_BYTES // 2, need.total - RUNTIME_BYTES // 2 - 1, False),
        (9 << 30, need.total - RUNTIME_BYTES, True),
        (9 << 30, need.total - RUNTIME_BYTES - 1, False),
    ):
        monkeypatch.setattr(memory_need, "resident_bytes", lambda resident=resident: resident)
        monkeypatch.setattr(memory_need, "read_memory", lambda available=available: MemoryInfo(1 << 40, available))
        if fits:
            check_memory(need)
        else:
            with pytest.raises(IpexAssistError, match="too little memory"):
                check_memory(need)


@native
def test_whole_blocks_of_both_models(tmp_path: Path) -> None:
    """Texts of 1 and of 257 tokens take one block and two of the target and of its assistant."""
    for name, layers in (("target", 4), ("assistant", 1)):
        tiny_models.save(tmp_path / name, "llama", max_position_embeddings=2048, num_hidden_layers=layers)
    names = str(tmp_path / "target"), str(tmp_path / "assistant")
    models = [tiny_models.model(Path(name), "native", "bf16") for name in names]
    blocks = [model.block_bytes for model in models]  # type: ignore[attr-defined]
    need = estimate_need(*names, "bf16", None, 1, lengths=(1, 257), native=True)
    assert need.kv_each == (sum(blocks), 2 * sum(blocks))
    alone = estimate_need(names[0], None, "bf16", None, 1, lengths=(1, 257), native=True)
    assert alone.kv_each == (blocks[0], 2 * blocks[0])
    library = estimate_need(*names, "bf16", None, 1, lengths=(1, 257))
    assert library.kv_each[1] == 257 * library.kv_each[0]


@native
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8", "int8", "int4"])
@pytest.mark.parametrize("variant", ["llama", "llama-odd-sizes", "phi3", "gpt2"])
def test_adapters_take_what_was_planned(variant: str, precision: str, tmp_path: Path) -> None:
    """To the byte, by the headers of their files: finds padding, scales, and modules that hold several weights."""
    reference = tiny_models.save(tmp_path, variant)
    folders = [adapter_files.save_adapter(tmp_path / f"a{rank}", reference, rank, seed=rank) for rank in (5, 24)]
    asked = LoadRequest(open_checkpoint(str(tmp_path)), precision, "native")
    model = tiny_models.model(tmp_path, "native", precision)
    assert isinstance(model, NativeModel)
    for folder in folders:
        name = str(folder)
        model.add_adapter(name, adapter_matrices(asked.spec, asked.sources, read_lora(name), name))
        assert adapter_bytes(asked, [name]) == model.adapters[name].nbytes
    assert adapter_bytes(asked, map(str, folders)) == sum(each.nbytes for each in model.adapters.values())


@pytest.mark.parametrize("executor", ["torch", *(["native"] if HAS_NATIVE else [])])
def test_adapters_are_refused_where_they_do_not_fit(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is loaded, by what is needed and what is there: one byte less than with all adapters is too
    little, and enough without them. An instance of a batch or a server plans with them, too.
    """
    reference = tiny_models.save(tmp_path, "llama")
    folder = adapter_files.save_adapter(tmp_path / "a", reference, 256, adapter_files.MLP)
    load = LoadOptions(
        target=str(tmp_path), assistant="none", precision="bf16", executor=executor, lora=(f"a={folder}", f"b={folder}")
    )
    need, without = (memory_need_of(each, 20) for each in (load, dataclasses.replace(load, lora=())))
    asked = LoadRequest(open_checkpoint(str(tmp_path)), "bf16", executor)
    assert need.adapters == adapter_bytes(asked, [str(folder)] * 2) > 1 << 16
    assert need.total is not None
    assert without.total == need.total - need.adapters
    assert InstanceNeed.of(load, 20).total == need.total
    monkeypatch.setattr(memory_need, "resident_bytes", lambda: RUNTIME_BYTES)
    monkeypatch.setattr(memory_need, "read_memory", lambda: MemoryInfo(1 << 40, need.total - RUNTIME_BYTES - 1))
    check_memory(without)
    large = dataclasses.replace(need, adapters=5 << 30)
    with pytest.raises(IpexAssistError, match=r"5\.0 GiB for adapters.* are available\. Use .*fewer --lora"):
        check_memory(large)
    with pytest.raises(IpexAssistError, match="too little memory"):
        check_memory(need)
    # What cannot be read, loading names; planning goes on without it.
    assert memory_need_of(dataclasses.replace(load, lora=(f"a={tmp_path / 'none'}",)), 20).adapters == 0
