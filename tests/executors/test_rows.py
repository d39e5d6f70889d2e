"""A row's bits depend on the tokens before it and the weights alone: random models, random splits into passes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import HAS_NATIVE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_models import PRECISIONS, pool, tokens

from ipex_assist.executors.interface import Rows
from ipex_assist.executors.native import segments
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.models.attention_spec import AttentionSpec, HeadNorm
from ipex_assist.models.layers import repeated, with_attention
from ipex_assist.models.mlp_spec import Activation, Experts, MlpSpec
from ipex_assist.models.rope_spec import Rope
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.weights import weight_shape
from ipex_assist.native import build, library
from ipex_assist.native.library import ISA_VARIABLE, Pool, instruction_set, unavailable
from ipex_assist.native.model import PackedModel

pytestmark = [
    pytest.mark.one_stack,  # the core is the same C++ on both; torch holds the numbers
    pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or ""),
]

VOCAB, CONTEXT = 50, 640
LEVELS = ("avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx", "emulated amx")
SOME = settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


INNER = st.sampled_from([33, 96, 300, 2100])
ACTIVATION: st.SearchStrategy[Activation] = st.sampled_from(["silu", "relu", "gelu", "gelu_tanh", "relu2"])


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The core with plain arrays for AMX's tiles."""
    path = tmp_path_factory.mktemp("emulated") / "_core.so"
    build.build(path, emulate_amx=True)
    return path


@pytest.fixture(params=LEVELS)
def pools(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Pool]]:
    """Pools of 1 to 4 threads of a core on each instruction set that this machine has, or can emulate and has not."""
    if request.param != "emulated amx":
        monkeypatch.setenv(ISA_VARIABLE, request.param)
        if instruction_set() != request.param:
            pytest.skip(f"this processor has no {request.param}")
        yield [pool(threads) for threads in (1, 2, 3, 4)]
        return
    monkeypatch.setenv(ISA_VARIABLE, "avx512_bf16")
    if "amx_tile" in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has the tiles themselves")
    if instruction_set() != "avx512_bf16":
        pytest.skip("the emulated tiles are compiled for a processor with avx512_bf16")
    monkeypatch.setenv(ISA_VARIABLE, "")
    monkeypatch.setattr(library, "PATH", request.getfixturevalue("emulated"))
    library.library.cache_clear()
    assert instruction_set() == "amx"
    own = [Pool(threads) for threads in (1, 2, 3, 4)]
    yield own
    for each in own:
        each.close()
    library.library.cache_clear()


@st.composite
def some_experts(draw: st.DrawFn) -> Experts:
    """Few or many, all of them or one, with what is shared."""
    count, shared = draw(st.sampled_from([1, 3, 5, 16, 33])), draw(st.sampled_from([0, 0, 20, 150]))
    return Experts(
        count=count,
        per_token=draw(st.integers(1, min(count, 4))),
        intermediate_size=draw(INNER),
        activation=draw(ACTIVATION),
        gated=draw(st.booleans()),
        bias=draw(st.booleans()),
        normalised=draw(st.booleans()),
        router_bias=draw(st.booleans()),
        shared_size=shared,
        shared_gate=shared > 0 and draw(st.booleans()),
    )


@st.composite
def attentions(draw: st.DrawFn) -> AttentionSpec:
    """Heads that share keys, odd sizes, biases, norms; positions and windows are drawn later."""
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.sampled_from([1, 2, 3, 8]))
    qk_norm: HeadNorm | None = draw(st.sampled_from([None, "head", "each_head", "all_heads"]))
    gate = draw(st.sampled_from([None, "value", "head"]))
    return AttentionSpec(
        heads,
        kv_heads,
        head_dim=draw(st.sampled_from([2, 10, 16, 24, 64, 80])),
        rotary_dim=draw(st.sampled_from([None, 2])),
        alibi_slopes=tuple(2.0**-head for head in range(heads)) if draw(st.booleans()) else (),
        qkv_bias=draw(st.booleans()),
        output_bias=draw(st.booleans()),
        qk_norm=qk_norm,
        norm_after_rope=qk_norm != "all_heads" and draw(st.booleans()),
        growth=draw(st.sampled_from([0.0, 0.1])),
        growth_step=7,
        output_gate=gate is not None,
        gate_per_head=gate == "head",
        gate_activation=draw(st.sampled_from(["sigmoid", "softplus"])) if gate else "sigmoid",
        cap=draw(st.sampled_from([None, 2.0])),
    )


@st.composite
def one_layer(draw: st.DrawFn, experts: bool) -> LayerSpec:
    """What a family may ask of a layer."""
    parallel = draw(st.booleans())
    mlp = MlpSpec(draw(INNER), draw(ACTIVATION), gated=draw(st.booleans()), bias=draw(st.booleans()))
    return LayerSpec(
        draw(attentions()),
        draw(some_experts()) if experts else None if not parallel and draw(st.booleans()) else mlp,
        norm_place="pre" if parallel else draw(st.sampled_from(["pre", "post_residual", "post", "sandwich"])),
        parallel=parallel,
        shared_norm=parallel and draw(st.booleans()),
        residual_multiplier=draw(st.sampled_from([1.0, 0.22])),
    )


