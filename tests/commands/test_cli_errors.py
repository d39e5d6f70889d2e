"""`ipex-assist` as a process: a clear message for every wrong input."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import checkpoint_files
import pytest
import torch
from command_runs import PROMPT, run, run_all

# Wrong inputs. Each: arguments (T is the target's folder, D a scratch folder), exit code, what the message must say.
WRONG_USAGE: dict[str, tuple[Sequence[str], str]] = {
    "empty prompt": (["-p", ""], "prompt is empty"),
    "blank prompt": (["-p", "  \n"], "prompt is empty"),
    "two prompts": (["-p", "a", "--prompt-file", "b"], "give one of them"),
    "no such prompt file": (["--prompt-file", "D/missing"], "no such file"),
    "prompt file is a folder": (["--prompt-file", "D/"], "cannot be read: Is a directory"),
    "nothing on standard input": ([], "prompt is empty"),
    "nothing on standard input as a file": (["--prompt-file", "-"], "prompt is empty"),
    "no such model": (["-m", "D/missing", "-p", "a"], "no such file or folder"),
    "the address of a model": (
        ["-m", "https://huggingface.co/facebook/opt-13b/tree/main", "-p", "a"],
        "the model's id is enough: facebook/opt-13b",
    ),
    "a misspelt kind of draft": (["-p", "a", "--assistant-model", "selff"], "did you mean self?"),
    "no new tokens": (["-p", "a", "--max-new-tokens", "0"], "--max-new-tokens 0: must be a whole number between 1"),
    "negative new tokens": (
        ["-p", "a", "--max-new-tokens", "-5"],
        "--max-new-tokens -5: must be a whole number between 1",
    ),
    "absurd temperature": (["-p", "a", "--temperature", "-1"], "--temperature -1"),
    "nan": (["-p", "a", "--temperature", "nan"], "--temperature nan"),
    "top-p above 1": (["-p", "a", "--top-p", "1.5"], "--top-p 1.5"),
    "negative top-k": (["-p", "a", "--top-k", "-1"], "--top-k -1"),
    "negative seed": (["-p", "a", "--seed", "-1"], "--seed -1"),
    "absurd draft": (["-p", "a", "--num-assistant-tokens", "1000"], "--num-assistant-tokens 1000"),
    "empty stop": (["-p", "a", "--stop", ""], "--stop '': is empty; give the text"),
    "unknown precision": (["-p", "a", "--precision", "int3"], "must be one of bf16, fp32, int8, int4"),
    "cpus that do not exist": (["-p", "a", "--cpus", "4000"], "4000"),
    "node that does not exist": (["-p", "a", "--numa-node", "77"], "77"),
    "socket that does not exist": (["-p", "a", "--socket", "77"], "77"),
    "negative threads": (["-p", "a", "--threads", "-2"], "-2"),
    "absurd threads": (["-p", "a", "--threads", "100000"], "100000"),
    "int4 without IPEX": (["-p", "a", "--precision", "int4", "--executor", "torch"], "has no int4"),
    "prompt beyond the context": (["-p", "fox " * 900], "shorten the prompt by at least"),
}


@pytest.mark.one_stack
@pytest.mark.parametrize("name", WRONG_USAGE)
def test_wrong_usage(
    name: str,
    pair: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2, a message, no traceback, nothing on standard output."""
    words, message = WRONG_USAGE[name]
    arguments = ["-m", pair[0], *(word.replace("D/", f"{tmp_path}/") for word in words)]
    if not {"--cpus", "--numa-node", "--socket", "--threads"} & {*words}:
        arguments.append("--no-launch")  # else this process would become the command, if it were no error
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        code = in_process(*arguments)
    out, err = capfd.readouterr()
    assert code == 2, err
    assert message in err
    assert out == ""


@pytest.mark.one_stack
def test_wrong_usage_of_the_program(pair: tuple[str, str], tmp_path: Path) -> None:
    """A process ends as main returns: one of each kind."""
    for done in run_all(["-m", pair[0], "-p", ""], ["-m", pair[0], "-p", "a", "--cpus", "4000"], ["--no-such-flag"]):
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert done.stdout == ""


