"""mixture.py on a tiny mixture: what it counts must be what passes read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mixture
import pytest
from conftest import HAS_NATIVE

from ipex_assist.bench.pairs import published_config
from ipex_assist.env.errors import IpexAssistError

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason="it counts in the native core")]
SMALL = {"hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 16, "vocab_size": 160, "num_attention_heads": 8}


@pytest.fixture(autouse=True)
def _smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixture, "published_config", lambda source: published_config(source) | SMALL)
    monkeypatch.setattr(mixture, "leave_cores_to_native", lambda: None)
    for module in (mixture, mixture.mixture_llama):
        monkeypatch.setattr(module, "read_bandwidth", lambda pool, repeats: 10.0)


def test_experts_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """One row reads as many as it has, more rows no more than there are; a counter of another pass would not."""
    argv = ["--layers", "2", "--rows", "1,4", "--requests", "3", "--repeats", "2", "--context", "5"]
    assert mixture.run(mixture.parse(argv)) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    one, four, three = found["results"]
    assert (found["layers"], one["case"], three["case"]) == (2, "1 rows", "3 requests")
    assert one["experts"]["samples"] == [16, 16]  # 8 in each of two layers
    assert one["uniform_experts"] == 16
    assert all(16 < read <= 32 for read in four["experts"]["samples"] + three["experts"]["samples"])
    expert = 3 * 64 * 32 * mixture.LINEAR_BYTES["int4"]
    assert four["bytes"] - one["bytes"] == pytest.approx((four["experts"]["median"] - 16) * expert)
    assert three["tokens_per_s"] > 0


def test_a_model_without_experts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its bytes are weights, keys and values, and the states of each sequence's recurrent layers."""
    small = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 100, "num_attention_heads": 2, "head_dim": 32}
    few = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_key_value_heads": 1}
    monkeypatch.setattr(mixture, "published_config", lambda source: published_config(source) | small | few)
    flags = ["--model", "Qwen/Qwen3.5-9B", "--layers", "4", "--rows", "1,5", "--requests", "3", "--repeats", "1"]
    assert mixture.run(mixture.parse(flags)) == 0
    one, five, three = json.loads(capsys.readouterr().out.splitlines()[-1])["results"]
    assert one["experts"]["samples"] == [0]
    assert five["bytes"] == one["bytes"]
    keys_and_values = 2 * 32 * 2 * 64  # one attention layer of bf16, 64 tokens
    assert three["bytes"] - one["bytes"] == 2 * (3 * 4 * 4 * 128 * 128 + keys_and_values)


def test_tables_of_n_grams_are_left_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A table of 102 GB that is made of random numbers, or a result that does not say what it is of."""
    small = SMALL | {"linear_num_key_heads": 1, "linear_num_value_heads": 1, "hc_lowrank": 32}
    monkeypatch.setattr(mixture, "published_config", lambda source: published_config(source) | small)
    argv = ["--pair", "qwen3.8-flash-next", "--layers", "4", "--rows", "1", "--requests", "1", "--repeats", "1"]
    assert mixture.run(mixture.parse(argv)) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["layers"] == 4
    assert found["model"].endswith("the first 4 of 48 layers, without embeddings of n-grams")


def test_a_model_is_cut_to_what_fits() -> None:
    """A model of 47 layers that is loaded whole ends in a message of the system's, or ends everything else."""
    config = published_config("zai-org/GLM-4.7-Flash")
    assert mixture.fitting_layers(config, "int4", 1 << 40) == 47
    layers = mixture.fitting_layers(config, "int4", 4 << 30)
    assert 1 < layers < 47
    spec = mixture.RandomCheckpoint("m", mixture.first_layers(config, layers + 1)).spec
    assert mixture.native_bytes(spec, "int4", wanted=8, longest=256).weights > 4 << 30
    with pytest.raises(mixture.UsageError, match=r"not one layer in int4 fits the 0\.1 GB"):
        mixture.fitting_layers(config, "int4", 100_000_000)


PROGRAM = """#!/usr/bin/env python3
import json, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert open(given["-m"], "rb").read(4) == b"GGUF", given
assert int(given["-c"]) >= 3 * 256
print("loaded")
for count in given["-npl"].split(","):
    print(json.dumps({"pl": int(count), "speed_tg": 10.0 * int(count), "tg": 16}))
"""


def test_llama_cpp_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Turns before and after ours on a file of these shapes, and the ratio of equal numbers of requests."""
    program = tmp_path / "llama-batched-bench"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    argv = ["--layers", "2", "--rows", "1,5", "--requests", "3", "--repeats", "2", "--context", "5"]
    assert mixture.run(mixture.parse([*argv, "--llama-cpp", str(tmp_path), "--scratch", str(tmp_path)])) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["llama_cpp_tokens_per_s"] == [{"1": 10.0, "3": 30.0}] * 2
    assert found["model"].endswith("the first 2 of 48 layers")
    one, five, three, *theirs = found["table"]
    assert [line["case"] for line in theirs] == ["llama.cpp Q4_0, 1 requests", "llama.cpp Q4_0, 3 requests"]
    speeds = [result["tokens_per_s"] for result in found["results"]]
    assert [line["÷ llama.cpp"] for line in theirs] == [f"{speeds[0] / 10:.2f}", f"{speeds[2] / 30:.2f}"]
    assert [line["read GB/s"] for line in theirs] == ["10.0 and 10.0"] * 2
    assert one["× one row"] == "1.00"
    assert five["÷ llama.cpp"] == three["÷ llama.cpp"] == ""
    assert list(tmp_path.glob("*/model.gguf")) == []


def test_llama_cpp_that_fails_says_why(tmp_path: Path) -> None:
    """A traceback, or a table without it."""
    program = tmp_path / "llama-batched-bench"
    program.write_text("#!/bin/sh\necho cannot load >&2\nexit 3\n")
    program.chmod(0o755)
    args = mixture.parse(["--layers", "2", "--llama-cpp", str(tmp_path), "--scratch", str(tmp_path)])
    with pytest.raises(IpexAssistError, match="llama-batched-bench ended with 3: cannot load"):
        mixture.run(args)
    (tmp_path / "llama-batched-bench").unlink()
    with pytest.raises(IpexAssistError, match=r"--llama-cpp .*: there is no llama-batched-bench"):
        mixture.run(args)
