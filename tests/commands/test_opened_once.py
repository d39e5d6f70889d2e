"""Each checkpoint is opened once in a process, by the check of the memory, and passed on to whoever reads it next."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkpoint_files
import pytest
from batch_runs import answer

from ipex_assist import cli
from ipex_assist.bench import arguments as bench_arguments
from ipex_assist.bench import loading
from ipex_assist.checkpoints.folder import FolderCheckpoint
from ipex_assist.checkpoints.gguf import GgufCheckpoint
from ipex_assist.checkpoints.open import OpenCheckpoints, open_checkpoint
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.workers import worker
from ipex_assist.workers.settings import WorkerSettings
from ipex_assist.workers.wire import TextRequest

pytestmark = pytest.mark.one_stack

RUN = ["--executor", "torch", "--precision", "fp32", "--no-launch"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target and an assistant."""
    return checkpoint_files.save_pair(tmp_path_factory.mktemp("once"))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is opened from here on."""
    found: list[str] = []

    def count(kind: Any) -> None:
        init = kind.__init__

        def opening(self: Any, source: str, *others: Any, **options: Any) -> None:
            found.append(Path(source).name)
            init(self, source, *others, **options)

        monkeypatch.setattr(kind, "__init__", opening)

    count(FolderCheckpoint)
    count(GgufCheckpoint)
    return found


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """A command takes SIGTERM; other tests shall not find it taken."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("assistant", "expected"),
    [("assistant", ["assistant", "target"]), ("self", ["target"]), ("lookup", ["target"]), ("none", ["target"])],
)
def test_a_run_opens_each_model_once(folders: Path, opened: list[str], assistant: str, expected: list[str]) -> None:
    """The target was opened three times, the assistant twice: for sizes, for the cache's bytes, and to be loaded."""
    named = str(folders / assistant) if assistant == "assistant" else assistant
    given = ["-m", str(folders / "target"), "--assistant-model", named, "--assistant-precision", "fp32", *RUN]
    assert cli.main([*given, "-p", "the fox", "--max-new-tokens", "2"]) == 0
    assert sorted(opened) == expected


def test_a_default_assistant_is_opened_once(folders: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name comes up in the estimate and again when it is loaded; the target's tokenizer was read for each."""
    for user in ("ipex_assist.generation.resolved", "ipex_assist.commands.shared.memory_need"):
        monkeypatch.setattr(f"{user}.default_assistant", lambda *_: str(folders / "assistant"))
    read: list[str] = []
    from ipex_assist.generation import loading, resolved

    real = resolved.load_tokenizer

    def load_tokenizer(checkpoint: Any) -> Any:
        read.append(Path(checkpoint.source).name)
        return real(checkpoint)

    for module in (loading, resolved):
        monkeypatch.setattr(module, "load_tokenizer", load_tokenizer)
    assert cli.main(["-m", str(folders / "target"), *RUN, "-p", "the fox", "--max-new-tokens", "2"]) == 0
    assert sorted(opened) == sorted(read) == ["assistant", "target"]


def test_an_instance_of_a_batch_opens_each_model_once(folders: Path, opened: list[str]) -> None:
    """What an instance is told first makes it load; nothing opens the same files beside that."""
    load = LoadOptions.of(
        target=str(folders / "target"), assistant=str(folders / "assistant"), precision="fp32", executor="torch"
    )
    model = worker._load(WorkerSettings(load, 4))
    found = answer(model, TextRequest(1, "the fox", options=GenerationOptions(max_new_tokens=2)))
    assert found.result is not None
    assert found.result["assisted"]
    assert sorted(opened) == ["assistant", "target"]


def test_precisions_of_a_benchmark_share_what_is_open(folders: Path, opened: list[str]) -> None:
    """Each combination was estimated and loaded from files opened anew."""
    flags = ["-m", str(folders / "target"), "--assistant-model", str(folders / "assistant"), "--executor", "torch"]
    args = bench_arguments.parse([*flags, "--precision", "fp32,bf16", "--no-launch", "--num-assistant-tokens", "2"])
    with contextlib.closing(loading.models(bench_arguments.pair_options(args))) as pairs:
        assert [model.identity.precision for model, _ in pairs] == ["fp32", "bf16"]
    assert sorted(opened) == ["assistant", "target"]


def test_eval_opens_its_model_once(folders: Path, opened: list[str], tmp_path: Path) -> None:
    """Compared with itself in another precision it is still one checkpoint."""
    text = tmp_path / "text"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    given = ["eval", "-m", str(folders / "target"), "--text", str(text), *RUN[:2], "--no-launch"]
    assert cli.main([*given, "--precision", "bf16", "--against", "fp32"]) == 0
    assert opened == ["target"]


def test_files_that_changed_are_opened_anew(folders: Path, tmp_path: Path, opened: list[str]) -> None:
    """A download completes a copy that was open already: what it adds would have been missed."""
    folder = checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path / "m")
    checkpoints = OpenCheckpoints()
    first = checkpoints.open(str(folder))
    assert checkpoints.open(str(folder)) is first
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "generation_config.json").write_text('{"eos_token_id": 7}')
    assert checkpoints.open(str(folder)).generation_config == {"eos_token_id": 7}
    assert open_checkpoint(str(folder)) is not first
    (folder / "config.json").unlink()
    for _ in range(2):  # a failure is not kept
        with pytest.raises(IpexAssistError, match=r"no config\.json"):
            checkpoints.open(str(folder))