def in_process(*arguments: str) -> int | str | None:
    """The exit code of the command, run here."""
    from ipex_assist import cli

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return cli.main(list(arguments))
    except SystemExit as end:
        return end.code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def broken(name: str, folder: Path) -> tuple[list[str], str]:
    """Make the broken checkpoint `name`; the arguments, and what the message must say."""
    if name == "unknown hub model":
        return ["-m", "nobody/no-such-model", "--offline"], "nobody/no-such-model"
    if name == "no config":
        folder.mkdir()
        (folder / "readme.txt").write_text("x")
        return ["-m", str(folder)], "config.json"
    if name == "not a GGUF":
        folder.mkdir()
        (folder / "x.gguf").write_bytes(b"nonsense" * 100)
        return ["-m", str(folder / "x.gguf")], "x.gguf"
    model = checkpoint_files.tiny_model("llama")
    checkpoint_files.save(model, folder)
    weights = folder / "model.safetensors"
    if name == "truncated safetensors":
        weights.write_bytes(weights.read_bytes()[:-100])
        return ["-m", str(folder)], "model.safetensors"
    if name == "pickled code":

        class Evil:
            def __reduce__(self) -> tuple:
                return (os.system, ("touch pwned",))

        weights.unlink()
        torch.save({"lm_head.weight": Evil()}, folder / "pytorch_model.bin")
        return ["-m", str(folder)], "safetensors"
    assert name == "unsupported architecture"
    config = folder / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "NoSuchForCausalLM").replace('"llama"', '"nope"'))
    return ["-m", str(folder)], "AutoModelForCausalLM"


BROKEN = (
    "unknown hub model",
    "no config",
    "not a GGUF",
    "truncated safetensors",
    "pickled code",
    "unsupported architecture",
)


@pytest.mark.one_stack
@pytest.mark.parametrize("name", BROKEN)
def test_broken_checkpoints(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, a message that names the file or model, no traceback."""
    arguments, message = broken(name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    code = in_process("--no-launch", *arguments, *PROMPT)
    err = capfd.readouterr().err
    assert code == 1, err
    assert message in err
    assert "Traceback" not in err
    assert err.count("StableLmForCausalLM") <= 1  # the list of all architectures, once
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.one_stack
def test_vocabulary_mismatch(pair: tuple[str, str], tmp_path: Path) -> None:
    """An assistant whose tokens differ is refused with the first that does."""
    folder = checkpoint_files.save(checkpoint_files.tiny_model("llama", seed=2), tmp_path / "other", tokenizer=False)
    checkpoint_files.tiny_tokenizer(special=("<|end|>", "<|other|>", "<|im_end|>")).save_pretrained(folder)
    done = run("-m", pair[0], "--assistant-model", str(folder), *PROMPT)
    assert done.returncode == 2
    assert "<|other|>" in done.stderr or "<|end|>" in done.stderr
    assert "Traceback" not in done.stderr


def test_too_little_memory_is_said_before_loading(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message has the numbers, and what to do."""
    from ipex_assist import cli
    from ipex_assist.commands.shared import memory_need
    from ipex_assist.env.memory import MemoryInfo

    monkeypatch.setattr(memory_need, "read_memory", lambda: MemoryInfo(2 << 30, 100 << 20))
    monkeypatch.setattr(memory_need, "resident_bytes", lambda: 0)  # of tests that ran before
    before = signal.getsignal(signal.SIGTERM)
    code = cli.main(["--no-launch", "-m", pair[0], *PROMPT])
    assert signal.getsignal(signal.SIGTERM) is before
    message = capsys.readouterr().err
    assert code == 1
    assert re.search(r"too little memory: [\d.]+ GiB are needed .* and 0\.1 GiB are available", message)


@pytest.mark.one_stack
def test_default_assistant_that_cannot_be_had(usual: subprocess.CompletedProcess[str]) -> None:
    """A tiny Llama has no published sibling: one line says so, and what drafts, and the run goes on."""
    [line] = [line for line in usual.stderr.splitlines() if "no default assistant" in line]
    assert "those of llama have other vocabularies than the target's" in line
    assert "so lookup drafts (copies from the text); give --assistant-model" in line
    assert "not assisted" not in usual.stderr
