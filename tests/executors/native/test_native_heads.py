"""Draft heads on the native core: torch's drafts in fp32, and in every precision the same bits however rows pass."""

from __future__ import annotations

import functools
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import draft_heads
import numpy as np
import pytest
import safetensors.torch
import tiny_models
import torch
from conftest import HAS_NATIVE
from native_models import INT8_KEYS, PRECISIONS, pool, tokens
from numpy.typing import NDArray

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import DraftInput, DraftsInOneCall, HiddenRows, Model, Rows
from ipex_assist.executors.load_request import HeadRequest
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.executors.registry import EXECUTORS
from ipex_assist.models import Source, find
from ipex_assist.models.dflash2 import dflash2_names
from ipex_assist.models.draft_head import HeadSpec, Taps
from ipex_assist.models.dspark import dspark_names
from ipex_assist.models.head_common import DraftHead
from ipex_assist.models.weights import weight_shape
from ipex_assist.native.library import unavailable
from ipex_assist.native.sizes import PlannedPasses, core_sizes
from ipex_assist.speculative.choosing.sampling import Sampling
from ipex_assist.speculative.schedule import DraftPlan
from ipex_assist.speculative.sources.batched_proposals import propose_together
from ipex_assist.speculative.sources.head_assistant import HeadAssistant

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")]

