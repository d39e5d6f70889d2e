"""EAGLE-3 and DFlash heads: what `speculators` computes with them, in its files and in those of their makers."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import draft_heads
import pytest
import safetensors.torch
import tiny_models
import torch
from conftest import EXECUTORS
from draft_heads import SIZES, hidden_numbers, recorded, save_recorded, save_target
from native_models import tokens
from transformers import AutoModelForCausalLM

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.interface import DraftInput, DraftsInOneCall, HiddenRows, Model, Rows
from ipex_assist.executors.load import head_of, load_head
from ipex_assist.models.draft_head import Taps

EAGLE3 = ["eagle3-llama", "eagle3-qwen3", "eagle3-all-tokens"]
DFLASH = ["dflash", "dflash-all-tokens"]
TEXT = draft_heads.text()


def _saved(folder: Path, name: str, flat: bool) -> Path:
    """A recorded head as `speculators` saves it, or as its makers publish such heads: with other names, and flat."""
    save_recorded(folder, name)
    if not flat:
        return folder
    config = recorded(name)["config"]
    layer = config.pop("transformer_layer_config")
    layers = config.pop("eagle_aux_hidden_state_layer_ids", None)
    aux = config.pop("aux_hidden_state_layer_ids", None)
    config = {key: value for key, value in config.items() if not key.startswith(("speculators", "architectures"))}
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    if "markov_rank" in config:
        config |= {"architectures": ["Qwen3DSparkModel"], "target_layer_ids": [i - 1 for i in aux]}
    elif aux is None:
        config |= {"eagle_config": {"eagle_aux_hidden_state_layer_ids": layers}} if layers else {}
        tensors = {key.replace("layers.0.", "midlayer."): tensor for key, tensor in tensors.items()}
    else:
        config |= {
            "dflash_config": {"target_layer_ids": [i - 1 for i in aux], "mask_token_id": config["mask_token_id"]}
        }
        second = {key: value for key, value in config.items() if key.startswith(("conv_", "selector_"))}
        config["dflash_config"] |= second
        config = {key: value for key, value in config.items() if key not in (*second, "mask_token_id")}
    draft_heads.write(folder, {**layer, **config}, tensors)
    return folder


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("flat", [False, True], ids=["speculators", "flat"])
@pytest.mark.parametrize("name", EAGLE3)
def test_eagle3(name: str, flat: bool, executor: str, tmp_path: Path) -> None:
    """Logits of three steps: norms before or after fc, which hidden state is fed back, and the halves of the first
    layer's input would each change them.
    """
    save_target(tmp_path / "target")
    _, head = draft_heads.load(tmp_path / "target", _saved(tmp_path / "head", name, flat), executor)
    spec = head.spec.head
    assert spec is not None
    hidden, follow = hidden_numbers(len(TEXT) - 1, len(spec.taps.layers)), TEXT[1:]
    for case in recorded(name)["logits"]:
        read = case["row"] + 1
        sequence, own = head.new_sequence(64), HiddenRows(Taps((head.spec.num_hidden_layers,), spec.fed_back_normed))
        rows = [Rows(sequence, follow[:read], 1, hidden[:read])]
        for step, expected in enumerate(case["steps"]):
            logits = head.forward(rows, hidden=own)[0]
            torch.testing.assert_close(logits, torch.tensor(expected), atol=1e-5, rtol=0)
            assert own.rows is not None
            rows = [Rows(sequence, [follow[read + step]], 1, own.rows[-1:])]
        [(drafted, confidences)] = _drafts(
            head, [DraftInput(head.new_sequence(64), follow[:read], 3, 0, hidden[:read])]
        )
        assert (drafted[0], confidences[0]) == _best(name, case["steps"][0])


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("flat", [False, True], ids=["speculators", "flat"])
@pytest.mark.parametrize("name", DFLASH)
def test_dflash(name: str, flat: bool, executor: str, tmp_path: Path) -> None:
    """A block's tokens and confidences, however its hidden states come: a row that saw too little or too much of the
    block, or a norm of hidden states in a layer, would change them.
    """
    save_target(tmp_path / "target")
    _, head = draft_heads.load(tmp_path / "target", _saved(tmp_path / "head", name, flat), executor)
    assert head.spec.head is not None
    hidden = hidden_numbers(len(TEXT), len(head.spec.head.taps.layers))
    for case in recorded(name)["logits"]:
        read, sequence = case["row"], head.new_sequence(64)
        head.forward([Rows(sequence, TEXT[: read // 2], 0, hidden[: read // 2])])
        request = DraftInput(sequence, [TEXT[read]], 5, 0, hidden[read // 2 : read])
        expected = [_best(name, logits) for logits in case["steps"]]
        for count in (5, 2):  # and again: nothing of a block is kept
            [(drafted, confidences)] = _drafts(head, [request])
            assert sequence.length == read
            assert list(zip(drafted, confidences, strict=True)) == expected[:count]
            request = DraftInput(sequence, [TEXT[read]], 2)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("flat", [False, True], ids=["speculators", "flat"])
def test_dflash_2(flat: bool, executor: str, tmp_path: Path) -> None:
    """The tokens that are chosen one after the other, and their shares among the candidates: a convolution that reaches
    into what is before the block, taps in another order, or a token before that is not the chosen one change them.
    """
    save_target(tmp_path / "target")
    _, head = draft_heads.load(tmp_path / "target", _saved(tmp_path / "head", "dflash2", flat), executor)
    hidden = hidden_numbers(len(TEXT), 3)
    for case in recorded("dflash2")["logits"]:
        read, sequence = case["row"], head.new_sequence(64)
        head.forward([Rows(sequence, TEXT[: read // 2], 0, hidden[: read // 2])])
        request = DraftInput(sequence, [TEXT[read]], 5, 0, hidden[read // 2 : read])
        for count in (5, 2):  # and again: nothing of a block is kept
            [(drafted, confidences)] = _drafts(head, [request])
            assert drafted == [token for token, _ in case["steps"][:count]]
            assert confidences == pytest.approx([share for _, share in case["steps"][:count]], rel=1e-4)
            request = DraftInput(sequence, [TEXT[read]], 2)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("flat", [False, True], ids=["speculators", "flat"])
@pytest.mark.parametrize("name", ["dspark", "dspark-few-tokens"])
def test_dspark(name: str, flat: bool, executor: str, tmp_path: Path) -> None:
    """The tokens that follow from each other, and how sure the head is of each: drafts from another row on, another
    token before, or logits that a part of the vocabulary alone was added to change them.
    """
    save_target(tmp_path / "target")
    _, head = draft_heads.load(tmp_path / "target", _saved(tmp_path / "head", name, flat), executor)
    _check_dspark(head, name)


def _check_dspark(head: Model, name: str) -> None:
    assert head.spec.head is not None
    hidden = hidden_numbers(len(TEXT), len(head.spec.head.taps.layers))
    for case in recorded(name)["logits"]:
        most, read, sequence = len(case["steps"]), case["row"], head.new_sequence(64)
        assert most == head.spec.head.block_size - 1
        head.forward([Rows(sequence, TEXT[: read // 2], 0, hidden[: read // 2])])
        request = DraftInput(sequence, [TEXT[read]], most, 0, hidden[read // 2 : read])
        for count in (most, 2):  # and again: nothing of a block is kept
            [(drafted, confidences)] = _drafts(head, [request])
            assert drafted == [token for token, _ in case["steps"][:count]]
            assert confidences == pytest.approx([sure for _, sure in case["steps"][:count]], rel=1e-4)
            request = DraftInput(sequence, [TEXT[read]], 2)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("architecture", "pairs"), [("LingDSparkModel", False), ("Lfm2DSparkDraftModel", True)])
def test_dspark_of_other_makers(architecture: str, pairs: bool, executor: str, tmp_path: Path) -> None:
    """By their names, and with heads that are rotated by pairs of neighbours (`rope_is_neox_style` false)."""
    save_target(tmp_path / "target")
    folder = _saved(tmp_path / "head", "dspark", flat=True)
    config = json.loads((folder / "config.json").read_text()) | {"architectures": [architecture]}
    tensors, width = safetensors.torch.load_file(folder / "model.safetensors"), config["head_dim"]
    if pairs:
        config["rope_is_neox_style"] = False
        order = torch.arange(width).view(2, -1).T.flatten()
        for name, tensor in tensors.items():
            if re.search(r"\b[qk]_(proj|norm)\.weight$", name):
                parts = tensor.reshape(-1, width, *tensor.shape[1:])
                tensors[name] = parts[:, order].reshape(tensor.shape).contiguous()
    draft_heads.write(folder, config, tensors)
    _, head = draft_heads.load(tmp_path / "target", folder, executor)
    _check_dspark(head, "dspark")


@pytest.mark.parametrize(
    ("changes", "missing", "said"),
    [
        ({"markov_head_type": "gated"}, "", "markov_head_type 'gated' is not supported, only 'vanilla'"),
        ({"markov_rank": 0}, "", r"markov_rank 0"),
        (
            {"markov_rank": 9},
            "",
            r"selector_before.weight has the shape \(160, 12\) in the checkpoint and \(160, 9\) by config",
        ),
        (
            {"confidence_head_with_markov": False},
            "",
            r"confidence.weight has the shape \(44,\) .* and \(32,\) by config",
        ),
        ({}, "markov_head.markov_w2.weight", "markov_head.markov_w2.weight"),
        ({}, "confidence_head.proj.bias", "confidence_head.proj.bias"),
        ({"architectures": ["K3DSparkModel"]}, "", "the DSpark head K3DSparkModel is not supported"),
        ({"architectures": ["DFlashDraftModel"], "markov_rank": None}, "", "DSpark without markov_rank"),
    ],
)
def test_dspark_that_is_not_as_it_says(changes: dict[str, Any], missing: str, said: str, tmp_path: Path) -> None:
    """Another kind of its heads, other sizes, and weights that are not there are refused; none drafts without them."""
    save_target(tmp_path / "target")
    folder = _saved(tmp_path / "head", "dspark", flat=True)
    config = json.loads((folder / "config.json").read_text()) | changes
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors.pop(missing, None)
    draft_heads.write(folder, config, tensors)
    with pytest.raises(IpexAssistError, match=said):
        draft_heads.load(tmp_path / "target", folder)


def test_deepspec_dflash_drafts_from_its_first_row(tmp_path: Path) -> None:
    """A DSpark without its two heads is a DFlash whose last known token drafts, too."""
    save_target(tmp_path / "target")
    folder = _saved(tmp_path / "head", "dspark", flat=True)
    config = json.loads((folder / "config.json").read_text())
    draft_heads.write(
        folder,
        config | {"markov_rank": 0, "enable_confidence_head": False},
        safetensors.torch.load_file(folder / "model.safetensors"),
    )
    found = head_of(open_checkpoint(str(tmp_path / "target")), open_checkpoint(str(folder)))
    assert found is not None
    head = found.spec.head
    assert head is not None
    assert (head.block_size, head.block_rows, head.selector_rank, head.confidence_size) == (7, 6, 0, 0)


def test_dflash_2_by_another_config(tmp_path: Path) -> None:
    """What would draft as one of the first kind is refused."""
    save_target(tmp_path / "target")
    head = open_checkpoint(str(_saved(tmp_path / "head", "dflash2", flat=True)))
    del head.config["dflash_config"]["conv_kernel_size"]
    with pytest.raises(UsageError, match="DFlash 2 without conv_kernel_size"):
        head_of(open_checkpoint(str(tmp_path / "target")), head)


def _drafts(head: Model, requests: list[DraftInput]) -> Any:
    assert isinstance(head, DraftsInOneCall)
    return head.draft_many(requests)


def _best(name: str, logits: list[float]) -> tuple[int, Any]:
    """The target's token that is drafted by these logits, and its probability."""
    found = recorded(name)
    shares = torch.tensor(logits).softmax(0)
    row = int(shares.argmax())
    token = row if found["d2t"] is None else row + found["d2t"][row]
    return token, pytest.approx(float(shares[row]), rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": 64}, "32 values, and this one has 64"),
        ({"vocab_size": 161}, "160 tokens, and this one has 161"),
        ({"num_hidden_layers": 5}, "of layer 6, and the model has 5"),
    ],
)
def test_another_target(changes: dict[str, int], said: str, tmp_path: Path) -> None:
    """A head for a wider target, another vocabulary or a deeper target is refused with both numbers."""
    tiny_models.save(tmp_path / "target", "llama", **{**SIZES, "num_hidden_layers": 6, **changes})
    save_recorded(tmp_path / "head", "eagle3-qwen3")
    target, head = (open_checkpoint(str(tmp_path / name)) for name in ("target", "head"))
    with pytest.raises(UsageError, match=said):
        head_of(target, head)


