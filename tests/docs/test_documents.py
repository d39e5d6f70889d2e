"""The README and the pages of docs/: every command on them runs as it is written, and the generated parts are current.

Models that a page names by their hub ids are tiny ones here, in a hub cache of the test's own; sbatch, qsub and ray
are programs that check what they are given, and print what the real ones print.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import adapter_files
import checkpoint_files
import embedding_folders
import pytest
import results
from command_runs import on_own_cpus
from conftest import HAS_IPEX

from ipex_assist.commands.models import markdown

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
HUB = ("facebook/opt-13b", "facebook/opt-350m", "facebook/opt-125m")
# Commands that are not run here, by what they begin with, and what runs them.
ELSEWHERE = {
    "python3 -m venv": ".ci/run, as it is written",
    "pip install": ".ci/run, by tests/run ipex",
    "pip wheel": "tests/native/test_native_install.py",
    "bash tests/run": ".ci/run",
    "ipex-assist bench --pair opt-6.7b": "tests/bench/test_bench_command.py, with a small pair: this one takes minutes",
    "ipex-assist batch prompts.jsonl -o results.jsonl -m facebook/opt-13b --ray": "tests/batch/test_batch_ray.py",
    "ipex-assist -m Qwen/Qwen2.5-VL-7B-Instruct --image": "tests/vision/test_serve_images.py",
    "ipex-assist chat -m Qwen/Qwen2.5-VL-7B-Instruct": "tests/commands/test_chat.py",
    "ipex-assist batch scans.jsonl": "tests/docs/test_scans_example.py",
    "ipex-assist -m Qwen3-235B-A22B-Q4_K_M.gguf --resident": "tests/executors/native/test_resident_experts.py",
    "ipex-assist chat --url": "tests/commands/test_chat.py, with a server",
    "ray start": "Ray's own",
    "python -m ipex_assist.executors.compare": "tests/executors/test_compare.py",
    "ipex-assist distill": "tests/distill/test_distill.py, with a small model: a head takes hours",
    "ipex-assist serve": "tests/serve/test_command.py: it ends by a signal only",
    "ipex-launch --latency": "tests/launch/test_instances.py, on invented machines: it needs four cores",
}
# The README's examples and Python's run on both stacks, the README's on IPEX's in the full part. Others differ
# from them by flags, which a stack does not know of; the code that those reach has its own tests. Two pages whose
# commands measure or answer take longest.
MARKS = {
    "README": ["full"] if HAS_IPEX else [],
    "python": [],
    "measuring": ["one_stack", "full"],
    "chat": ["one_stack", "full"],
}
ON_ITS_STACKS = [
    pytest.param(page, id=page.stem, marks=[getattr(pytest.mark, mark) for mark in MARKS.get(page.stem, ["one_stack"])])
    for page in PAGES
]
TYPED = "What is the capital of France?"  # on standard input; a real model's answer is a short one
SUBMIT = "#!/bin/sh\nbash -n && echo {answer}\n"  # the script comes on standard input


def commands(page: Path) -> list[str]:
    """The commands of a page: indented lines that begin with a program, with their continuations, without comments."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"^    ((?:ipex-assist|ipex-launch|ray|pip|bash|python3?) .*)$", text, re.MULTILINE)
    return [re.sub(r"\s+", " ", re.sub(r"\s{2,}#.*$", "", line)).strip() for line in lines]


def elsewhere(command: str) -> bool:
    """Return whether something else runs the command."""
    return any(command.startswith(beginning) for beginning in ELSEWHERE)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the pages' commands name, and what was measured of its models."""
    folder = tmp_path_factory.mktemp("documents")
    model = checkpoint_files.tiny_model("opt", max_position_embeddings=2048)
    for name in HUB:
        repository = folder / "hub" / f"models--{name.replace('/', '--')}"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text("0" * 40)
        checkpoint_files.save(model, repository / "snapshots" / ("0" * 40))
    checkpoint_files.save(checkpoint_files.tiny_model("qwen2"), folder / "Qwen2.5-7B-Instruct")
    checkpoint_files.write_gguf(checkpoint_files.tiny_model("llama"), folder / "model.gguf")
    qwen = checkpoint_files.tiny_model("qwen2")
    for name in ("sql", "notes"):
        adapter_files.save_adapter(folder / "adapters" / name, qwen, targets=adapter_files.ATTENTION, size=0.05)
    for name, kind in (("Qwen3-Embedding-0.6B", ""), ("Qwen3-Reranker-0.6B", "ForSequenceClassification")):
        repository = folder / "hub" / f"models--Qwen--{name}"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text("0" * 40)
        snapshot = repository / "snapshots" / ("0" * 40)
        embedding_folders.write_model(snapshot, "qwen3", kind, pad_token_id=0, max_position_embeddings=2048)
        if not kind:
            embedding_folders.write_modules(snapshot, prompts={"query": "Query: "})
    (folder / "texts.txt").write_text("A quick fox\nA lazy dog\nA café\n")
    (folder / "prompt.txt").write_text("the quick brown fox")
    (folder / "prompts.jsonl").write_text('{"prompt": "the quick"}\n{"prompt": "brown fox"}\n')
    (folder / "alpaca.json").write_text('[{"instruction": "Name a fox.", "input": "", "output": "Fox."}]')
    (folder / "wiki.test.raw").write_text("The quick brown fox jumps over the lazy dog. " * 60)
    for script in ("script.py", "serve.py", "bench.py"):
        (folder / script).write_text("print('done')\n")
    programs = folder / "bin"
    programs.mkdir()
    for program, answer in (("sbatch", "7"), ("qsub", "7.server")):
        (programs / program).write_text(SUBMIT.format(answer=answer))
        (programs / program).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def ran() -> set[str]:
    """Commands that have run: the pages have some of them in common."""
    return set()


