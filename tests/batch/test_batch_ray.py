"""Batches over a Ray cluster: two nodes on this machine, real actors, real kills."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import checkpoint_files
import pytest
import seeing_models
from batch_runs import REAL, by_id, gone, lines_in, run, start, wait_for, write_prompts
from ray_nodes import LOCAL_ONLY, instances, marked, two_nodes

import ipex_assist
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.machine import Core, Machine
from ipex_assist.launch import InstanceRequest
from ipex_assist.launch.spawn import read_processes
from ipex_assist.workers.placement import place_within

pytestmark = [pytest.mark.daemons, pytest.mark.one_stack]

MODEL = ["--executor", "torch", "--precision", "fp32", "--assistant-model", "none", "--max-new-tokens", 8, "--offline"]


def machine(cores: int, quota: float | None = None) -> Machine:
    cpus = tuple(range(cores))
    return Machine(tuple(Core((cpu,), 0) for cpu in cpus), (), cpus, (), cpu_quota=quota)


def test_placement_stays_within_what_ray_offers() -> None:
    """A node that offers 4 of its 8 cores to Ray gets 4 threads, without a word about a quota that nobody set."""
    (whole,) = place_within(InstanceRequest(instances="per-node"), machine(8), 8)
    (half,) = place_within(InstanceRequest(instances="per-node"), machine(8), 4)
    assert (whole.threads, half.threads, half.warnings) == (8, 4, ())
    (limited,) = place_within(InstanceRequest(instances="per-node"), machine(8, quota=2), 4)
    assert limited.threads == 2
    assert "quota of 2 CPUs" in limited.warnings[0]
    two = place_within(InstanceRequest(instances=2), machine(8), 4)
    assert [place.threads for place in two] == [2, 2]
    with pytest.raises(IpexAssistError, match="2 instances need 6 CPUs, and the node offers 4"):
        place_within(InstanceRequest(instances=2, cores_per_instance=3), machine(8), 4)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path_factory.mktemp("ray") / "tiny"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The cluster's address."""
    with two_nodes("ray") as nodes:
        yield nodes.address


def test_kills_on_a_cluster(cluster: str, tiny: str, tmp_path: Path) -> None:
    """kill -9 of an instance, of a Ray worker, and of the command, with sixteen prompts in flight in each instance:
    each id once in the end, no process left."""
    mark, out = uuid.uuid4().hex, tmp_path / "o"
    texts = [f"the fox {i}" for i in range(600)]
    prompts = write_prompts(tmp_path / "p.jsonl", texts)
    arguments = [prompts, "-o", out, "-m", tiny, *MODEL, "--ray", cluster, "--resume"]
    process = start(REAL, *arguments, HF_TEST_MARK=mark)
    wait_for(lambda: lines_in(out) >= 20 or process.poll() is not None, 90)
    os.kill(instances(mark)[0], signal.SIGKILL)
    wait_for(lambda: lines_in(out) >= 60 or process.poll() is not None, 90)
    worker = instances(mark)[0]
    actor = read_processes()[worker][0]
    os.kill(actor, signal.SIGKILL)
    wait_for(lambda: gone([worker]), 5)
    wait_for(lambda: lines_in(out) >= 100 or process.poll() is not None, 90)
    left = instances(mark)
    assert left
    process.kill()
    process.communicate()
    wait_for(lambda: gone(instances(mark)), 20)
    done = lines_in(out)
    assert 100 <= done < 600
    code, err = run(REAL, *arguments, "-v", seconds=120, HF_TEST_MARK=mark)
    assert code == 0, err
    assert "loaded in" in err
    assert "prompts in flight: 16" in err
    found = by_id(out)
    assert len(found) == 600
    assert {record["instance"] for record in found.values()} == {0, 1}
    assert not any("error" in record for record in found.values())
    retried = [number for number in range(600) if found[f"p{number}"]["tries"] > 1]
    assert len(retried) <= 2 * 16
    model = ipex_assist.load(tiny, None, precision="fp32", executor="torch")
    for number in (*retried[:20], *range(0, 600, 29)):
        assert found[f"p{number}"]["tokens"] == model.generate(texts[number], max_new_tokens=8).tokens


def test_sigterm_on_a_cluster(cluster: str, tiny: str, tmp_path: Path) -> None:
    """Ray installs a handler of its own for it: ours must be the one that acts, within seconds."""
    mark, out = uuid.uuid4().hex, tmp_path / "o"
    prompts = write_prompts(tmp_path / "p.jsonl", [f"the fox {i}" for i in range(3000)])
    process = start(REAL, prompts, "-o", out, "-m", tiny, *MODEL, "--ray", cluster, HF_TEST_MARK=mark)
    wait_for(lambda: lines_in(out) >= 20 or process.poll() is not None, 90)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=15)
    assert process.returncode == 143, err
    assert "left for --resume" in err
    assert len(by_id(out)) >= 20
    wait_for(lambda: not instances(mark), 10)


