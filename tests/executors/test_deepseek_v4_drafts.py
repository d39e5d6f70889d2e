"""DeepSeek-V4's own drafts compute what their descriptions say: plain PyTorch over the tensors as published."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import draft_heads
import float4_files
import pytest
import safetensors.torch
import tiny_models
import torch
from conftest import EXECUTORS
from deepseek_v4_drafts import BLOCK, Reference, save_dspark, save_mtp
from native_models import tokens

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.interface import DraftInput, DraftsInOneCall, HiddenRows, Rows, truncate_or_clear
from ipex_assist.models.draft_head import Taps
from ipex_assist.native.rows import PENDING_ROWS
from ipex_assist.speculative.schedule import longest_draft

VARIANTS = tiny_models.known("deepseek-v4", "deepseek-v4-other")
PROMPT = tokens(30, 3)
KINDS = tiny_models._V4["layer_types"], tiny_models._V4["mlp_layer_types"]

pytestmark = pytest.mark.skipif(not VARIANTS, reason="of today's transformers")


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_of_a_layer(variant: str, executor: str, tmp_path: Path) -> None:
    """All rows, longer than a window: streams that enter one by one, and leave by numbers of their own."""
    model = save_mtp(tmp_path, variant)
    target, head = draft_heads.load(tmp_path, executor=executor)
    hidden = draft_heads.hidden_of(target, head, PROMPT[:-1])
    with torch.no_grad():
        streams = theirs(model, target.spec.num_hidden_layers)
        expected, _ = Reference(tmp_path).mtp(PROMPT[1:], streams)
    torch.testing.assert_close(torch.from_numpy(hidden), streams, atol=1e-4, rtol=0)
    logits = head.forward([Rows(head.new_sequence(64), PROMPT[1:], len(PROMPT) - 1, hidden)])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def theirs(model: Any, layers: int) -> torch.Tensor:
    """The streams behind the target's last layer, by transformers: (tokens, streams · hidden)."""
    kept = []
    handle = model.model.layers[layers].register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    try:
        model(torch.tensor([PROMPT[:-1]]), use_cache=False)
    finally:
        handle.remove()
    return kept[0][0].flatten(1)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_further_tokens(executor: str, tmp_path: Path) -> None:
    """The layer again, with its own streams: drafts that end are those that go on."""
    save_mtp(tmp_path)
    target, head = draft_heads.load(tmp_path, executor=executor)
    hidden, read = draft_heads.hidden_of(target, head, PROMPT[:-1]), PROMPT[1:]
    given, expected = torch.from_numpy(hidden), []
    reference = Reference(tmp_path)
    for _ in range(4):
        logits, own = reference.mtp(read, given)
        shares = logits[-1].softmax(0)
        expected.append((int(shares.argmax()), float(shares.max())))
        read, given = [*read, expected[-1][0]], torch.cat((given, own[-1:]))
    assert longest_draft(target.spec) == PENDING_ROWS - 1  # states forget as many rows
    draft_heads.check_drafts(head, PROMPT[1:], hidden, expected)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_layer_for_each_token(executor: str, tmp_path: Path) -> None:
    """The second reads the streams of the first, one token later."""
    save_mtp(tmp_path, number=2)
    target, head = draft_heads.load(tmp_path, executor=executor)
    hidden, reference = draft_heads.hidden_of(target, head, PROMPT[:-1]), Reference(tmp_path)
    first, own = reference.mtp(PROMPT[1:], torch.from_numpy(hidden))
    token = int(first[-1].argmax())
    second, _ = reference.mtp([*PROMPT[2:], token], own, 1)
    assert isinstance(head, DraftsInOneCall)
    [(drafted, confidences)] = head.draft_many([DraftInput(head.new_sequence(64), PROMPT[1:], 2, 0.0, hidden)])
    assert drafted == [token, int(second[-1].argmax())]
    assert confidences == pytest.approx([float(each[-1].softmax(0).max()) for each in (first, second)], rel=1e-4)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_cut_to_before_a_layers_state(executor: str, tmp_path: Path) -> None:
    """The third layer has read two drafted tokens: where its state is after the cut, all is read again."""
    save_mtp(tmp_path, number=3)
    target, head = draft_heads.load(tmp_path, executor=executor)
    hidden, sequence = draft_heads.hidden_of(target, head, PROMPT[:-1]), head.new_sequence(64)
    assert isinstance(head, DraftsInOneCall)
    drafts = []
    for cut in (PENDING_ROWS - 2, PENDING_ROWS - 1, 0):
        new = DraftInput(sequence, PROMPT[1 + sequence.length :], 3, 0.0, hidden[sequence.length :])
        drafts.append(head.draft_many([new])[0][0])
        truncate_or_clear(sequence, sequence.length - cut)
    assert drafts[1:] == drafts[:1] * 2


