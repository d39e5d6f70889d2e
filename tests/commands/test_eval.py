"""ipex-assist eval: the perplexity transformers would compute, and agreement that means what it says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import adapter_files
import checkpoint_files
import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from ipex_assist import cli
from ipex_assist.commands.eval import TEXT
from ipex_assist.commands.perplexity import compare, perplexity, windows

TOKENS = [(7 * i * i + 3 * i) % tiny_models.VOCAB for i in range(75)]


@given(st.integers(2, 300), st.integers(2, 64), st.data())
def test_every_token_but_the_first_is_scored_once(tokens: int, length: int, data: Any) -> None:
    """Each is scored from no more than a window, with enough before it: the definition in the help."""
    stride = data.draw(st.integers(1, length - 1))
    scored: list[int] = []
    for index, window in enumerate(windows(tokens, length, stride)):
        assert window.end - window.start <= length
        assert window.start < window.scored < window.end
        if index:
            assert window.scored - window.start >= length - stride
        scored += range(window.scored, window.end)
    assert scored == list(range(1, tokens))


def loss_of_transformers(model: Any, tokens: list[int], length: int, stride: int) -> tuple[float, int]:
    """Hugging Face's own recipe: labels of -100 where an earlier window has scored, the loss times its count."""
    total, count, before = 0.0, 0, 0
    for start in range(0, len(tokens), stride):
        end = min(start + length, len(tokens))
        ids = torch.tensor([tokens[start:end]])
        labels = ids.clone()
        labels[:, : before - start] = -100
        scored = int((labels[:, 1:] != -100).sum())
        with torch.inference_mode():
            total += float(model(ids, labels=labels).loss) * scored
        count += scored
        before = end
        if end == len(tokens):
            break
    return total, count


@pytest.mark.parametrize(("length", "stride"), [(128, 64), (32, 16), (20, 19), (16, 3)])
@pytest.mark.parametrize("variant", ["llama", "opt"])
def test_perplexity_is_transformers(variant: str, length: int, stride: int, tmp_path: Path) -> None:
    """Windows, the shift by one, and the mean over tokens instead of over windows."""
    model = tiny_models.save(tmp_path, variant)
    score = perplexity(tiny_models.model(tmp_path), TOKENS, windows(len(TOKENS), length, stride))
    total, count = loss_of_transformers(model, TOKENS, length, stride)
    assert score.tokens == count == len(TOKENS) - 1
    assert score.loss == pytest.approx(total, rel=1e-5)
    assert score.perplexity == pytest.approx(math.exp(total / count), rel=1e-5)


def test_standard_error(tmp_path: Path) -> None:
    """It is what the definition gives from all tokens' losses in one window."""
    model = tiny_models.save(tmp_path, "llama")
    score = perplexity(tiny_models.model(tmp_path), TOKENS, windows(len(TOKENS), 128, 64))
    with torch.inference_mode():
        logits = model(torch.tensor([TOKENS])).logits[0, :-1]
    losses = functional.cross_entropy(logits, torch.tensor(TOKENS[1:]), reduction="none").double()
    expected = losses.mean().exp() * losses.std(correction=0) / len(losses) ** 0.5
    assert score.standard_error == pytest.approx(float(expected), rel=1e-4)


def test_a_model_agrees_with_itself_and_less_with_another(tmp_path: Path) -> None:
    """Agreement and divergence against values computed straight from transformers' logits."""
    models = [tiny_models.save(tmp_path / str(seed), "llama", seed=seed) for seed in (0, 1)]
    ours = [tiny_models.model(tmp_path / str(seed)) for seed in (0, 1)]
    same = compare(ours[0], tiny_models.model(tmp_path / "0"), TOKENS, windows(len(TOKENS), 128, 64))
    assert same.agreement.share == 1.0
    assert same.agreement.mean_divergence < 1e-6
    assert same.model.loss == same.reference.loss
    other = compare(ours[0], ours[1], TOKENS, windows(len(TOKENS), 128, 64))
    with torch.inference_mode():
        logs = [torch.log_softmax(model(torch.tensor([TOKENS])).logits[0, :-1], -1) for model in models]
    equal = (logs[0].argmax(-1) == logs[1].argmax(-1)).float().mean()
    divergence = functional.kl_div(logs[0], logs[1], reduction="none", log_target=True).sum(-1)
    assert other.agreement.share == pytest.approx(float(equal))
    assert other.agreement.mean_divergence == pytest.approx(float(divergence.mean()), rel=1e-4)
    assert other.agreement.largest == pytest.approx(float(divergence.max()), rel=1e-4)
    assert other.reference.loss == pytest.approx(perplexity(ours[1], TOKENS, windows(len(TOKENS), 128, 64)).loss)