@pytest.mark.parametrize(("kind", "said"), [("peagle", "but 'peagle'"), ("mtp", "LlamaForCausalLM has no such")])
def test_another_kind(kind: str, said: str, tmp_path: Path) -> None:
    """Heads of `speculators` that we do not run are refused by name, not read as one of another kind."""
    save_target(tmp_path / "target")
    save_recorded(tmp_path / "head", "eagle3-llama")
    config = recorded("eagle3-llama")["config"] | {"speculators_model_type": kind}
    draft_heads.write(tmp_path / "head", config, safetensors.torch.load_file(tmp_path / "head" / "model.safetensors"))
    target, head = (open_checkpoint(str(tmp_path / name)) for name in ("target", "head"))
    with pytest.raises(UsageError, match=said):
        head_of(target, head)


def test_tokens_out_of_order(tmp_path: Path) -> None:
    """A d2t that names a token twice, or one beyond the vocabulary, would draft tokens that were not meant."""
    save_target(tmp_path / "target")
    for place, off in ((20, -60), (39, 500)):
        save_recorded(tmp_path / "head", "eagle3-llama")
        tensors = safetensors.torch.load_file(tmp_path / "head" / "model.safetensors")
        tensors["d2t"][place] += off
        draft_heads.write(tmp_path / "head", recorded("eagle3-llama")["config"], tensors)
        with pytest.raises(IpexAssistError, match="must be 40 in ascending order, below 160"):
            draft_heads.load(tmp_path / "target", tmp_path / "head")