@st.composite
def specs(draw: st.DrawFn, experts: bool = False) -> DecoderSpec:
    """Whatever a family may ask for: layers alike or not, with windows and ropes of their own, learned positions."""
    count, rotary, norm = draw(st.integers(1, 2)), draw(st.booleans()), draw(st.sampled_from(["rms", "layer"]))
    tied = draw(st.booleans())
    layers = repeated(draw(one_layer(experts)), count)
    if draw(st.booleans()):  # the last layer is another, in a mixture with experts or without
        layers = (*layers[:-1], draw(one_layer(experts and draw(st.booleans()))))
    seen = st.one_of(st.none(), st.sampled_from([1, 7, 100, 256, 300]))
    layers = with_attention(layers, "window", [draw(seen) for _ in layers])
    layers = with_attention(layers, "rope", [draw(st.sampled_from([0, 1, None])) if rotary else None for _ in layers])
    return DecoderSpec(
        model_type="random",
        vocab_size=VOCAB,
        hidden_size=draw(st.sampled_from([16, 40, 77, 200, 1100])),  # the sums of floats go by chunks of 1024
        layers=layers,
        max_position_embeddings=CONTEXT,
        norm=norm,  # type: ignore[arg-type]
        norm_bias=draw(st.booleans()),
        embedding_norm=draw(st.booleans()),
        norm_affine=draw(st.booleans()),
        final_norm=draw(st.booleans()),
        ropes=(Rope(), Rope(100.0)) if rotary else (),
        learned_positions=not rotary and not any(layer.attention.alibi_slopes for layer in layers),
        position_offset=0 if rotary else draw(st.sampled_from([0, 2])),
        head_bias=draw(st.booleans()) and not tied,
        logit_cap=draw(st.sampled_from([None, 30.0])),
        embedding_multiplier=draw(st.sampled_from([1.0, 3.5])),
        tied_head=tied,
        embedding_size=draw(st.sampled_from([None, 24])),
    )


def weight_names(spec: DecoderSpec) -> list[str]:
    """Our names of every weight that the spec asks for."""
    norms = ["weight", "bias"] if spec.norms_biased else ["weight"]
    names = ["embed_tokens.weight"]
    names += [] if spec.tied_head else ["lm_head.weight"]
    names += ["lm_head.bias"] if spec.head_bias else []
    names += ["embed_positions.weight"] if spec.learned_positions else []
    names += ["project_in.weight", "project_out.weight"] if spec.projected_embedding else []
    names += [f"final_norm.{kind}" for kind in norms if spec.final_norm and spec.norm_affine]
    names += [f"embed_norm.{kind}" for kind in norms if spec.embedding_norm and spec.norm_affine]
    for number, layer in enumerate(spec.layers):
        here = layer_names(layer, norms if spec.norm_affine else [])
        names += [
            f"layers.{number}.{name}" for name in (here if layer.experts is None else of_experts(layer.experts, here))
        ]
    return names


def layer_names(layer: LayerSpec, norms: list[str]) -> list[str]:
    """Those of a layer, as if it had one MLP. norms: of a norm, "weight" and "bias"."""
    attention, mlp = layer.attention, layer.mlp
    own = mlp is not None
    pre = [] if layer.norm_place == "post" else ["attention_norm"] + ["mlp_norm"] * (own and not layer.shared_norm)
    post = ["attention_out_norm", *["mlp_out_norm"] * own] if layer.norm_place in ("post", "sandwich") else []
    biases = dict.fromkeys("qkvg" if attention.output_gate else "qkv", attention.qkv_bias)
    biases |= {"o": attention.output_bias}
    if mlp is not None:
        biases |= {"up": mlp.bias, "down": mlp.bias} | ({"gate": mlp.bias} if mlp.gated else {})
    here = [f"{norm}.{kind}" for norm in pre + post for kind in norms]
    here += ["q_norm.weight", "k_norm.weight"] if attention.qk_norm else []
    here += ["sinks.weight"] if attention.sinks else []
    here += [f"{name}_proj.weight" for name in biases]
    return here + [f"{name}_proj.bias" for name, wanted in biases.items() if wanted]


def of_experts(experts: Experts, here: list[str]) -> list[str]:
    """A layer's names, with those of experts in the place of its MLP's."""
    mlp = [name for name in here if name.split("_")[0] in ("gate", "up", "down")]
    places = [f"experts.{number}" for number in range(experts.count)] + ["shared"] * (experts.shared_size > 0)
    router = ["router.weight"] + ["router.bias"] * experts.router_bias + ["shared_gate.weight"] * experts.shared_gate
    return [
        *(name for name in here if name not in mlp),
        *router,
        *(f"{place}.{name}" for place in places for name in mlp),
    ]