def evaluate(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    code = cli.main(["eval", *argv, "--json", "--no-launch"])
    captured = capsys.readouterr()
    return json.loads(captured.out) if code == 0 else (code, captured.err)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("eval")
    changes = {"hidden_size": 192, "intermediate_size": 160, "num_attention_heads": 12, "num_key_value_heads": 4}
    tiny_models.save(path / "m", "llama", vocab_size=checkpoint_files.VOCAB_SIZE, **changes)
    checkpoint_files.tiny_tokenizer().save_pretrained(path / "m")
    (path / "text.txt").write_text("the quick brown fox jumps over the lazy dog; " * 12)
    return path


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures as JSON, and the same ones for people."""
    flags = ("-m", str(folder / "m"), "--text", str(folder / "text.txt"), "--window", "64", "--stride", "48")
    facts = evaluate(capsys, *flags, "--executor", "torch", "--precision", "fp32", "--against", "bf16")
    assert (facts["precision"], facts["executor"], facts["window"], facts["stride"]) == ("fp32", "torch", 64, 48)
    against = facts["against"]
    assert against["precision"] == "bf16"
    assert facts["tokens"] == against["tokens"] > 100
    assert against["perplexity_ratio"] == pytest.approx(facts["perplexity"] / against["perplexity"])
    assert 0.8 < against["same_greedy_tokens"] <= 1
    assert 0 < against["mean_kl_divergence"] < 0.01
    assert (
        cli.main(["eval", *flags, "--executor", "torch", "--precision", "fp32", "--against", "bf16", "--no-launch"])
        == 0
    )
    text = capsys.readouterr().out
    assert f"perplexity {facts['perplexity']:.4f}" in text
    assert f"same greedy tokens {against['same_greedy_tokens']:.2%}" in text


@pytest.mark.skipif(not HAS_NATIVE, reason="the native core needs AVX2")
def test_a_quantized_checkpoint_against_its_original(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """int4 by itself, bf16 when asked; and its distance from the original, which bf16 does not have."""
    assert cli.main(["quantize", "-m", str(folder / "m"), "-o", str(folder / "q"), "--no-launch"]) == 0
    flags = ("--text", str(folder / "text.txt"), "--window", "64", "--executor", "native")
    quantized = evaluate(capsys, "-m", str(folder / "q"), *flags, "--against-model", str(folder / "m"))
    assert (quantized["precision"], quantized["against"]["precision"]) == ("int4", "bf16")
    assert quantized["against"]["model"] == str(folder / "m")
    floats = evaluate(capsys, "-m", str(folder / "m"), *flags, "--against-model", str(folder / "m"))
    assert quantized["against"]["mean_kl_divergence"] > 10 * floats["against"]["mean_kl_divergence"]
    dequantized = evaluate(capsys, "-m", str(folder / "q"), *flags, "--against", "bf16")
    assert dequantized["against"]["mean_kl_divergence"] < quantized["against"]["mean_kl_divergence"]


@pytest.mark.parametrize("executor", ["torch", *(["native"] if HAS_NATIVE else [])])
def test_what_keys_and_values_of_int8_cost(executor: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are the model's alone: with them on both sides nothing would seem to be lost."""
    flags = ("-m", str(folder / "m"), "--text", str(folder / "text.txt"), "--window", "64", "--executor", executor)
    facts = evaluate(capsys, *flags, "--precision", "fp32", "--kv-precision", "int8", "--against", "fp32")
    same = evaluate(capsys, *flags, "--precision", "fp32", "--against", "fp32")
    assert (facts["kv_precision"], same["kv_precision"]) == ("int8", "fp32")
    assert facts["against"]["perplexity"] == same["perplexity"]
    assert same["against"]["mean_kl_divergence"] == 0 < facts["against"]["mean_kl_divergence"] < 5e-3
    assert cli.main(["eval", *flags, "--kv-precision", "int8", "--no-launch"]) == 0
    assert " bf16 with int8 keys and values: perplexity" in capsys.readouterr().out


@pytest.mark.parametrize("executor", ["torch", *(["native"] if HAS_NATIVE else [])])
def test_an_adapter_is_scored(executor: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the model that it is merged into; what it is compared with is the model without it."""
    model = AutoModelForCausalLM.from_pretrained(folder / "m")
    adapter = adapter_files.save_adapter(tmp_path / "adapter", model, size=0.2)
    adapter_files.merge(model, adapter)
    model.save_pretrained(tmp_path / "merged")
    AutoTokenizer.from_pretrained(folder / "m").save_pretrained(tmp_path / "merged")
    flags = ("--text", str(folder / "text.txt"), "--window", "64", "--executor", executor, "--precision", "fp32")
    plain = evaluate(capsys, "-m", str(folder / "m"), *flags)
    merged = evaluate(capsys, "-m", str(tmp_path / "merged"), *flags)
    facts = evaluate(capsys, "-m", str(folder / "m"), *flags, "--lora", str(adapter), "--against", "fp32")
    assert facts["perplexity"] == pytest.approx(merged["perplexity"], rel=1e-4)
    assert facts["against"]["perplexity"] == plain["perplexity"] != pytest.approx(facts["perplexity"], rel=1e-3)
    two = ("--lora", f"a={adapter}", "--lora", f"b={adapter}")
    assert cli.main(["eval", "-m", str(folder / "m"), *flags, *two, "--no-launch"]) == 2
    assert "2 adapters, and a text is scored with one" in capsys.readouterr().err


def test_the_text_of_the_package(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --text there is one; --max-tokens shortens it."""
    assert len(TEXT.read_text(encoding="utf-8").split()) > 1000
    facts = evaluate(capsys, "-m", str(folder / "m"), "--executor", "torch", "--max-tokens", "50")
    assert (facts["text"], facts["tokens"]) == ("evaluation.txt", 49)


REFUSED: dict[str, tuple[tuple[str, ...], int, str]] = {
    "no such text": (("--text", "/nowhere"), 2, "--text /nowhere: there is no such file"),
    "short window": (("--window", "1"), 2, "--window 1: must be at least 2"),
    "long window": (("--window", "4096"), 2, "the model's context has 128 tokens"),
    "tokens left out": (("--window", "16", "--stride", "16"), 2, "must be less than the window, 16"),
    "one token": (("--max-tokens", "1"), 2, "must be at least 2"),
    "int4 on torch": (("--against", "int4"), 2, "has no int4"),
    "unknown precision": (("--against", "int3"), 2, ""),
    "unknown precision of its own": (("--precision", "int3"), 2, "--precision int3: must be one of bf16, fp32, int8"),
    "unknown precision of keys": (("--kv-precision", "int4"), 2, "--kv-precision int4: must be one of bf16, int8"),
    "unknown executor": (("--executor", "gpu"), 2, "--executor gpu: must be one of auto, native, ipex, torch"),
    "no such model": (("--against-model", "/nowhere/m"), 2, "no such file or folder"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_usage(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The right exit code, and a line that says what to change."""
    flags, code, message = REFUSED[name]
    found = evaluate(capsys, "-m", str(folder / "m"), "--executor", "torch", *flags)
    assert found[0] == code
    assert message in found[1]


def test_texts_that_cannot_be_scored(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes that are no text, and nothing at all."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").write_text("")
    for name, message in (("binary", "cannot be read as UTF-8 text"), ("empty", "has 0 tokens")):
        found = evaluate(capsys, "-m", str(folder / "m"), "--executor", "torch", "--text", str(tmp_path / name))
        assert found[0] == 2
        assert message in found[1]


def test_other_vocabularies_are_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tokens of another tokenizer cannot be compared one by one."""
    tiny_models.save(tmp_path, "llama", vocab_size=checkpoint_files.VOCAB_SIZE)
    checkpoint_files.tiny_tokenizer(special=("<s>", "<unk>", "</s>")).save_pretrained(tmp_path)
    found = evaluate(capsys, "-m", str(folder / "m"), "--executor", "torch", "--against-model", str(tmp_path))
    assert found[0] == 2
    assert "vocabulary" in found[1]


def test_it_is_placed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--dry-run shows the command under the launcher, with the flags it was given."""
    assert cli.main(["eval", "-m", str(folder / "m"), "--against", "int8", "--dry-run"]) == 0
    line = capsys.readouterr().out
    assert "eval --placed -m" in line
    assert "--against int8" in line
