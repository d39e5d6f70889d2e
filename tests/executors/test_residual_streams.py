"""Several residual streams whose rows are mixed, of which no family here has any: against DeepSeek-V4's own module."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import tiny_models
import torch
from conftest import HAS_NATIVE
from native_models import relative, tokens

from ipex_assist.executors.torch.streams import StreamLayer, read_streams, write_streams
from ipex_assist.models import hy_v4, llama
from ipex_assist.models.config import Config
from ipex_assist.models.stream_spec import StreamSpec
from ipex_assist.native.library import unavailable

VARIANTS = tiny_models.known("hy-v4")
pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not VARIANTS, reason="of today's transformers")]
STEPS, COUNT, HIDDEN = 5, 4, 64


def test_a_mixture_is_that_of_transformers() -> None:
    """The matrix is read by columns, and its rows and columns are divided in transformers' order."""
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as theirs

    config = theirs.DeepseekV4Config(hidden_size=HIDDEN, hc_mult=COUNT, hc_sinkhorn_iters=STEPS, hc_eps=0.01)
    module = theirs.DeepseekV4HyperConnection(config)
    random = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=random) * 0.3
    streams = torch.randn((1, 7, COUNT, HIDDEN), generator=random)
    delta = torch.randn((1, 7, HIDDEN), generator=random)
    with torch.no_grad():
        post, mixture, collapsed = module(streams)
        after = post[..., None] * delta[..., None, :] + mixture.transpose(-1, -2) @ streams
    of = Config(tiny_models.VARIANTS["llama"] | {"rms_norm_eps": config.rms_norm_eps}, llama.NAMES)
    spec = replace(llama.spec(of), streams=StreamSpec(COUNT, STEPS, config.hc_eps))
    layer = StreamLayer(
        lambda x: x @ module.fn.data.T,
        module.base.data,
        module.scale.data,
    )
    x = streams[0].flatten(1)
    assert relative(read_streams(spec, x, layer), collapsed[0]) < 1e-6
    assert relative(write_streams(spec, x, delta[0], layer), after[0].flatten(1)) < 1e-6


@pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")
def test_the_core_mixes_likewise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with such streams, in a prompt and in steps."""
    monkeypatch.setattr(hy_v4, "StreamSpec", lambda count, eps, gain, gain_eps: StreamSpec(count, STEPS, eps))
    tiny_models.save(tmp_path, "hy-v4")
    (file,) = tmp_path.glob("*.safetensors")
    state, random = safetensors.torch.load_file(file), torch.Generator().manual_seed(1)
    for name, tensor in state.items():
        if ".hc_pre." in name and "layers" in name:
            rows = 3 if name.endswith("scale") else COUNT * (2 + COUNT)
            state[name] = torch.randn((rows, *tensor.shape[1:]), generator=random) * 0.3
    safetensors.torch.save_file(state, file, {"format": "pt"})
    prompt = tokens(40, 3)
    native, plain = (tiny_models.model(tmp_path, executor) for executor in ("native", "torch"))
    expected = plain.extend(plain.new_sequence(60), prompt, len(prompt))
    sequence = native.new_sequence(60)
    steps = torch.cat([native.extend(sequence, [token]) for token in prompt])
    assert relative(steps, expected) < 1e-5
    assert torch.equal(native.extend(native.new_sequence(60), prompt, len(prompt)), steps)