def random_model(spec: DecoderSpec, precision: str, threads: Pool, group: int, kv_precision: str | None) -> NativeModel:
    """A model whose weights follow from their names."""
    packed = PackedModel(spec, precision, threads, group)
    packed.allocate()
    for name in weight_names(spec):
        shape = weight_shape(spec, name)
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        made = torch.randn(shape, generator=generator)
        # Linears keep the size of what goes through them; scores then spread over a few units.
        packed.pack(name, made * (1.5 / shape[-1] ** 0.5 if len(shape) == 2 and "embed" not in name else 0.3))
    return NativeModel(packed, kv_precision=kv_precision)


def some_tokens(count: int, seed: int) -> list[int]:
    """Random tokens of the vocabulary."""
    return [token % VOCAB for token in tokens(count, seed)]


def alone(model: NativeModel, text: list[int]) -> torch.Tensor:
    """Logits (len(text), vocab) of a text that is fed token by token, with nothing beside it."""
    sequence = model.new_sequence(len(text))
    rows = torch.cat([model.extend(sequence, [token]) for token in text])
    assert torch.isfinite(rows).all()
    return rows


def check_schedule(
    data: st.DataObject, model: NativeModel, texts: list[list[int]], expected: list[torch.Tensor]
) -> None:
    """Feed the texts in passes of random rows, with wrong drafts that are rolled back, and compare all logits."""
    sequences = [model.new_sequence(CONTEXT) for _ in texts]
    while waiting := [index for index, text in enumerate(texts) if sequences[index].length < len(text)]:
        rows, bits = [], []
        for index in data.draw(st.lists(st.sampled_from(waiting), min_size=1, unique=True), label="sequences"):
            own, done = sequences[index], sequences[index].length
            part = texts[index][done : done + data.draw(st.integers(1, 20) | st.integers(1, 300), label="rows")]
            wrong = min(data.draw(st.sampled_from([0, 0, 1, 5, 30]), label="wrong"), CONTEXT - done - len(part))
            if wrong and data.draw(st.booleans(), label="drafted in one call"):
                model.draft(own, part, wrong + 1)  # its keys and values show in later rows
                own.truncate(done + len(part))
            else:
                rows.append(Rows(own, part + some_tokens(wrong, done), len(part) + wrong))
                bits.append(expected[index][done : done + len(part)])
        if not rows:
            continue
        logits = model.forward(rows).split([row.last for row in rows])
        for row, got, right in zip(rows, logits, bits, strict=True):
            assert torch.equal(got[: len(right)], right), f"rows after {row.sequence.length - row.last}"
            row.sequence.truncate(row.sequence.length - row.last + len(right))


@pytest.mark.parametrize("precision", PRECISIONS)
@SOME
@given(data=st.data())
def test_a_row_is_a_row(precision: str, pools: list[Pool], data: st.DataObject) -> None:
    """A sum whose order follows the number of rows, a neighbour that shows, a chain by slot instead of by position."""
    check_rows(data, data.draw(specs(), label="spec"), precision, pools)


@SOME
@given(data=st.data())
def test_a_row_is_a_row_of_experts(pools: list[Pool], data: st.DataObject) -> None:
    """The rows that share an expert, and the experts that share threads: neither may show in a row's bits."""
    precision = data.draw(st.sampled_from(PRECISIONS), label="precision")
    check_rows(data, data.draw(specs(experts=True), label="spec"), precision, pools)


def check_rows(data: st.DataObject, spec: DecoderSpec, precision: str, pools: list[Pool]) -> None:
    """Texts in random passes on any number of threads have the logits that they have alone, on one."""
    group = data.draw(st.sampled_from([32, 64, 128]), label="group")
    lengths = data.draw(st.lists(st.sampled_from([3, 40, 270, 530]), min_size=1, max_size=3), label="lengths")
    texts = [some_tokens(length, seed) for seed, length in enumerate(lengths)]
    threads = data.draw(st.integers(1, 4), label="threads")
    kv_precision = data.draw(st.sampled_from([None, "int8", "int8", "bf16"]), label="keys and values")
    expected = [alone(random_model(spec, precision, pools[0], group, kv_precision), text) for text in texts]
    with pytest.MonkeyPatch.context() as patch:
        # What the executor puts into one pass, where it does not take what it is given.
        patch.setattr(segments, "PASS_ROWS", data.draw(st.sampled_from([1, 17, 300]), label="rows with logits"))
        model = random_model(spec, precision, pools[threads - 1], group, kv_precision)
        model.pass_rows = data.draw(st.sampled_from([1, 16, 17, 33, 300, 2000]), label="rows of a pass")
        check_schedule(data, model, texts, expected)