@pytest.mark.parametrize("executor", EXECUTORS)
def test_means_of_streams(executor: str, tmp_path: Path) -> None:
    """Beside all of a row's streams, and in steps as in a prompt; without saying which there are none."""
    save_mtp(tmp_path)
    target = tiny_models.model(tmp_path, executor)
    layers = (1, 3, target.spec.num_hidden_layers)
    found = {}
    for streams in ("mean", "all"):
        hidden, sequence = HiddenRows(Taps(layers, streams=streams)), target.new_sequence(40)
        target.forward([Rows(sequence, PROMPT, 1)], hidden=hidden)
        again = HiddenRows(Taps(layers, streams=streams), of_logit_rows=True)
        for length in (19, 20):
            sequence.truncate(length)
            target.forward([Rows(sequence, PROMPT[length : length + 3], 2)], hidden=again)
            assert hidden.rows is not None
            assert again.rows is not None
            rows = torch.from_numpy(hidden.rows[length + 1 : length + 3])
            torch.testing.assert_close(torch.from_numpy(again.rows), rows, atol=1e-5, rtol=0)
        found[streams] = torch.from_numpy(hidden.rows).unflatten(1, (3, -1))
    means = found["all"].unflatten(2, (4, -1)).mean(2)
    torch.testing.assert_close(found["mean"], means, atol=1e-5, rtol=0)
    for taps in (Taps(layers), Taps(layers, True, "all")):
        with pytest.raises(IpexAssistError, match="4 rows"):
            target.forward([Rows(target.new_sequence(40), PROMPT, 1)], hidden=HiddenRows(taps))


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": [*KINDS[0], "compressed_sparse_attention"]},
        {"mlp_layer_types": [*KINDS[1], "hash_moe"]},
        {"compress_ratios": [0, 128, 4, 128, 4, 4]},
    ],
    ids=["layer_types", "mlp_layer_types", "compress_ratios"],
)
def test_layers_that_are_not_computed(changes: dict[str, Any], tmp_path: Path) -> None:
    """Entries, or experts by tokens: the target runs without such a draft head."""
    save_mtp(tmp_path, **changes)
    with pytest.raises(UsageError, match="no layers that predict further tokens"):
        draft_heads.load(tmp_path)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_blocks_of_stages(variant: str, executor: str, tmp_path: Path) -> None:
    """Tokens of a block after contexts within a window and far beyond it, all of whose rows see the same of them."""
    model = save_dspark(tmp_path, variant)
    target, head = draft_heads.load(tmp_path, executor=executor)
    hidden = draft_heads.hidden_of(target, head, PROMPT[:-1])
    with torch.no_grad():
        means = [theirs(model, layer).unflatten(1, (-1, target.spec.hidden_size)).mean(1) for layer in (2, 4, 5)]
        given = torch.cat(means, 1)
        torch.testing.assert_close(torch.from_numpy(hidden), given, atol=1e-4, rtol=0)
        assert isinstance(head, DraftsInOneCall)
        for read in (3, 9, len(hidden)):
            request = DraftInput(head.new_sequence(64), [PROMPT[read]], BLOCK, 0.0, hidden[:read])
            [(drafted, confidences)] = head.draft_many([request])
            expected = Reference(tmp_path).dspark(given[:read], PROMPT[read])
            assert drafted == [token for token, _ in expected]
            assert confidences == pytest.approx([sure for _, sure in expected], rel=1e-3)


