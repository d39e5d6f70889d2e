"""Job scripts of `ipex-assist submit`, run by bash with stand-ins for the scheduler: arguments, parts, ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_submit import HALVES, TRICKY, dry_run, script_of

from ipex_assist import cli

pytestmark = pytest.mark.one_stack


class Job:
    """Runs scripts as a scheduler would, with an `ipex-assist` that notes its arguments."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "bin"
        self.bin.mkdir()
        self.program = self.bin / "ipex-assist"
        note = 'import json, os, sys; os.write(1, f"ARGV {json.dumps(sys.argv[1:])}\\n".encode())'
        self.write("ipex-assist", note, sys.executable)
        (self.bin / "ipex-launch").symlink_to(Path(sys.executable).with_name("ipex-launch"))
        # As srun: the tasks side by side, their highest exit code.
        self.write(
            "srun",
            'while [ "$1" != bash ]; do shift; done\nexport SLURM_NTASKS=${TASKS:-1}\nhighest=0\n'
            'for SLURM_PROCID in $(seq 0 $((SLURM_NTASKS - 1))); do export SLURM_PROCID; "$@" & pids="$pids $!"; done\n'
            "for pid in $pids; do wait $pid; code=$?; [ $code -gt $highest ] && highest=$code; done\nexit $highest",
        )
        self.write("scontrol", 'echo "SCONTROL $*"')

    def write(self, name: str, text: str, interpreter: str = "/bin/bash") -> None:
        (self.bin / name).write_text(f"#!{interpreter}\n{text}\n")
        (self.bin / name).chmod(0o755)

    def start(self, script: str | bytes, **environ: object) -> subprocess.Popen[bytes]:
        (self.folder / "script").write_bytes(os.fsencode(script))
        given = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "PBS_JOBID": "7", "PBS_O_WORKDIR": str(self.folder)}
        return subprocess.Popen(
            ["bash", str(self.folder / "script")],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={
                **os.environ,
                **given,
                **{name: str(value) for name, value in environ.items()},
                "PATH": f"{self.bin}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            },
        )

    def run(self, script: str | bytes, **environ: object) -> tuple[int, str]:
        process = self.start(script, **environ)
        out, _ = process.communicate(timeout=60)
        return process.returncode, os.fsdecode(out)

    def arguments(self, script: str | bytes, **environ: object) -> list[list[str]]:
        """Return the arguments that each task's program was given."""
        code, out = self.run(script, **environ)
        assert code == 0, out
        return [json.loads(line[5:]) for line in out.splitlines() if line.startswith("ARGV ")]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
@pytest.mark.parametrize(
    "prompt",
    [
        TRICKY,
        "two\r\nlines\rand a\x0bvertical tab",
        "#SBATCH --nodes=99\n#PBS -q other\n}",
        "a\nEOF\n'\"\\'\\\\\n",
        "{{command}} {{nothing}} ${x} $(touch hacked) & | ; * ? ~ \x7f\x1b[31m",
        "\udcff not UTF-8",
        "-- -p",
    ],
    ids=repr,
)
def test_a_prompt_arrives_as_it_was_typed(
    scheduler: str, prompt: str, job: Job, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Catches quoting that breaks prompts, or lets one act as a directive, a placeholder or a command."""
    words = [scheduler, "--cores-per-instance", "1", "--", str(job.program), "-m", "x", f"--prompt={prompt}"]
    assert cli.main(dry_run(*words)) == 0
    script = capfdbinary.readouterr().out
    assert b"\r" not in script  # "Batch script contains DOS line breaks"
    assert job.arguments(script) == [["-m", "x", f"--prompt={prompt}"]]
    assert not (job.folder / "hacked").exists()


@pytest.mark.parametrize(("scheduler", "index"), [("slurm", "SLURM_ARRAY_TASK_ID"), ("pbs", "PBS_ARRAY_INDEX")])
@pytest.mark.parametrize("instances", [1, 2])
def test_every_part_of_the_prompts_is_done_once(
    scheduler: str, index: str, instances: int, job: Job, capfd: pytest.CaptureFixture[str]
) -> None:
    """All elements and tasks together: each shard once, into a file of its own, and always with --resume."""
    if len(os.sched_getaffinity(0)) < instances:
        pytest.skip("two instances need two CPUs")
    flags = ["--array", "3", "--instances", str(instances), "--cores-per-instance", "1"]
    command = [str(job.program), "batch", "p.jsonl", "--output=a b/out.x.jsonl", "-m", "x", "--resume", "--seed", "3"]
    script = script_of(capfd, scheduler, *flags, "--", *command)
    found = [
        arguments
        for element in range(3)
        for arguments in job.arguments(script, TASKS=instances, SLURM_ARRAY_JOB_ID=5, **{index: element})
    ]
    shards = 3 * instances
    assert sorted(arguments[3] for arguments in found) == [f"{number}/{shards}" for number in range(shards)]
    for arguments in found:
        number = arguments[3].partition("/")[0]
        part = ["--shard", f"{number}/{shards}", "-o", f"a b/out.x.{number}-of-{shards}.jsonl"]
        assert arguments == ["batch", "--resume", *part, "p.jsonl", "-m", "x", "--seed", "3"]


def test_parts_are_not_mistaken_when_the_number_of_tasks_was_changed(
    job: Job, capfd: pytest.CaptureFixture[str]
) -> None:
    """`sbatch --ntasks-per-node=1 script` would leave every second part undone without a word."""
    command = [str(job.program), "batch", "p.jsonl", "-o", "o.jsonl", "-m", "x"]
    script = script_of(capfd, "slurm", *HALVES, "--", *command)
    code, out = job.run(script, TASKS=1)
    assert code == 2
    assert "made for 2 tasks, not 1" in out


@pytest.mark.parametrize(
    ("requeue", "restarted", "ends_with", "asked"),
    [(2, 0, 143, True), (2, 1, 143, True), (2, 2, 143, False), (0, 0, 143, False), (2, 0, 1, False), (2, 0, 0, False)],
)
def test_only_what_ran_out_of_time_is_started_again(
    requeue: int, restarted: int, ends_with: int, asked: bool, job: Job, capfd: pytest.CaptureFixture[str]
) -> None:
    """So often and not more; a failure would only be repeated. Of an array it is this very element."""
    job.write("ipex-assist", f"exit {ends_with}")
    words = ["--requeue", str(requeue), "--", str(job.program), "-p", "x"]
    for array, element, name in (([], {}, "7"), (["--array", "2"], {"SLURM_ARRAY_TASK_ID": 1}, "5_1")):
        script = script_of(capfd, "slurm", *array, *words)
        code, out = job.run(script, SLURM_RESTART_COUNT=restarted, SLURM_ARRAY_JOB_ID=5, **element)
        assert code == ends_with
        assert out.splitlines()[1:] == ([f"SCONTROL requeue {name}"] if asked else [])


def test_a_cancelled_job_waits_for_its_tasks_and_stays_cancelled(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    """scancel signals the script, too: it must neither die before the tasks have saved their work, nor start again."""
    job.write(
        "ipex-assist", "trap 'sleep 0.3; echo SAVED; exit 143' TERM; echo READY; for i in {1..100}; do sleep 0.1; done"
    )
    for words in (["slurm", "--requeue", "2"], ["pbs", "--cores-per-instance", "1"]):
        process = job.start(script_of(capfd, *words, "--", str(job.program), "-p", "x"))
        assert process.stdout is not None
        while process.stdout.readline() != b"READY\n":
            pass
        os.killpg(process.pid, signal.SIGTERM)
        out = process.communicate(timeout=20)[0]
        assert b"SAVED" in out
        assert b"SCONTROL" not in out
        assert process.returncode == 143


@pytest.mark.parametrize("instances", [1, 2])
def test_pbs_warns_before_the_time_is_over(instances: int, job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    """PBS itself gives a few seconds between SIGTERM and SIGKILL; --grace is kept by the script."""
    if len(os.sched_getaffinity(0)) < instances:
        pytest.skip("two instances need two CPUs")
    # What it does on a signal takes a while: a second one would come in between.
    job.write("ipex-assist", "trap 'echo SAVED; sleep 0.3; exit 143' TERM; for i in {1..300}; do sleep 0.1; done")
    flags = ["--time", "0:01:00", "--grace", "58", "--instances", str(instances), "--cores-per-instance", "1"]
    started = time.monotonic()
    code, out = job.run(script_of(capfd, "pbs", *flags, "--", str(job.program), "-p", "x"))
    assert (code, out.count("SAVED")) == (143, instances), out
    assert 1.5 < time.monotonic() - started < 20


def test_one_task_that_fails_leaves_the_others_alone(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    """The other parts of a batch go on, and the exit code tells."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two instances need two CPUs")
    job.write("ipex-assist", '[ "$IPEX_INSTANCE" = 0 ] && exit 1; sleep 0.5; echo DONE')
    flags = ["--instances", "2", "--cores-per-instance", "1"]
    code, out = job.run(script_of(capfd, "pbs", *flags, "--", str(job.program), "-p", "x"))
    assert code == 1
    assert "DONE" in out
    script = script_of(capfd, "slurm", *flags, "--", str(job.program), "-p", "x")
    assert "--kill-on-bad-exit=0" in script  # which sites may have set to 1