def test_images_on_a_cluster(cluster: str, tmp_path: Path) -> None:
    """The files of a line go to the node that has it, and its vision process reads them there."""
    folder = seeing_models.talking(tmp_path / "talking")
    pages = [seeing_models.picture(24, 16, number) for number in range(4)]
    for number, page in enumerate(pages):
        (tmp_path / f"{number}.png").write_bytes(seeing_models.content(page))
    lines = [{"id": f"p{number}", "prompt": "What?", "images": [f"{number}.png"]} for number in range(4)]
    prompts, out = write_prompts(tmp_path / "p.jsonl", lines), tmp_path / "o"
    code, err = run(REAL, prompts, "-o", out, "-m", folder, *MODEL, "--ray", cluster, seconds=300)
    assert code == 0, err
    model = ipex_assist.load(str(folder), None, precision="fp32", executor="torch")
    for own_id, record in by_id(out).items():
        expected = model.generate("What?", chat=True, images=[pages[int(own_id[1:])]], max_new_tokens=8)
        assert record["tokens"] == expected.tokens


def test_a_timeout_and_a_bad_model_on_a_cluster(cluster: str, tiny: str, tmp_path: Path) -> None:
    """A prompt without end is cancelled, twice, and fails alone; a missing model is one message."""
    out = tmp_path / "o"
    endless = {"id": "endless", "prompt": "the fox", "max_new_tokens": 100_000}
    folder = checkpoint_files.save(
        checkpoint_files.tiny_model("llama", max_position_embeddings=200_000, eos_token_id=None), tmp_path / "long"
    )
    prompts = write_prompts(tmp_path / "p.jsonl", [endless, *["the fox"] * 5])
    code, err = run(REAL, prompts, "-o", out, "-m", folder, *MODEL, "--ray", cluster, "--timeout", 2, seconds=120)
    assert code == 1, err
    found = by_id(out)
    assert len(found) == 6
    assert found["endless"]["error"].count("gave no result within 2 s") == 2
    assert {record["tries"] for own_id, record in found.items() if own_id != "endless"} == {1}
    code, err = run(REAL, prompts, "-o", tmp_path / "o2", "-m", tmp_path / "none", *MODEL, "--ray", cluster)
    assert code == 2
    assert "none" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("address", "code", "message"),
    [
        ("127.0.0.1:1", 1, "nobody answers there"),
        ("node1:", 2, "HOST:PORT"),
        ("somewhere", 2, "HOST:PORT"),
        ("ray://127.0.0.1:10001", 2, "on a node of the cluster"),
    ],
)
def test_an_address_without_a_cluster(address: str, code: int, message: str, tiny: str, tmp_path: Path) -> None:
    """Said at once; Ray itself would try for minutes."""
    prompts = write_prompts(tmp_path / "p.jsonl", ["a"])
    got, err = run(REAL, prompts, "-o", tmp_path / "o", "-m", tiny, *MODEL, "--ray", address, seconds=20)
    assert got == code
    assert message in err


def test_without_ray(tiny: str, tmp_path: Path) -> None:
    """The extra is named, and `local` is checked before anything is started."""
    hidden = tmp_path / "ray.py"  # stands before an installed one
    hidden.write_text("raise ModuleNotFoundError(\"No module named 'ray'\")\n")
    prompts = write_prompts(tmp_path / "p.jsonl", ["a"])
    arguments = [prompts, "-o", tmp_path / "o", "-m", tiny, *MODEL, "--ray", "local"]
    code, err = run(REAL, *arguments, PYTHONPATH=str(tmp_path))
    assert code == 2
    assert "[ray]" in err


def test_ray_on_this_machine(tiny: str, tmp_path: Path) -> None:
    """--ray local brings its cluster and takes it away again."""
    pytest.importorskip("ray", reason="Ray is not installed")
    mark = uuid.uuid4().hex
    prompts = write_prompts(tmp_path / "p.jsonl", ["the fox"] * 20)
    arguments = [prompts, "-o", tmp_path / "o", "-m", tiny, *MODEL, "--ray", "local", "--instances", 1]
    code, err = run(REAL, *arguments, seconds=120, HF_TEST_MARK=mark, **LOCAL_ONLY)
    assert code == 0, err
    assert len(by_id(tmp_path / "o")) == 20
    assert err.splitlines() == [line for line in err.splitlines() if line.startswith("ipex-assist: ")]
    wait_for(lambda: not marked(mark), 20)