def environ(place: Path) -> dict[str, str]:
    """Offline, with the models of `place`, and our commands where `python` is."""
    path = os.pathsep.join([str(place / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    own = {"PATH": path, "HF_HUB_CACHE": str(place / "hub"), "HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(place)}
    return {**os.environ, **own}


def run(command: str, place: Path, before: Sequence[str] = ()) -> str:
    """Run a command; return what went wrong, empty where it ended well. before: words of another one that starts it."""
    if "--instances" in command:  # which may need them all
        before = ()
    done = subprocess.run(
        [*before, "bash", "-c", command], cwd=place, env=environ(place), capture_output=True, text=True, timeout=300,
        input=TYPED,
    )  # fmt: skip
    return "" if done.returncode == 0 else f"{command}\n exit code {done.returncode}: {done.stderr[-600:]}"


@pytest.mark.parametrize("page", ON_ITS_STACKS)
def test_commands_run_as_they_are_written(page: Path, place: Path, ran: set[str]) -> None:
    """A flag that was renamed, or an example that never worked. Later commands may use what earlier ones wrote."""
    wanted = list(dict.fromkeys(each for each in commands(page) if not elsewhere(each) and each not in ran))
    ran.update(wanted)
    chains = [[command for command in wanted if "opt-13b-int4" in command or "results.jsonl" in command]]
    chains += [[command] for command in wanted if command not in chains[0]]
    failed = on_own_cpus(
        *(lambda before, chain=chain: [run(command, place, before) for command in chain] for chain in chains)
    )
    assert not [text for texts in failed for text in texts if text]


@pytest.mark.parametrize("page", ON_ITS_STACKS)
def test_python_runs_as_it_is_written(page: Path, place: Path) -> None:
    """The examples of the Python API run as they are written."""
    files = []
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)):
        files.append(place / f"{page.stem}_{number}.py")
        files[-1].write_text(code)
    failed = on_own_cpus(
        *(lambda before, file=file: run(f"ipex-launch -- python {file.name}", place, before) for file in files)
    )
    assert not [text for text in failed if text]


@pytest.mark.one_stack
def test_every_exception_is_one() -> None:
    """A command that is no longer on any page needs no exception."""
    found = [command for page in PAGES for command in commands(page)]
    assert len(found) > 30
    assert not [beginning for beginning in ELSEWHERE if not any(map(str.startswith, found, [beginning] * len(found)))]


@pytest.mark.one_stack
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    """Pages that moved took their links along."""
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.one_stack
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_curl_sends_json(page: Path) -> None:
    """A body without its type is answered 400, as those of LoRA adapters were."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    sent = [line for line in re.findall(r"^ *curl .*$", text, re.MULTILINE) if " -d " in line]
    named = ('"$json"', "Content-Type: application/json")
    assert not [line for line in sent if not any(name in line for name in named)]
    assert '"$json"' not in text or "json='Content-Type: application/json'" in text


@pytest.mark.one_stack
def test_results_are_what_the_files_say() -> None:
    """RESULTS.md and the README's table are written by benchmarks/results.py and by nothing else."""
    assert results.main(["--check"]) == 0


@pytest.mark.one_stack
def test_pictures_are_what_their_recording_says() -> None:
    """They are made by benchmarks/pictures.py and by nothing else, and the README shows them."""
    pytest.importorskip("pyte", reason="the extra dev brings it")
    import pictures

    assert pictures.main(["--check"]) == 0


@pytest.mark.one_stack
def test_the_families_are_those_of_the_registry() -> None:
    """The table is what `ipex-assist models --markdown` prints."""
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert f"<!-- ipex-assist models --markdown -->\n{markdown()}<!-- end -->" in page


@pytest.mark.one_stack
def test_the_readme_is_short() -> None:
    """What a newcomer reads in one go."""
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) < 150
