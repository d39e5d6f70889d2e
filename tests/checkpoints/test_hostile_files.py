"""Files that are not what they say: one sentence and exit 1, nothing read outside the folder, nothing waited for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from checkpoint_files import tiny_tokenizer
from safetensors.torch import save_file

from ipex_assist import cli
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.checkpoints.packed_size import estimate_bytes
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.tokenization.time_limit import TimeLimitExceeded, run_within
from ipex_assist.tokenization.tokenizer import encode_prompt, eos_token_ids, load_tokenizer

pytestmark = pytest.mark.one_stack

DEEP = "[" * 100_000 + "]" * 100_000
FLAGS = ["-p", "a", "--max-new-tokens", "2", "--no-assisted"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "m"
    tiny_models.save(folder, "llama", vocab_size=320)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def header(content: Any) -> bytes:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return len(data).to_bytes(8, "little") + data


def index(folder: Path, weight_map: Any) -> None:
    """Write an index in place of the single file, which is kept as shard.safetensors."""
    (folder / "model.safetensors").rename(folder / "shard.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def one_tensor(**changes: Any) -> dict[str, Any]:
    return {"model.norm.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} | changes}


def weights(content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "model.safetensors").write_bytes(content)


def to_pipe(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return damage


def to_folder(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return damage


def config(content: str, name: str = "config.json") -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


# What is done to a copy of the model, and what the message must contain.
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights are a pipe": (to_pipe("model.safetensors"), "model.safetensors is a pipe, not a file"),
    "config is a pipe": (to_pipe("config.json"), "config.json is a pipe"),
    "tokenizer is a pipe": (to_pipe("tokenizer.json"), "tokenizer.json is a pipe"),
    "a pipe among the tokenizer's files": (to_pipe("added_tokens.json"), "added_tokens.json is a pipe"),
    "weights are a folder": (to_folder("model.safetensors"), "model.safetensors is a folder, not a file"),
    "config is a folder": (to_folder("config.json"), "config.json is a folder"),
    "no bytes": (weights(b""), "truncated or no safetensors file"),
    "header of nothing": (weights(bytes(8)), "truncated or no safetensors file"),
    "empty header": (weights(header({})), "holds no tensors"),
    "only metadata": (weights(header({"__metadata__": {}})), "holds no tensors"),
    "header is a list": (weights(header([])), "its header cannot be read"),
    "deep header": (weights(header(DEEP.encode())), "its header cannot be read (RecursionError"),
    "fractional shape": (weights(header(one_tensor(shape=[2.5, 3])) + bytes(24)), "2.5 among its shapes"),
    "shape of two negatives": (weights(header(one_tensor(shape=[-2, -3])) + bytes(24)), "-2 among its shapes"),
    "sides beyond counting": (
        weights(header(one_tensor(shape=[1 << 62, 1 << 62, 0], data_offsets=[0, 0]))),
        "shape [4611686018427387904",
    ),
    "data that overlap": (
        weights(header(one_tensor() | {"b": {"dtype": "F32", "shape": [2], "data_offsets": [20, 28]}}) + bytes(28)),
        "the data of model.norm.weight and of b overlap",
    ),
    "the same data twice": (
        weights(header(one_tensor() | {"b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}) + bytes(24)),
        "the data of b and of model.norm.weight overlap",
    ),
    "a long text as shape": (weights(header(one_tensor(shape=["a" * 5000])) + bytes(24)), "Download it again"),
    "offsets as text": (weights(header(one_tensor(data_offsets=["0", "24"])) + bytes(24)), "its header cannot be read"),
    "offset true": (weights(header(one_tensor(data_offsets=[False, 24])) + bytes(24)), "False among its shapes"),
    "deep config": (config(DEEP), "config.json is nested too deep"),
    "config is a list": (config("[]"), "config.json holds a list"),
    "config of a huge number": (config('{"hidden_size": 1' + "0" * 5000 + "}"), "config.json is no valid JSON"),
    "deep index": (
        lambda folder: (index(folder, {}), config(DEEP, "model.safetensors.index.json")(folder)),
        "index.json is nested too deep",
    ),
    "index of nothing": (lambda folder: index(folder, {}), "has no weight_map"),
    "index is a list": (lambda folder: index(folder, ["shard.safetensors"]), "has no weight_map"),
    "index of numbers": (lambda folder: index(folder, {"a": 1}), "names no file for 'a'"),
    "index of lists": (lambda folder: index(folder, {"a": ["shard.safetensors"]}), "names no file for 'a'"),
    "index upwards": (lambda folder: index(folder, {"a": "../outside.safetensors"}), "Nothing else is read"),
    "index elsewhere": (
        lambda folder: index(folder, {"a": str(folder.parent / "outside.safetensors")}),
        "Nothing else is read",
    ),
    "index of the folder above": (lambda folder: index(folder, {"a": ".."}), "Nothing else is read"),
    "index of another kind": (lambda folder: index(folder, {"a": "config.json"}), "Nothing else is read"),
    "index of half a character": (lambda folder: index(folder, {"a": "\ud800.safetensors"}), "Nothing else is read"),
    "index of a long name": (lambda folder: index(folder, {"a": "a" * 999 + ".safetensors"}), "cannot be read"),
    "index of a folder": (
        lambda folder: (index(folder, {"a": "b.safetensors"}), (folder / "b.safetensors").mkdir()),
        "b.safetensors is a folder",
    ),
    "eos is text": (config('{"eos_token_id": "</s>"}', "generation_config.json"), "eos_token_id is '</s>'"),
    "eos is a list of lists": (config('{"eos_token_id": [[2]]}', "generation_config.json"), "eos_token_id is"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage(case: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each was a traceback, a hang, or a file of somebody else's that was opened."""
    folder = tmp_path / "m"
    shutil.copytree(model, folder)
    shutil.copy(model / "model.safetensors", tmp_path / "outside.safetensors")
    damage, message = DAMAGE[case]
    damage(folder)
    started = time.process_time()
    assert cli.main(["-m", str(folder), "--no-launch", *FLAGS]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("ipex-assist: error: ")
    assert message in error
    assert len(error) < 1000
    assert cli.main(["-m", str(folder), "--dry-run", *FLAGS]) == 0  # the launcher's estimate meets it first
    assert time.process_time() - started < 5
    assert "Traceback" not in capsys.readouterr().err


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which must end by itself."""
    command = [sys.executable, "-m", "ipex_assist", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def test_a_pipe_as_weights_ends_at_once(model: Path, tmp_path: Path) -> None:
    """Nobody writes into it: opening it waited for ever."""
    shutil.copytree(model, tmp_path / "m")
    to_pipe("model.safetensors")(tmp_path / "m")
    done = run("-m", str(tmp_path / "m"), *FLAGS)
    assert done.returncode == 1, done.stderr
    assert "model.safetensors is a pipe" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_pipe_in_place_of_a_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(IpexAssistError, match=r"m\.gguf is a pipe, not a file"):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_links_of_a_snapshot_are_followed(model: Path, tmp_path: Path) -> None:
    """A hub snapshot consists of links to ../../blobs; only names in an index are held inside the folder."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    shutil.copytree(model, blobs)
    index(blobs, dict.fromkeys(open_checkpoint(str(model)).names(), "shard.safetensors"))
    snapshot.mkdir(parents=True)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(Path("..") / ".." / "blobs" / file.name)
    checkpoint = open_checkpoint(str(snapshot))
    assert len(dict(checkpoint.tensors())) == len(checkpoint.names())
    load_tokenizer(checkpoint)


def test_a_tokenizer_that_names_a_file_outside(model: Path, tmp_path: Path) -> None:
    """transformers reads the vocabulary that tokenizer_config.json names, wherever it lies; leftovers hurt nobody."""
    folder = tmp_path / "m"
    shutil.copytree(model, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (tmp_path / "secret.txt").write_text("{}")
    for name in (str(tmp_path / "secret.txt"), str(folder / ".." / "secret.txt")):
        (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"vocab_file": name}))
        with pytest.raises(IpexAssistError, match="as its vocab_file, which is not in its own folder"):
            load_tokenizer(open_checkpoint(str(folder)))
    leftover = {"special_tokens_map_file": "/content/nowhere/special_tokens_map.json"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | leftover))
    load_tokenizer(open_checkpoint(str(folder)))