_KINDS = ["linear_attention", "linear_attention", "linear_attention", "full_attention", "full_attention"]
MTP = {name: {} for name in tiny_models.known("deepseek-v3", "deepseek-v3-direct", "glm4-moe", "ernie4-5-moe")} | {
    name: {"layer_types": _KINDS} for name in tiny_models.known("qwen3-next", "qwen3.5")
}
_EAGLE = HeadSpec("eagle3", Taps((1, 2, 0)), 64)
_SMALL = {"hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 3, "num_key_value_heads": 1}
# What such a head has otherwise than the plainest: a vocabulary of its own; norms; another width and more layers.
EAGLE3: dict[str, tuple[HeadSpec, dict[str, Any]]] = {
    "eagle3": (replace(_EAGLE, draft_vocab_size=40, shared_head=False), {}),
    "eagle3-norms": (replace(_EAGLE, input_norm="all", norm_before_residual=True, fed_back_normed=True), {}),
    "eagle3-narrow": (
        replace(_EAGLE, input_norm="each", shared_embedding=False, shared_head=False),
        _SMALL | {"num_hidden_layers": 2},
    ),
}
# A block that crosses the border of two blocks of keys and values, among others; windows; norms of heads; a vocabulary.
_FLASH = HeadSpec("dflash", Taps((2, 1)), 64, block_size=9, mask_token=7)
DFLASH: dict[str, tuple[HeadSpec, dict[str, Any]]] = {
    "dflash": (replace(_FLASH, draft_vocab_size=40, shared_head=False), {"num_hidden_layers": 2}),
    "dflash-long": (replace(_FLASH, block_size=20), {"num_hidden_layers": 2, "head_dim": 32}),
    "dflash-window": (_FLASH, {"num_hidden_layers": 2, "sliding_window": 12}),
    # Of the second kind: groups that are no multiple of 16 columns, and one for all of them.
    "dflash2": (
        replace(_FLASH, conv_kernel=3, conv_group=8, candidates=5, selector_rank=12),
        {"num_hidden_layers": 2},
    ),
    "dflash2-long": (
        replace(_FLASH, block_size=20, conv_kernel=2, conv_group=64, candidates=200, selector_rank=100),
        {"num_hidden_layers": 2},
    ),
    # Tables that are narrower and wider than rows, heads by the row alone, and blocks that draft from their first row.
    "dspark": (
        replace(_FLASH, from_anchor=True, selector_rank=12, confidence_size=76),
        {"num_hidden_layers": 2},
    ),
    "dspark-vocabulary": (
        replace(_FLASH, block_size=20, draft_vocab_size=40, shared_head=False, selector_rank=100, confidence_size=64),
        {"num_hidden_layers": 2},
    ),
    "dspark-no-confidence": (replace(_FLASH, from_anchor=True, selector_rank=64), {}),
    "dspark-confidence": (replace(_FLASH, from_anchor=True, confidence_size=64), {}),
    "dflash-anchor": (replace(_FLASH, from_anchor=True), {}),
}
FED_BACK = [*MTP, *EAGLE3]
_folders: list[object] = []


@functools.cache
def folder(kind: str) -> Path:
    """A saved target with a head inside, for all tests of this file."""
    made = tempfile.TemporaryDirectory()
    _folders.append(made)
    if kind in MTP:
        draft_heads.save_mtp(Path(made.name), kind, {}, max_position_embeddings=1024, **MTP[kind])
    else:
        tiny_models.save(Path(made.name), "llama", max_position_embeddings=1024)
    return Path(made.name)


@functools.cache
def head_of(kind: str) -> tuple[DraftHead, Path]:
    """A random head by our own names of its weights, and the folder that it is saved in."""
    given, changes = (EAGLE3 | DFLASH)[kind]
    config = json.loads((folder(kind) / "config.json").read_text()) | {"num_hidden_layers": 1} | changes
    architecture = find("MistralForCausalLM" if "sliding_window" in changes else "LlamaForCausalLM")
    assert architecture is not None
    spec = replace(architecture.spec(config), head=given, tied_head=False)
    names = {f"{name}.weight" for name in ("fc", "head_hidden_norm", "final_norm")}
    names |= {"head_embed_norm.weight"} if given.kind == "eagle3" else set()
    names |= set() if given.shared_head else {"lm_head.weight"}
    names |= set() if given.shared_embedding else {"embed_tokens.weight"}
    norms = {"all": ["input_norm"], "each": ["fc_norm_0", "fc_norm_1", "fc_norm_2"], None: []}[given.input_norm]
    names |= {f"{name}.weight" for name in norms}
    names |= set(dflash2_names(spec)) | set(dspark_names(spec))
    of_layers = {name for name in architecture.weights(spec) if name.startswith("layers.")}
    names |= of_layers - ({"layers.0.attention_norm.weight"} if given.kind == "eagle3" else set())
    random, tensors = torch.Generator().manual_seed(4), {}
    for name in sorted(names):
        shape = weight_shape(spec, name)
        values = torch.randn(shape, generator=random)
        near_one = len(shape) == 1 and not name.startswith("confidence")
        tensors[name] = 1 + values * 0.1 if near_one else values * 0.15
    made = tempfile.TemporaryDirectory()
    _folders.append(made)
    safetensors.torch.save_file(tensors, Path(made.name) / "model.safetensors", {"format": "pt"})
    (Path(made.name) / "config.json").write_text(json.dumps(config))
    return DraftHead(spec, {name: Source(name) for name in names}), Path(made.name)


def load(kind: str, executor: str, precision: str) -> tuple[Model, Model]:
    """Target and head."""
    if kind in MTP:
        return draft_heads.load(folder(kind), None, executor, precision)
    target, (head, place) = tiny_models.model(folder(kind), executor, precision), head_of(kind)
    checkpoint = open_checkpoint(str(place))
    made = EXECUTORS[executor].load(HeadRequest(checkpoint, precision, executor, exact=False, head=head, target=target))
    if head.spec.lm_head_rows < head.spec.vocab_size:
        made.target_tokens = np.arange(0, 160, 4, dtype=np.int32) + 1
    return target, made


@functools.cache
def native(kind: str, precision: str, threads: int = 1) -> tuple[NativeModel, NativeModel]:
    """Target and head; a precision of keys and values may follow that of linears."""
    precision, _, kv_precision = precision.partition("+")
    if kv_precision:
        target, head = native(kind, precision, threads)
        of = NativeModel(head.packed, kv_precision=kv_precision)
        of.target_tokens = head.target_tokens
        return target, of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ipex_assist.executors.native.loading.planned_pool", lambda: pool(threads))
        target, head = load(kind, "native", precision)
    assert isinstance(target, NativeModel)
    assert isinstance(head, NativeModel)
    return target, head


def steps(head: Model, text: list[int], hidden: NDArray[np.float32], count: int) -> tuple[list[int], list[float]]:
    """A draft by single calls, each with the hidden state that the one before gave."""
    spec, sequence = head.spec, head.new_sequence(700)
    assert spec.head is not None
    drafted: list[int] = []
    likely: list[float] = []
    while len(drafted) < count:
        own = HiddenRows(Taps((spec.num_hidden_layers,), spec.head.fed_back_normed))
        logits = head.forward([Rows(sequence, text, 1, hidden)], None, own)[0]
        row = int(logits.argmax())
        likely.append(float(torch.softmax(logits.double(), 0)[row]))
        drafted.append(row if head.target_tokens is None else int(head.target_tokens[row]))
        assert own.rows is not None
        text, hidden = drafted[-1:], own.rows[-1:]
    return drafted, likely


@pytest.mark.parametrize("kind", FED_BACK)
def test_drafts_are_those_of_torch(kind: str) -> None:
    """Its own reference: another order of [e, h], a norm left out, a state fed back before or after the final norm."""
    target, head = native(kind, "fp32")
    reference = load(kind, "torch", "fp32")
    text = tokens(40, 3)
    hidden = draft_heads.hidden_of(target, head, text[:-1])
    assert np.abs(hidden - draft_heads.hidden_of(*reference, text[:-1])).max() < 1e-3
    for read in (3, 39):
        request = text[1 : read + 1], 8, None, 0.0, hidden[:read]
        drafted, likely = head.draft(head.new_sequence(64), *request)
        expected = steps(reference[1], text[1 : read + 1], hidden[:read], 8)
        assert drafted == expected[0]
        assert likely == pytest.approx(expected[1], rel=1e-3)


SAMPLED = [
    Sampling(do_sample=True, top_k=0, seed=3, prompt_length=20),
    Sampling(do_sample=True, temperature=0.7, top_p=0.9, top_k=9, repetition_penalty=1.2, seed=4, prompt_length=20),
    Sampling(logit_bias={13: 5.0, 14: 50.0}, presence_penalty=1.0, prompt_length=20),
]


@pytest.mark.parametrize("kind", FED_BACK)
def test_sampled_drafts_are_those_of_single_passes(kind: str) -> None:
    """All of one call, by rules of their own. A head's own vocabulary has the noise, the biases and the penalties of
    the target's tokens.
    """
    target, head = native(kind, "fp32", 2)
    text = tokens(30, 3)
    hidden = draft_heads.hidden_of(target, head, text[:-1])
    made: list[list[Any]] = []
    for in_one_call in (True, False):
        sources = [HeadAssistant(head, sampling, 160, None, 64) for sampling in SAMPLED]
        for source in sources:
            assert source._in_one_call
            source._in_one_call = in_one_call
            source.observe(0, hidden)
        made.append(propose_together([source.steps(text, DraftPlan(7)) for source in sources]))
    for found, expected in zip(*made, strict=True):
        assert found.tokens == expected.tokens
        assert len(found.tokens) == 7
        assert found.confidence == pytest.approx(expected.confidence, rel=2e-3)


@pytest.mark.parametrize("precision", [*PRECISIONS, *INT8_KEYS])
@pytest.mark.parametrize("kind", FED_BACK)
def test_no_bit_depends_on_the_others(kind: str, precision: str) -> None:
    """One call is as many single ones, alone or together with others, in any chunks and on any number of threads."""
    target, head = native(kind, precision)
    texts = [tokens(length, length) for length in (300, 5, 21)]
    hidden = [draft_heads.hidden_of(target, head, text[:-1]) for text in texts]
    counts = [7, 12, 4]
    alone = [steps(head, text[1:], h, count) for text, h, count in zip(texts, hidden, counts, strict=True)]
    for threads in (1, 2, 3):
        _, other = native(kind, precision, threads)
        sequences = [other.new_sequence(400) for _ in texts]
        read = 30  # of the first, in a call before
        other.forward([Rows(sequences[0], texts[0][1 : 1 + read], 0, hidden[0][:read])])
        starts = [read, 0, 0]
        got = other.draft_many(
            [
                DraftInput(sequence, text[1 + start :], count, 0.0, h[start:])
                for sequence, text, count, h, start in zip(sequences, texts, counts, hidden, starts, strict=True)
            ]
        )
        for (drafted, likely), (expected, probabilities), sequence, text in zip(
            got, alone, sequences, texts, strict=True
        ):
            assert drafted == expected
            assert likely == pytest.approx(probabilities, rel=1e-5)
            assert sequence.length == len(text) - 1 + len(drafted) - 1


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", DFLASH)
def test_blocks_are_those_of_torch(kind: str, threads: int) -> None:
    """Rows of a block that see too little of it, contexts that pass through layers, positions that are off by one.

    Three threads share the keys and values of one text by single blocks of 256, of which a row of position 251 sees the
    second as well.
    """
    target, head = native(kind, "fp32", threads)
    reference = load(kind, "torch", "fp32")[1]
    text = tokens(330, 3)
    hidden = draft_heads.hidden_of(target, head, text)
    ours, theirs = head.new_sequence(400), reference.new_sequence(400)
    assert isinstance(reference, DraftsInOneCall)
    done = 0
    for size in (1, 3, 30, 217, 2, 1, 74):
        given, count = hidden[done : done + size], head.spec.head.block_size - 1
        done += size
        got = head.draft(ours, text[done : done + 1], count, None, 0.0, given)
        [expected] = reference.draft_many([DraftInput(theirs, text[done : done + 1], count, 0.0, given)])
        assert got[0] == expected[0], done
        assert got[1] == pytest.approx(expected[1], rel=1e-3)
        assert ours.length == done


@pytest.mark.parametrize("precision", [*PRECISIONS, *INT8_KEYS])
@pytest.mark.parametrize("kind", DFLASH)
def test_no_bit_of_a_block_depends_on_the_others(kind: str, precision: str) -> None:
    """Blocks together are each alone, whatever calls brought their contexts, and however many tokens are wanted."""
    target, head = native(kind, precision)
    texts = [tokens(length, length) for length in (300, 5, 253, 21, 40)]
    hidden = [draft_heads.hidden_of(target, head, text[:-1]) for text in texts]
    most = head.spec.head.block_size - 1
    alone = [
        head.draft(head.new_sequence(len(h)), text[-1:], most, 150, 0.0, h)
        for text, h in zip(texts, hidden, strict=True)
    ]
    least = sorted(alone[0][1])[0] * 1.0001
    ended = next(place for place, each in enumerate(alone[0][1]) if each < least) + 1
    counts = [most, most, 3, 1, most - 1]
    for threads in (1, 2, 3):
        _, other = native(kind, precision, threads)
        sequences = [other.new_sequence(400) for _ in texts]
        other.forward([Rows(sequences[0], texts[0][:131], 0, hidden[0][:131])])
        other.forward([Rows(each, [0] * 3, 0, h[:3]) for each, h in zip(sequences[1:3], hidden[1:3], strict=True)])
        requests = [
            DraftInput(sequence, text[-1:], count, unsure, h[sequence.length :])
            for sequence, text, count, h, unsure in zip(
                sequences, texts, counts, hidden, [least, 0, 0, 0, 0], strict=True
            )
        ]
        got = other.draft_many(requests, 150)
        for index, (drafted, likely) in enumerate(got):
            end = ended if index == 0 else counts[index]
            assert drafted == alone[index][0][:end]
            assert likely == alone[index][1][:end]
            assert sequences[index].length == len(hidden[index])
            assert len(sequences[index].blocks) == -(-len(hidden[index]) // 256)


def test_blocks_that_cannot_be() -> None:
    """They would be drafted by rows that are not there."""
    _, head = native("dflash", "fp32")
    hidden = np.zeros((2, 128), np.float32)
    with pytest.raises(IpexAssistError, match="9 tokens of a block of 9: it drafts 1 to 8"):
        head.draft(head.new_sequence(9), [1], 9, hidden=hidden)
    with pytest.raises(IpexAssistError, match="after one token: 2 given"):
        head.draft(head.new_sequence(9), [1, 2], 3, hidden=hidden)
    with pytest.raises(IpexAssistError, match="logits of 1 rows of hidden states"):
        head.forward([Rows(head.new_sequence(9), [1, 2], 1, hidden)])


@pytest.mark.parametrize("kind", FED_BACK[:1])
def test_hidden_states_are_asked_for(kind: str) -> None:
    """A head without them would read memory that is not there; so would other models with them."""
    target, head = native(kind, "fp32")
    size = target.spec.hidden_size
    with pytest.raises(IpexAssistError, match=rf"reads hidden states \(2, {size}\): none given"):
        head.forward([Rows(head.new_sequence(9), [1, 2])])
    with pytest.raises(IpexAssistError, match=rf"\(2, {size}\): \(1, {size}\) given"):
        head.draft(head.new_sequence(9), [1, 2], 2, hidden=np.zeros((1, size), np.float32))
    with pytest.raises(IpexAssistError, match="no draft head"):
        target.forward([Rows(target.new_sequence(9), [1], 1, np.zeros((1, size), np.float32))])


def test_a_table_and_head_of_the_target() -> None:
    """They are not in the image of a head, and without them it does not run."""
    target, head = native("deepseek-v3", "bf16")
    assert head.spec.head is not None
    assert head.spec.head.shared_embedding
    assert head.packed.nbytes < target.packed.nbytes / 2


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "dflash2", "dspark"])
def test_buffers_are_planned(kind: str) -> None:
    """Of a head with a wide target, whose hidden states take more than all else of a pass."""
    _, head = native(kind, "bf16")
    spec = head.spec
    assert spec.head is not None
    wide = replace(spec.head, target_hidden_size=spec.head.target_hidden_size * 100)
    largest = PlannedPasses(wanted=1, context=1024, threads=2)
    plain, with_head = (
        core_sizes(replace(spec, head=each), "bf16", 64, largest).workspace for each in (spec.head, wide)
    )
    more = with_head - plain
    assert more > 4 * 256 * wide.input_size * 2  # as they are given, and as fc multiplies them