@pytest.mark.parametrize("precisions", [("bf16", "bf16"), ("bf16", "fp32"), ("fp32", "bf16")])
def test_torch_in_bf16(precisions: tuple[str, str], tmp_path: Path) -> None:
    """A head may have another precision than its target, whose embedding and lm_head it reads."""
    save_target(tmp_path / "target")
    save_recorded(tmp_path / "head", "dflash-all-tokens")
    checkpoints = [open_checkpoint(str(tmp_path / name)) for name in ("target", "head")]
    target = tiny_models.model(tmp_path / "target", "torch", precisions[0])
    head = load_head(checkpoints[0], target, checkpoints[1], precisions[1], "torch")
    hidden = hidden_numbers(len(TEXT), 2)
    for case in recorded("dflash-all-tokens")["logits"]:
        request = DraftInput(head.new_sequence(64), [TEXT[case["row"]]], 5, 0, hidden[: case["row"]])
        [(_, confidences)] = _drafts(head, [request])
        expected = [max(torch.tensor(logits).softmax(0).tolist()) for logits in case["steps"]]
        assert confidences == pytest.approx(expected, rel=0.1)


ODD = (None, -1, 0, 1, 7, 1 << 40, 0.5, "x", True, [], [-3], [1, 2], ["x"], {}, {"rope_type": "yarn"})