def test_a_name_alone_is_that_of_the_own_folder(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started in a folder that has a file of this name, too, a sound model was refused."""
    folder = tmp_path / "m"
    shutil.copytree(model, folder)
    (tmp_path / "tokenizer.json").write_text("{}")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_file": "tokenizer.json"}))
    there = load_tokenizer(open_checkpoint(str(folder))).get_vocab()
    monkeypatch.chdir(tmp_path)
    assert load_tokenizer(open_checkpoint(str(folder))).get_vocab() == there


@pytest.mark.parametrize("added", [["a"], {"5": "x"}, {"x": {"content": "y"}}, {"5": {}}, 7])
def test_added_tokens_of_a_wrong_type(added: Any, model: Path, tmp_path: Path) -> None:
    """What comes of it is a tokenizer or an error of ours."""
    shutil.copytree(model, tmp_path / "m")
    file = tmp_path / "m" / "tokenizer_config.json"
    changes = {"added_tokens_decoder": added, "tokenizer_class": "PreTrainedTokenizerFast"}
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    checkpoint = open_checkpoint(str(tmp_path / "m"))
    try:
        load_tokenizer(checkpoint)
    except IpexAssistError as error:
        assert "the tokenizer cannot be loaded" in str(error)  # noqa: PT017 - both ends are right


def test_end_tokens_are_numbers(model: Path) -> None:
    checkpoint = open_checkpoint(str(model))
    tokenizer = load_tokenizer(checkpoint)
    checkpoint.generation_config = {"eos_token_id": [5, 7]}
    assert eos_token_ids(checkpoint, tokenizer) >= {5, 7}
    for wrong in (True, 2.0, ["2"], {"a": 1}):
        checkpoint.generation_config = {"eos_token_id": wrong}
        with pytest.raises(IpexAssistError, match="eos_token_id is"):
            eos_token_ids(checkpoint, tokenizer)


def test_bytes_that_are_no_text(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """-p with bytes of another encoding: the tokenizers library said "TextInputSequence must be str"."""
    assert cli.main(["-m", str(model), "--no-launch", "-p", "caf\udce9", "--no-assisted"]) == 2
    assert "the prompt is not UTF-8 text: its character 4" in capsys.readouterr().err
    with pytest.raises(UsageError, match="not UTF-8"):
        encode_prompt(load_tokenizer(open_checkpoint(str(model))), "\ud83d", False)


def test_a_template_that_never_ends(model: Path) -> None:
    """Loops inside loops, each within what jinja's sandbox allows."""
    tokenizer = load_tokenizer(open_checkpoint(str(model)))
    tokenizer.chat_template = "{% for i in range(99999) %}" * 9 + "{% endfor %}" * 9
    threads = threading.active_count()
    started = time.thread_time()
    with pytest.raises(UsageError, match=r"template refuses this prompt: it takes longer than 1 s"):
        encode_prompt(tokenizer, "a", True)
    assert time.thread_time() - started < 0.5  # it waits, and computes nothing itself
    assert threading.active_count() == threads


def test_time_limits() -> None:
    """What is quick comes back, with its errors; waiting for others is not counted."""
    assert run_within(1.0, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        run_within(1.0, lambda: 1 // 0)
    run_within(0.05, lambda: time.sleep(0.2))
    with pytest.raises(TimeLimitExceeded):
        run_within(0.05, lambda: sum(1 for _ in iter(int, 1)))


def test_estimates_of_bin_files_with_sizes_of_wrong_types(tmp_path: Path) -> None:
    """The launcher's estimate takes the embedding's shape from config.json there."""
    torch.save({"a": torch.zeros(4)}, tmp_path / "pytorch_model.bin")
    for size in ("64", [64], None, 6.4):
        (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 32, "hidden_size": size}))
        assert estimate_bytes(str(tmp_path), "int4") is None or size is None


def test_an_empty_shard_among_others(tmp_path: Path) -> None:
    """It is allowed: only a checkpoint without any tensor is not."""
    save_file({"a": torch.zeros(2)}, tmp_path / "one.safetensors")
    (tmp_path / "two.safetensors").write_bytes(header({}))
    (tmp_path / "config.json").write_text("{}")
    named = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(named))
    assert open_checkpoint(str(tmp_path)).names() == ["a"]
