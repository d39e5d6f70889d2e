"""A config.json with values that cannot be: through the command, one sentence and exit 1."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from checkpoint_files import tiny_tokenizer

from ipex_assist import cli, load
from ipex_assist.checkpoints.open import OpenCheckpoints, open_checkpoint
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.registry import EXECUTORS
from ipex_assist.models import ARCHITECTURES
from ipex_assist.models.config import Config, ConfigError
from ipex_assist.models.rope_spec import Rope

GONE = object()
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

# What config.json says instead, and what the message must contain.
LLAMA: dict[str, tuple[dict[str, Any], str]] = {
    "zero layers": ({"num_hidden_layers": 0}, "num_hidden_layers is 0 in the model's config; it must be from 1"),
    "negative layers": ({"num_hidden_layers": -2}, "num_hidden_layers is -2"),
    "a trillion layers": ({"num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000"),
    "no hidden_size": ({"hidden_size": GONE}, "lacks hidden_size"),
    "hidden_size null": ({"hidden_size": None}, "lacks hidden_size"),
    "hidden_size float": (
        {"hidden_size": 64.0},
        "hidden_size is 64.0",
    ),
    "hidden_size text": ({"hidden_size": "64"}, 'hidden_size is "64"'),
    "hidden_size of all memory": ({"hidden_size": 1 << 40}, "hidden_size is 1099511627776"),
    "hidden_size larger than the tensors": ({"hidden_size": 1 << 16, "head_dim": 16}, "by config.json"),
    "rope_scaling text": ({"rope_scaling": "linear", "rope_parameters": GONE}, 'rope_scaling is "linear"'),
    "rope_parameters a list": ({"rope_parameters": [1]}, "rope_parameters is [1]"),
    "no factor": ({"rope_parameters": {"rope_type": "linear"}}, "factor is null"),
    "factor 0": ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "factor is 0"),
    "factor NaN": ({"rope_parameters": {"rope_type": "dynamic", "factor": math.nan}}, "factor is NaN"),
    "high below low": ({"rope_parameters": LLAMA3 | {"high_freq_factor": 0.5}}, "high_freq_factor is 0.5"),
    "yarn of 0": ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 0}}, "beta_fast is 0"),
    "yarn of nothing": (
        {"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 0}},
        "factor is null",
    ),
    "rope_theta 0": ({"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, "rope_theta is 0"),
    "rope_theta Infinity": ({"rope_parameters": GONE, "rope_theta": math.inf}, "rope_theta is Infinity"),
    "eps -1": ({"rms_norm_eps": -1}, "rms_norm_eps is -1"),
    "eps NaN": ({"rms_norm_eps": math.nan}, "rms_norm_eps is NaN"),
    "eps beyond the floats": ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1000"),
    "head_dim 0": ({"head_dim": 0}, "head_dim is 0"),
    "head_dim odd": ({"head_dim": 15}, "head_dim is 15"),
    "no heads": ({"num_attention_heads": 0}, "num_attention_heads is 0"),
    "heads by none": (
        {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": GONE},
        "num_attention_heads is 3",
    ),
    "3 kv heads for 4": ({"num_key_value_heads": 3}, "num_key_value_heads is 3"),
    "8 kv heads for 4": ({"num_key_value_heads": 8}, "num_key_value_heads is 8"),
    "no kv heads": ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
    "vocab_size true": ({"vocab_size": True}, "vocab_size is true"),
    "context text": ({"max_position_embeddings": "long"}, 'max_position_embeddings is "long"'),
    "tied a number": ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1"),
    "activation a list": ({"hidden_act": ["silu"]}, 'hidden_act is ["silu"]'),
}
OTHERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "opt ffn_dim": ("opt", {"ffn_dim": -1}, "ffn_dim is -1"),
    "opt embedding": ("opt", {"word_embed_proj_dim": 0}, "word_embed_proj_dim is 0"),
    "opt bias": ("opt", {"enable_bias": "yes"}, 'enable_bias is "yes"'),
    "bigcode layers": ("gpt-bigcode", {"n_layer": 0}, "n_layer is 0"),
    "bigcode heads": ("gpt-bigcode", {"n_head": 0}, "n_head is 0"),
    "bigcode eps": ("gpt-bigcode", {"layer_norm_epsilon": math.inf}, "layer_norm_epsilon is Infinity"),
    "bigcode missing": ("gpt-bigcode", {"n_embd": GONE}, "lacks n_embd"),
    "mistral window": ("mistral", {"sliding_window": -8}, "sliding_window is -8"),
    "qwen2 window": ("qwen2-window", {"sliding_window": "8"}, 'sliding_window is "8"'),
    "qwen2 layer_types": ("qwen2-window", {"layer_types": ["full_attention"]}, "layer_types is"),
    "qwen3 head_dim": ("qwen3", {"head_dim": 32.5}, "head_dim is 32.5"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer for each variant that is used here."""
    folder = tmp_path_factory.mktemp("models")
    for variant in {"llama", *(variant for variant, *_ in OTHERS.values())}:
        tiny_models.save(folder / variant, variant, vocab_size=320)
        tiny_tokenizer().save_pretrained(folder / variant)
    return folder