@pytest.mark.parametrize("name", ["eagle3-qwen3", "dflash", "dflash2"])
@pytest.mark.parametrize("flat", [False, True], ids=["speculators", "flat"])
def test_odd_values(name: str, flat: bool, tmp_path: Path) -> None:
    """Any value of a config that cannot be, and tensors of another shape: a sentence, never another exception."""
    save_target(tmp_path / "target")
    folder = _saved(tmp_path / "head", name, flat)
    target, head = open_checkpoint(str(tmp_path / "target")), open_checkpoint(str(folder))
    config, refused = copy.deepcopy(head.config), list[str]()
    for place in ("", "transformer_layer_config", "eagle_config", "dflash_config"):
        for key in config.get(place, {}) if place else config:
            for value in ODD:
                head.config = copy.deepcopy(config)
                (head.config[place] if place else head.config)[key] = value
                try:
                    head_of(target, head)
                except IpexAssistError as error:
                    refused.append(str(error))
    assert len(refused) > 100
    assert all(said.startswith(head.source) for said in refused)


def test_taps_are_hidden_states(tmp_path: Path) -> None:
    """Streams that enter layers, and what the final norm gives, are transformers' hidden states, in prompts and
    steps; a tap changes no logits.
    """
    model = save_target(tmp_path)
    with torch.no_grad():
        states = model(torch.tensor([TEXT]), output_hidden_states=True).hidden_states
    target, taps = tiny_models.model(tmp_path, "torch", "fp32"), (0, 3, 6)
    for normed in (False, True):
        plain, sequence, parts = target.new_sequence(64), target.new_sequence(64), []
        for first, end in ((0, 18), (18, 19), (19, 30)):
            hidden = HiddenRows(Taps(taps, normed))
            logits = target.forward([Rows(sequence, TEXT[first:end], end - first)], hidden=hidden)
            assert torch.equal(logits, target.forward([Rows(plain, TEXT[first:end], end - first)]))
            assert hidden.rows is not None
            parts.append(torch.from_numpy(hidden.rows))
        found = torch.cat(parts).split(SIZES["hidden_size"], 1)
        for tap, rows in zip(taps[: 3 if normed else 2], found, strict=False):
            torch.testing.assert_close(rows, states[tap][0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_dflash_of_transformers(executor: str, tmp_path: Path) -> None:
    """Every block that transformers drafts with a DFlash assistant of its own, whose windows end within the text."""
    configuration = pytest.importorskip("transformers.models.muse_glimmer_assistant")
    save_target(tmp_path / "target")
    kinds = ["sliding_attention", "full_attention"]
    config = configuration.MuseGlimmerAssistantConfig(
        **{key: SIZES[key] for key in SIZES if key != "vocab_size"},
        **{"num_hidden_layers": 2, "block_size": 6, "mask_token_id": 7, "target_layer_ids": [0, 2, 4]},
        **{"sliding_window": 9, "layer_types": kinds, "attn_implementation": "eager"},
    )
    assistant = configuration.MuseGlimmerAssistantModel(config).eval()
    tiny_models.randomise(assistant)
    assistant.save_pretrained(tmp_path / "head")
    rounds = _dflash_rounds(tmp_path / "target", assistant)
    target, head = draft_heads.load(tmp_path / "target", tmp_path / "head", executor)
    assert len(rounds) > 8
    for read, drafted, logits in rounds:
        hidden = draft_heads.hidden_of(target, head, read[:-1])
        [found] = _drafts(head, [DraftInput(head.new_sequence(64), read[-1:], 5, 0, hidden)])
        assert found[0] == drafted
        assert found[1] == pytest.approx(logits.softmax(1).amax(1).tolist(), rel=1e-4)


def _dflash_rounds(folder: Path, assistant: Any) -> list[tuple[list[int], list[int], torch.Tensor]]:
    """Of each round: all tokens known, those drafted, and their logits."""
    from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator as Generator

    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    prompt = torch.tensor([tokens(21, 3)])
    options = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "speculation_type": "dflash"}
    with draft_heads.rounds_of(Generator) as rounds:
        model.generate(prompt, attention_mask=torch.ones_like(prompt), assistant_model=assistant, **options)
    return rounds
