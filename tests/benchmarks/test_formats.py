"""formats.py on a tiny file: files are made once, scores are of the same windows, and ratios of equal things."""

from __future__ import annotations

import json
import math
from pathlib import Path

import checkpoint_files
import formats
import gguf
import pytest
from conftest import HAS_NATIVE

from ipex_assist.env.errors import IpexAssistError

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason="it measures the native core")]
SIZES = {"hidden_size": 256, "intermediate_size": 512, "max_position_embeddings": 1024}
BENCH = """#!/usr/bin/env python3
import json, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
for count in given["-npl"].split(","):
    print(json.dumps({"pl": int(count), "speed_tg": 10.0 * int(count), "tg": 16}))
"""
PERPLEXITY = """#!/usr/bin/env python3
import sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert (given["-c"], given["--chunks"]) == ("512", "2") and open(given["-f"]).read(), given
print("[1]99.0,[2]100.0,")
print("Final estimate: PPL = 100.0000 +/- 1.00000", file=sys.stderr)
"""
QUANTIZE = """#!/usr/bin/env python3
import shutil, sys
_, flag, source, to, kind, threads = sys.argv
assert (flag, kind) == ("--allow-requantize", "Q4_0")
shutil.copy(source, to)
"""


def programs(folder: Path, **texts: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        program = folder / f"llama-{name.replace('_', '-')}"
        program.write_text(text)
        program.chmod(0o755)
    return folder


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(formats, "leave_cores_to_native", lambda: None)
    monkeypatch.setattr("mixture_llama.read_bandwidth", lambda pool, repeats: 10.0)
    model = checkpoint_files.tiny_model("llama", **SIZES)
    path = tmp_path / "tiny.gguf"
    checkpoint_files.write_gguf(model, path, gguf.GGMLQuantizationType.Q8_0, {"general.file_type": 7})
    return path


def test_beside_llama_cpp(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file's own type is itself; another is written by who writes it; windows are llama-perplexity's."""
    there = programs(tmp_path / "bin", batched_bench=BENCH, perplexity=PERPLEXITY, quantize=QUANTIZE)
    argv = [str(file), "--scratch", str(tmp_path / "s"), "--types", "Q8_0,Q6_K,Q4_0", "--llama-cpp", str(there)]
    argv += ["--max-tokens", "1100", "--requests", "1,3", "--repeats", "1", "--keep-files"]
    assert formats.run(formats.parse(argv)) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert sorted(path.name for path in (tmp_path / "s").glob("*.gguf")) == ["tiny-Q4_0.gguf", "tiny-Q6_K.gguf"]
    first, second, copy = found["results"]
    assert first["llama_cpp"] == [{"1": 10.0, "3": 30.0}]
    assert first["divergence"] < second["divergence"]
    assert copy["perplexity"] == first["perplexity"]
    row = found["table"][0]
    assert row["÷ llama.cpp, 3"] == f"{first['ours'][0]['speeds']['3'] / 30:.2f}"
    assert row["÷ llama.cpp's"] == f"{first['perplexity'] / 100:.4f}"
    assert 8.5 < float(row["bits"]) < 9
    assert float(row["memory ÷ file"]) >= 1


def test_goes_on_where_it_was_interrupted(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A type that is done is not done again, one that is half done keeps its file and scores; another core measures."""
    argv = [str(file), "--scratch", str(tmp_path), "--types", "Q8_0,Q6_K", "--max-tokens", "600", "--repeats", "1"]
    args, turn = formats.parse([*argv, "--requests", "1"]), formats.turn
    measured: list[str] = []

    def interrupted(path: Path, counts: list[int]) -> dict[str, object]:
        measured.append(path.name)
        if measured == ["tiny.gguf", "tiny-Q6_K.gguf"]:
            raise KeyboardInterrupt
        return turn(path, counts)

    monkeypatch.setattr(formats, "turn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        formats.run(args)
    monkeypatch.setattr(formats, "compare", lambda *_: pytest.fail("scored again"))
    assert formats.run(args) == 0
    assert measured == ["tiny.gguf", "tiny-Q6_K.gguf", "tiny-Q6_K.gguf"]
    assert [path.name for path in tmp_path.glob("*.gguf")] == ["tiny.gguf"]
    table = json.loads(capsys.readouterr().out.splitlines()[-1])["table"]
    assert [row["type"] for row in table] == ["Q8_0", "Q6_K"]
    monkeypatch.setattr(formats, "CORE", file)
    assert formats.run(args) == 0
    assert measured[3:] == ["tiny.gguf", "tiny-Q6_K.gguf"]


def test_scores_are_kept(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows and their halves, by the definition; a second run scores nothing again, unless the text is another."""
    args = formats.parse([str(file), "--scratch", str(tmp_path), "--types", "Q8_0", "--max-tokens", "1100"])
    args.repeats = 0
    assert formats.run(args) == 0
    kept = json.loads((tmp_path / "tiny-Q8_0.json").read_text())["scores"]
    tokens, model = kept["key"][2][0], formats.loaded(file)
    losses = []
    for start in (0, 512):
        sequence = model.new_sequence(512)
        logs = model.extend(sequence, tokens[start : start + 511], last=255).log_softmax(-1)
        losses += [-float(line[token]) for line, token in zip(logs, tokens[start + 257 : start + 512], strict=True)]
    assert kept["found"]["perplexity"] == pytest.approx(math.exp(sum(losses) / len(losses)))
    monkeypatch.setattr(formats, "compare", lambda *_: pytest.fail("scored again"))
    assert formats.run(args) == 0
    args.max_tokens = 600
    with pytest.raises(pytest.fail.Exception, match="scored again"):
        formats.run(args)


def test_what_cannot_be_made_is_left_out(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A type that only llama.cpp writes needs llama.cpp, and a program that fails says why."""
    argv = [str(file), "--scratch", str(tmp_path), "--types", "Q8_0,Q2_K", "--max-tokens", "600", "--repeats", "0"]
    assert formats.run(formats.parse(argv)) == 0
    assert "Q2_K: left out, because --llama-cpp names no llama-quantize" in capsys.readouterr().err
    there = programs(tmp_path / "bin", quantize="#!/bin/sh\necho no such type >&2\nexit 1\n")
    with pytest.raises(IpexAssistError, match="llama-quantize ended with 1: no such type"):
        formats.run(formats.parse([*argv, "--types", "Q2_K", "--llama-cpp", str(there)]))
