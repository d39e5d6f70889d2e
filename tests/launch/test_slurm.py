"""Jobs of `ipex-assist submit` in a real Slurm: three nodes on loopback, each of which is this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import checkpoint_files
import pytest
from batch_runs import by_id, lines_in, write_prompts
from test_instances import CLEAN

import ipex_assist

sys.path.insert(0, str(Path(__file__).with_name("slurm")))
from cluster import missing

CLUSTER = Path(__file__).parent / "slurm" / "cluster.py"
BIN = Path(sys.executable).parent
CPUS = sorted(os.sched_getaffinity(0))
ONE = ["--cores-per-instance", "1"]
MODEL = ["--executor", "torch", "--precision", "fp32", "--offline", "--assistant-model", "none"]
JOB_SECONDS = 90.0
# Says when and where it runs, and takes its time to end in order.
PATIENT = """
import os, signal, sys, time
def end(*_):
    print("SAVED", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
print("RUNS", os.environ.get("SLURM_RESTART_COUNT", 0), sorted(os.sched_getaffinity(0)), flush=True)
time.sleep(0 if "SLURM_RESTART_COUNT" in os.environ else 300)
"""

pytestmark = [
    pytest.mark.daemons,
    pytest.mark.one_stack,
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())} (Debian: slurm-wlm, munge)"),
    pytest.mark.skipif(not (BIN / "ipex-assist").exists(), reason="the commands are not installed"),
    pytest.mark.skipif(len(CPUS) < (os.cpu_count() or 1), reason="Slurm would use CPUs that this process may not"),
    pytest.mark.skipif(len(CPUS) < 2, reason="two tasks on a node need two CPUs"),
]


class Slurm:
    """The cluster as a user sees it, from the folder in which jobs are submitted and run."""

    def __init__(self, environ: dict[str, str], folder: Path) -> None:
        self.environ, self.folder = environ, folder

    def run(self, *command: object) -> str:
        """Run a command to its end; what it printed."""
        done = subprocess.run(
            list(map(str, command)),
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=JOB_SECONDS,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def submit(self, *words: object) -> str:
        """The id of a job of `ipex-assist submit slurm --submit`."""
        job = self.run(BIN / "ipex-assist", "submit", "slurm", "--submit", *words).strip()
        assert re.fullmatch(r"\d+", job)
        return job

    def fields(self, job: str) -> dict[str, str]:
        """Return what Slurm knows about a job, or about an element of an array."""
        text = self.run("scontrol", "--oneliner", "show", "job", job)
        return dict(re.findall(r"(\w+)=(\S*)", text))

    def wait(self, job: str, *states: str) -> dict[str, str]:
        """Wait until the job is in one of `states`."""
        found: dict[str, str] = {}

        def reached() -> bool:
            nonlocal found
            found = self.fields(job)
            return found["JobState"] in states

        self.until(reached, lambda: f"{found}\n{self.logs()}")
        return found

    def until(self, condition: Callable[[], object], complaint: Callable[[], str] | None = None) -> None:
        deadline = time.monotonic() + JOB_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail((complaint or self.logs)())
            time.sleep(0.1)

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()}" for path in sorted(self.folder.glob("*.out")))

    def log(self, job: str) -> str:
        (path,) = self.folder.glob(f"*-{job}.out")
        return path.read_text()


@pytest.fixture(scope="module")
def environ() -> Iterator[dict[str, str]]:
    """The environment of a cluster, which ends with its standard input: also when this process is killed."""
    waits = ["sh", "-c", "echo $SLURM_CONF; exec cat >/dev/null"]
    process = subprocess.Popen(
        [sys.executable, str(CLUSTER), *waits],
        env=CLEAN,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    conf = process.stdout.readline().strip()
    try:
        if not conf:
            said = process.stderr.read()
            if os.geteuid():
                pytest.skip(f"Slurm cannot be started by a user who is not root: {said}")
            pytest.fail(said)
        yield {**CLEAN, "SLURM_CONF": conf}
    finally:
        process.stdin.close()
        try:
            code = process.wait(60)
        finally:
            process.kill()
    assert code == 0
    assert not Path(conf).exists()


@pytest.fixture
def slurm(environ: dict[str, str], tmp_path: Path) -> Slurm:
    return Slurm(environ, tmp_path)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path_factory.mktemp("slurm") / "tiny"))


@pytest.fixture(scope="module")
def timed(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Slurm, str]:
    """A job whose time runs out while the other tests run: a minute is the least that Slurm knows."""
    slurm = Slurm(environ, tmp_path_factory.mktemp("timed"))
    flags = [*ONE, "--time", "0:01:00", "--grace", "30", "--requeue", "1"]
    return slurm, slurm.submit(*flags, "--", "ipex-launch", "--", sys.executable, "-c", PATIENT)


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize("cpu", [0, 1])
def test_placement_equals_the_mask_of_srun(cpu: int, slurm: Slurm) -> None:
    """Catches a launcher that plans for the machine, or for the first CPU, instead of for what Slurm has bound."""
    srun = ["srun", "--exclusive", "--nodes=1", "--ntasks=1", "--cpus-per-task=2", f"--cpu-bind=mask_cpu:{1 << cpu:#x}"]
    plan = json.loads(slurm.run(*srun, BIN / "ipex-launch", "--dry-run", "--json", "--", "true"))
    assert plan["cpus"] == str(cpu)
    code = "import os; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])"
    assert slurm.run(*srun, BIN / "ipex-launch", "--", sys.executable, "-c", code) == f"[{cpu}] 1\n"


def test_tasks_of_a_node_share_its_cores(slurm: Slurm) -> None:
    """Two instances a node on two nodes: each has its own core, and an array of placements never overlaps."""
    code = "import os; print('AT', os.environ['SLURM_NODEID'], sorted(os.sched_getaffinity(0)), flush=True)"
    flags = ["--nodes", "2", "--instances", "2", *ONE, "--mem", "500M", "--name", "spread"]
    job = slurm.submit(*flags, "--", "ipex-launch", "--", sys.executable, "-c", code)
    slurm.wait(job, "COMPLETED")
    places = re.findall(r"AT (\d) (\[.*\])", slurm.log(job))
    assert sorted(places) == [("0", "[0]"), ("0", "[1]"), ("1", "[0]"), ("1", "[1]")]


def test_a_run_of_one_prompt_on_a_whole_node(tiny: str, slurm: Slurm) -> None:
    """sbatch to the end: the prompt as it was typed, the text of the API, all cores of the node."""
    prompt = 'it\'s a "fox" of $HOME\nand `more`'
    command = ["ipex-assist", "-m", tiny, *MODEL, "--max-new-tokens", "8", "--json", "-v", "--raw", "-p", prompt]
    job = slurm.submit("--name", "one", "--", *command)
    fields = slurm.wait(job, "COMPLETED")
    assert fields["OverSubscribe"] == "NO"
    said = slurm.log(job)
    result = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    model = ipex_assist.load(tiny, None, precision="fp32", executor="torch")
    assert result["tokens"] == model.generate(prompt, max_new_tokens=8).tokens
    assert f"{len(CPUS)} threads on CPUs {CPUS[0]}-{CPUS[-1]}" in said


def test_an_array_shares_the_prompts_of_a_batch(tiny: str, slurm: Slurm) -> None:
    """Two elements on two nodes: every prompt has one result, together, and the text of the API."""
    texts = [f"the fox {i}" for i in range(7)]
    write_prompts(slurm.folder / "my prompts.jsonl", texts)
    command = ["ipex-assist", "batch", "my prompts.jsonl", "-o", "out.jsonl", "-m", tiny, *MODEL]
    job = slurm.submit("--array", "2", *ONE, "--mem", "2G", "--", *command, "--max-new-tokens", "8")
    for element in (f"{job}_0", f"{job}_1"):
        slurm.wait(element, "COMPLETED")
    parts = [by_id(slurm.folder / f"out.{number}-of-2.jsonl") for number in (0, 1)]
    assert [set(part) for part in parts] == [{"p0", "p2", "p4", "p6"}, {"p1", "p3", "p5"}]
    model = ipex_assist.load(tiny, None, precision="fp32", executor="torch")
    for number, text in enumerate(texts):
        assert parts[number % 2][f"p{number}"]["tokens"] == model.generate(text, max_new_tokens=8).tokens


def test_a_batch_that_is_told_to_end_goes_on_by_itself(tiny: str, slurm: Slurm) -> None:
    """SIGTERM to the tasks, as Slurm sends it before time is up: the job is started again and does what is missing."""
    out = slurm.folder / "out.jsonl"
    write_prompts(slurm.folder / "p.jsonl", [f"the fox {i}" for i in range(100)])
    command = ["ipex-assist", "batch", "p.jsonl", "-o", "out.jsonl", "-m", tiny, *MODEL, "--max-new-tokens", "24"]
    job = slurm.submit("--requeue", "2", *ONE, "--mem", "2G", "--", *command)
    slurm.until(lambda: lines_in(out) >= 5)
    slurm.run("scancel", "--signal=TERM", job)
    slurm.wait(job, "PENDING", "REQUEUED")
    before = out.read_bytes()
    assert 5 <= before.count(b"\n") < 100
    fields = slurm.wait(job, "COMPLETED")
    assert fields["Restarts"] == "1"
    assert out.read_bytes().startswith(before)
    assert len(by_id(out)) == 100
    said = slurm.log(job)
    assert "stopped by SIGTERM" in said
    assert said.index("start 1\n") < said.index("stopped by SIGTERM") < said.index("start 2\n")


def test_a_cancelled_batch_is_whole_and_can_be_submitted_again(tiny: str, slurm: Slurm) -> None:
    """scancel: what is done is kept, and it stays cancelled; the same command again does the rest."""
    out = slurm.folder / "out.jsonl"
    write_prompts(slurm.folder / "p.jsonl", [f"the fox {i}" for i in range(100)])
    command = ["ipex-assist", "batch", "p.jsonl", "-o", "out.jsonl", "-m", tiny, *MODEL, "--max-new-tokens", "24"]
    words = ["--requeue", "2", *ONE, "--mem", "2G", "--", *command]
    first = slurm.submit(*words)
    slurm.until(lambda: lines_in(out) >= 5)
    slurm.run("scancel", first)
    slurm.wait(first, "CANCELLED")
    slurm.until(lambda: "left for --resume" in slurm.log(first))
    before = out.read_bytes()
    assert 5 <= len(by_id(out)) < 100
    second = slurm.submit(*words)
    slurm.wait(second, "COMPLETED")
    assert slurm.fields(first)["JobState"] == "CANCELLED"
    assert out.read_bytes().startswith(before)
    assert len(by_id(out)) == 100


def test_only_the_element_that_was_ended_starts_again(slurm: Slurm) -> None:
    """The last element has the id of its array: to start that one again would be to start all of them."""
    flags = ["--array", "2", *ONE, "--mem", "500M", "--requeue", "1", "--name", "pair"]
    job = slurm.submit(*flags, "--", "ipex-launch", "--", sys.executable, "-c", PATIENT)
    logs = [slurm.folder / f"pair-{job}_{number}.out" for number in (0, 1)]
    slurm.until(lambda: all(log.exists() and "RUNS" in log.read_text() for log in logs))
    last = next(number for number in (0, 1) if slurm.fields(f"{job}_{number}")["JobId"] == job)
    slurm.run("scancel", "--signal=TERM", f"{job}_{last}")
    slurm.wait(f"{job}_{last}", "COMPLETED")
    other = slurm.fields(f"{job}_{1 - last}")
    assert (other["JobState"], other["Restarts"]) == ("RUNNING", "0")
    assert [logs[number].read_text().count("RUNS") for number in (last, 1 - last)] == [2, 1]
    slurm.run("scancel", job)
    slurm.wait(f"{job}_{1 - last}", "CANCELLED")
    assert "SAVED" in logs[1 - last].read_text()


def test_time_runs_out(timed: tuple[Slurm, str]) -> None:
    """Slurm's own clock: the program is warned, saves its work, and is started again."""
    slurm, job = timed
    fields = slurm.wait(job, "COMPLETED", "TIMEOUT", "FAILED")
    assert (fields["JobState"], fields["Restarts"]) == ("COMPLETED", "1")
    assert re.findall(r"RUNS \d|SAVED", slurm.log(job)) == ["RUNS 0", "SAVED", "RUNS 1"]