def test_stages_in_a_checkpoint_of_their_own(tmp_path: Path) -> None:
    """Drafts are those of the same stages inside the target's."""
    save_dspark(tmp_path / "both", stages=2)
    tiny_models.save(tmp_path / "target", "deepseek-v4")
    tensors = safetensors.torch.load_file(tmp_path / "both" / "model.safetensors")
    parts: dict[bool, dict[str, torch.Tensor]] = {True: {}, False: {}}
    for name, tensor in tensors.items():
        parts[name.startswith("mtp.")][name] = tensor
    config = json.loads((tmp_path / "both" / "config.json").read_text())
    draft_heads.write(tmp_path / "head", config | {"architectures": ["DeepseekV4DSparkModel"]}, parts[True])
    target_config = json.loads((tmp_path / "target" / "config.json").read_text())
    draft_heads.write(tmp_path / "target", target_config, parts[False])
    drafts = []
    for folder, own in ((tmp_path / "both", None), (tmp_path / "target", tmp_path / "head")):
        target, head = draft_heads.load(folder, own)
        assert isinstance(head, DraftsInOneCall)
        hidden = draft_heads.hidden_of(target, head, PROMPT[:-1])
        drafts.append(head.draft_many([DraftInput(head.new_sequence(64), PROMPT[-1:], BLOCK, 0.0, hidden)]))
    assert drafts[0] == drafts[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"dspark_block_size": 0},
        {"dspark_noise_token_id": tiny_models.VOCAB},
        {"dspark_target_layer_ids": []},
        {"dspark_target_layer_ids": [-1]},
        {"dspark_n_routed_experts": 4},
        {"compress_ratios": [0, 128, 4, 128, 4, 0, 0, 4]},
    ],
    ids=str,
)
def test_stages_that_are_not_computed(changes: dict[str, Any], tmp_path: Path) -> None:
    """The target runs without them."""
    save_dspark(tmp_path, **changes)
    with pytest.raises(UsageError, match="no layers that predict further tokens"):
        draft_heads.load(tmp_path)


def as_published(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Tensors with linears in FP8 and experts in FP4, scales of both being powers of two; and what these stand for."""
    stored, dense = dict(tensors), dict(tensors)
    for name, tensor in tensors.items():
        place = name.removesuffix("weight")
        if re.search(r"\.experts\.\d+\.w\d\.weight$", name):
            parts, dense[name] = float4_files.mxfp4(tensor)
            stored[name], exponents = parts["weight_packed"].view(torch.int8), parts["weight_scale"]
        elif re.search(r"\.(attn\.w\w+|shared_experts\.w\d|[eh]_proj|main_proj)\.weight$", name):
            blocks = tuple(-(-size // 128) for size in tensor.shape)
            exponents = torch.full(
                blocks, int(torch.ceil(torch.log2(tensor.abs().max() / 448))) + 127, dtype=torch.uint8
            )
            factor = 2.0 ** (int(exponents.flatten()[0]) - 127)
            stored[name] = (tensor / factor).to(torch.float8_e4m3fn)
            dense[name] = stored[name].float() * factor
        else:
            continue
        stored[f"{place}scale"] = exponents.view(torch.float8_e8m0fnu)
    return stored, dense


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("save", [save_mtp, save_dspark])
def test_numbers_as_published(save: Any, executor: str, tmp_path: Path) -> None:
    """Linears in FP8 and experts in FP4, by the names and types of published checkpoints: as with their values."""
    save(tmp_path / "dense")
    config = json.loads((tmp_path / "dense" / "config.json").read_text())
    tensors = safetensors.torch.load_file(tmp_path / "dense" / "model.safetensors")
    stored, dense = as_published(tensors)
    assert len(stored) > len(dense) + 100
    told = {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}
    draft_heads.write(tmp_path / "dense", config, dense)
    draft_heads.write(tmp_path / "stored", config | {"quantization_config": told}, stored)
    found = []
    for folder in (tmp_path / "dense", tmp_path / "stored"):
        target, head = draft_heads.load(folder, executor=executor)
        hidden = draft_heads.hidden_of(target, head, PROMPT[:-1])
        assert isinstance(head, DraftsInOneCall)
        blocks = save is save_dspark
        request = DraftInput(head.new_sequence(64), PROMPT[-1:] if blocks else PROMPT[1:], BLOCK, 0.0, hidden)
        found.append((hidden.tolist(), head.draft_many([request])))
    assert found[0] == found[1]