def changed(models: Path, variant: str, folder: Path, changes: dict[str, Any]) -> Path:
    """A copy of a model whose config.json has `changes`."""
    shutil.copytree(models / variant, folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    stored = {name: value for name, value in config.items() if value is not GONE}
    (folder / "config.json").write_text(json.dumps(stored))
    return folder


CASES = {
    **{name: ("llama", *case) for name, case in LLAMA.items()},
    **OTHERS,
}


@pytest.mark.parametrize("case", CASES)
def test_values_that_cannot_be(case: str, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each was a crash, a traceback, a hang, or a text of nonsense with exit 0."""
    variant, changes, message = CASES[case]
    folder = changed(models, variant, tmp_path / "m", changes)
    flags = ["-p", "a", "--max-new-tokens", "2", "--no-assisted"]
    assert cli.main(["-m", str(folder), "--no-launch", *flags]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("ipex-assist: error: ")
    assert message in error
    assert str(folder) in error
    assert cli.main(["-m", str(folder), "--dry-run", *flags]) == 0  # the launcher's estimate meets it first
    assert "Traceback" not in capsys.readouterr().err


NOT_COMPUTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "activation": ("llama", {"hidden_act": "quick_gelu"}, "activation 'quick_gelu' is not supported"),
}


@pytest.mark.parametrize("case", NOT_COMPUTED)
def test_what_we_do_not_compute_runs_through_transformers(
    case: str, models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Text comes, and a line that says why our decoder does not run it."""
    variant, changes, reason = NOT_COMPUTED[case]
    folder = changed(models, variant, tmp_path / "m", changes)
    assert cli.main(["-m", str(folder), "--no-launch", "-p", "a", "--max-new-tokens", "4", "--no-assisted"]) == 0
    assert reason in caplog.text


def test_partial_rotary_goes_to_transformers(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it can run a Llama so is transformers' business (it could not in every version); ours is to say why."""
    folder = changed(models, "llama", tmp_path / "m", {"partial_rotary_factor": 0.5})
    assert cli.main(["-m", str(folder), "--no-launch", "-p", "a", "--max-new-tokens", "4", "--no-assisted"]) in (0, 1)
    assert "over a part of each head (partial_rotary_factor)" in caplog.text
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("named", ["LlamaForCausalLM", [7], [], {}, 7])
def test_architectures_of_a_wrong_type_count_as_none(
    named: Any, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers goes by model_type, and runs it."""
    folder = changed(models, "llama", tmp_path / "m", {"architectures": named})
    assert cli.main(["-m", str(folder), "--no-launch", "-p", "a", "--max-new-tokens", "2"]) == 0
    assert cli.main(["-m", str(folder), "--dry-run", "-p", "a"]) == 0
    assert "Traceback" not in capsys.readouterr().err


def test_an_unreadable_target_is_refused_before_its_assistant_is_fetched(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layout we cannot read cost the download of the family's assistant first."""
    quantization = {"quantization_config": {"quant_method": "gptq", "bits": 5, "group_size": 128}}
    folder = changed(models, "llama", tmp_path / "m", quantization)
    opened: list[str] = []

    opening = OpenCheckpoints.open

    def fetch(checkpoints: OpenCheckpoints, source: str, **options: Any) -> Any:
        opened.append(source)
        return opening(checkpoints, source, **options)

    monkeypatch.setattr(OpenCheckpoints, "open", fetch)
    monkeypatch.setattr(
        "ipex_assist.generation.resolved.default_assistant", lambda *_: "HuggingFaceTB/SmolLM2-135M-Instruct"
    )
    with pytest.raises(IpexAssistError, match="it has 5 bits"):
        load(str(folder))
    assert opened == [str(folder)]


def test_no_memory_is_taken_for_shapes_that_only_the_config_has(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    """A width of 65,536 beside tensors of 64: the core would allocate gigabytes before it saw the first tensor."""
    folder = changed(models, "llama", tmp_path / "m", {"hidden_size": 1 << 16, "head_dim": 16})
    asked = replace(EXECUTORS[executor], load=lambda _: pytest.fail("the executor was asked"))
    monkeypatch.setitem(EXECUTORS, executor, asked)
    with pytest.raises(IpexAssistError, match=r"embed_tokens\.weight has the shape \(320, 64\)"):
        load_model(LoadRequest(open_checkpoint(str(folder)), "fp32", executor))


def test_numbers_of_a_spec_are_checked_however_it_is_made() -> None:
    """Not by the model files alone: a spec that is made or changed in Python is checked, too."""
    spec = ARCHITECTURES["LlamaForCausalLM"].spec(tiny_models.VARIANTS["llama"])
    layer = spec.layers[0]
    wrong = [
        *((spec, name, value) for name, value in (("norm_eps", math.nan), ("layers", ()), ("ropes", ()))),
        *((layer, name, value) for name, value in (("norm_place", "behind"), ("residual_multiplier", 0.0))),
        *((layer.attention, name, value) for name, value in (("head_dim", 0), ("kv_heads", 3), ("window", 0))),
        *((layer.mlp, name, value) for name, value in (("activation", "mish"), ("intermediate_size", 1 << 23))),
    ]
    for part, name, value in wrong:
        with pytest.raises(ConfigError):
            replace(part, **{name: value})
    with pytest.raises(ConfigError, match="factor is null"):
        Rope(kind="linear")


def test_types_of_a_config() -> None:
    """null is a value that is not there; nothing else is taken for something it is not."""
    config = Config({"n_embd": 8, "eps": 1, "flag": False, "text": "x", "nothing": None}, {"hidden_size": "n_embd"})
    assert (config.integer("hidden_size"), config.number("eps"), config.flag("flag", True)) == (8, 1, False)
    assert (config.text("text", ""), config.integer("nothing", 3), config.optional_integer("nothing")) == ("x", 3, None)
    with pytest.raises(ConfigError, match="lacks nothing"):
        config.integer("nothing")
    with pytest.raises(ConfigError, match=r"n_embd is 8 .* it must be a string"):
        config.text("hidden_size", "")
    with pytest.raises(ConfigError, match=r"flag is false .* it must be a whole number"):
        config.integer("flag")
