"""Turns a job description into the text of its script: pure functions, with templates that a site can change."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Literal

from ipex_assist.env.errors import UsageError

Scheduler = Literal["slurm", "pbs"]

PLACEHOLDER = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# The value of a placeholder: None removes the template's line, a tuple repeats it.
Value = str | int | None | tuple[str, ...]


@dataclass(frozen=True)
class JobCommand:
    """The program that a job runs, as an argv.

    For `ipex-assist batch …`, `results` is the file of `-o`, and `argv` is without it and without `--resume`: the
    script adds both, so that every shard of the prompts has a file of its own and can be resumed. `prompts` is the file
    of prompts (without `batch`, of `--prompt-file`); `files` are others that the command reads, as far as is known;
    `sharded`: it already has a `--shard`.
    """

    argv: tuple[str, ...]
    results: str | None = None
    prompts: str | None = None
    files: tuple[str, ...] = ()
    sharded: bool = False


@dataclass(frozen=True)
class Job:
    """The resources and settings of a job; figures are for one node unless stated.

    `instances` are tasks on a node, `cores` the physical cores of each (None: the whole node). `memory` is in MiB,
    `time` and `grace` in seconds. `array` is the number of array elements, of which `at_once` run at the same time.
    `restarts` is how often it may be started again. `setup` are shell lines; the rest is in the scheduler's terms.
    """

    name: str
    command: JobCommand
    nodes: int = 1
    instances: int = 1
    cores: int | None = None
    exclusive: bool = False
    memory: int | None = None
    time: int | None = None
    partition: str | None = None
    account: str | None = None
    array: int | None = None
    at_once: int | None = None
    log: str | None = None
    grace: int = 30
    restarts: int = 0
    modules: tuple[str, ...] = ()
    venv: str | None = None
    setup: tuple[str, ...] = ()
    directives: tuple[str, ...] = ()

    @property
    def tasks(self) -> int:
        """How many tasks the job has, or each element of its array."""
        return self.nodes * self.instances

    @property
    def shards(self) -> int:
        """How many shards the prompts of a batch are split into; 1 where one task does all."""
        return 1 if self.command.results is None else (self.array or 1) * self.tasks


def job_script(job: Job, scheduler: Scheduler, template: str | None = None, name: str = "the template") -> str:
    """The script of `job`. template: a site's own text instead of ours; name: its name in errors.

    Raises:
        UsageError: the template has an unknown placeholder, or lacks one that the job needs.
    """
    values = slurm_values(job) if scheduler == "slurm" else pbs_values(job)
    text = builtin_template(scheduler) if template is None else template
    script = fill(text, values, name)
    there = set(PLACEHOLDER.findall(text))
    for needed in ("command", "shard"):
        if needed not in there and values[needed] is not None:
            what = "runs the job's program" if needed == "command" else "tells each task its part of the prompts"
            raise UsageError(f"{name} has no {{{{{needed}}}}}, which {what}; --print-template shows where it stands")
    return script


def builtin_template(scheduler: Scheduler) -> str:
    """The text of templates/SCHEDULER.sh."""
    return (resources.files("ipex_assist.launch") / "templates" / f"{scheduler}.sh").read_text(encoding="utf-8")


def fill(template: str, values: Mapping[str, Value], name: str) -> str:
    """Replace the {{placeholders}} by `values`; replacements are not searched for placeholders.

    A line with a placeholder that has no value (None, or an empty tuple) is left out; a line with several values is
    repeated for each. Consecutive empty lines become one.

    Raises:
        UsageError: a placeholder is not in `values`.
    """
    lines: list[str] = []
    for number, line in enumerate(template.splitlines(), start=1):
        for key in PLACEHOLDER.findall(line):
            if key not in values:
                known = ", ".join(sorted(values))
                raise UsageError(f"{name} line {number}: there is no {{{{{key}}}}}; placeholders are: {known}")
        if line.strip():
            lines += _filled(line, values)
        elif lines[-1:] != [""]:
            lines.append("")
    return "\n".join(lines) + "\n"


def _filled(line: str, values: Mapping[str, Value]) -> list[str]:
    rows: list[dict[str, str]] = [{}]
    for key in dict.fromkeys(PLACEHOLDER.findall(line)):
        value = values[key]
        choices = value if isinstance(value, tuple) else () if value is None else (str(value),)
        rows = [{**row, key: choice} for row in rows for choice in choices]
    return [_replaced(line, row) for row in rows]


def _replaced(line: str, row: Mapping[str, str]) -> str:
    return PLACEHOLDER.sub(lambda match: row[match[1]], line)


def quote(word: str) -> str:
    """Quote one word for bash, on one line: sbatch refuses a script with a carriage return anywhere."""
    if not CONTROL.search(word):
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return "$'" + CONTROL.sub(lambda match: f"\\{ord(match[0]):03o}", escaped) + "'"


def slurm_values(job: Job) -> dict[str, Value]:
    """The values of a Slurm script's placeholders.

    With a number of cores, srun binds each task to whole cores of its own. Without one it binds nothing, because the
    default of one CPU for a task would leave most of the node idle. Either way the launcher divides the CPUs of its
    affinity mask. `--cpus-per-task` is given to srun again, which takes it from sbatch only before Slurm 22.05.
    """
    return {
        **_common_values(job, _shard("SLURM_ARRAY_TASK_ID", "SLURM_PROCID", job)),
        "nodes": job.nodes,
        "threads_per_core": None if job.cores is None else 1,  # so that Slurm counts cores, not SMT siblings
        "exclusive": "--exclusive" if job.exclusive else None,
        # 0 means all memory of the node.
        "memory": _size(job.memory, "M", "G") if job.memory is not None else "0" if job.exclusive else None,
        "time": None if job.time is None else slurm_time(job.time),
        "log": quote(job.log or ("%x-%A_%a.out" if job.array else "%x-%j.out")),
        "requeue": "--requeue" if job.restarts else "--no-requeue",
        "restarts": job.restarts or None,
        # The last element of an array has the array's own job id, which would mean all elements.
        "self": "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if job.array else "$SLURM_JOB_ID",
        "binding": "--cpu-bind=none" if job.cores is None else f"--cpus-per-task={job.cores} --cpu-bind=cores",
        "sharing_tasks": job.tasks if job.shards > 1 else None,
    }


def pbs_values(job: Job) -> dict[str, Value]:
    """The values of a PBS script's placeholders.

    PBS has no srun, so several instances on the one node are started and bound by `ipex-launch`. Nor does PBS send a
    signal before the time limit, so timeout(1) does.
    """
    return {
        **_common_values(job, _shard("PBS_ARRAY_INDEX", "IPEX_INSTANCE", job)),
        "cpus": job.instances * (job.cores or 1),
        "memory": ":mem=" + _size(job.memory, "mb", "gb") if job.memory is not None else "",
        "place": "excl" if job.exclusive else "shared",
        "time": None if job.time is None else pbs_time(job.time),
        "log": job.log,
        "rerun": "y" if job.restarts or job.array else "n",  # qsub takes no array without
        "run": " ".join(_pbs_run(job)),
    }


def _pbs_run(job: Job) -> list[str]:
    run = []
    if job.time is not None:
        # In the background it would signal the command twice: alone, and with its group.
        run += ["timeout", "--foreground", "--preserve-status", "--signal=TERM", str(job.time - job.grace)]
    if job.instances > 1:
        launcher = os.path.join(os.path.dirname(job.command.argv[0]), "ipex-launch")
        count = ["--instances", str(job.instances), "--cores-per-instance", str(job.cores)]
        run += [quote(launcher), *count, "--on-failure", "continue", "--grace", str(job.grace), "--"]
    return [*run, "bash", "-c"]


def _shard(element: str, task: str, job: Job) -> str:
    """The shell arithmetic by which a task finds its shard from the numbers of its array element and of the task."""
    if job.tasks == 1:
        return element
    return f"{element} * {job.tasks} + {task}" if job.array else task


def _common_values(job: Job, shard: str) -> dict[str, Value]:
    array = None
    if job.array:
        array = f"0-{job.array - 1}" + (f"%{job.at_once}" if job.at_once else "")
    return {
        "job_name": job.name,
        "instances": job.instances,
        "cores": job.cores,
        "partition": job.partition,
        "account": job.account,
        "array": array,
        "grace": job.grace,
        "directive": job.directives,
        "module": tuple(map(quote, job.modules)),
        "venv": None if job.venv is None else quote(job.venv),
        "setup": job.setup,
        "shards": job.shards if job.shards > 1 else None,
        "shard": shard if job.shards > 1 else None,
        "command": command_line(job.command, job.shards),
    }


def command_line(command: JobCommand, shards: int) -> str:
    """The command as a line of shell. With several `shards`, the shell variable `shard` holds the task's own."""
    if command.results is None:
        return _joined(command.argv)
    added = ["--resume"]
    if shards > 1:
        stem, suffix = os.path.splitext(command.results)
        suffix = suffix and quote(suffix)
        added += [f'--shard "$shard"/{shards}', f'-o {quote(stem)}."$shard"-of-{shards}{suffix}']
    else:
        added += ["-o", quote(command.results)]
    # Before the other arguments, since one of them may be `--`.
    return " ".join([_joined(command.argv[:2]), *added, _joined(command.argv[2:])]).rstrip()


def _joined(argv: Sequence[str]) -> str:
    return " ".join(map(quote, argv))


def _size(mebibytes: int, small: str, large: str) -> str:
    """MiB in the scheduler's notation, in the larger of the two units if that is exact."""
    return f"{mebibytes}{small}" if mebibytes % 1024 else f"{mebibytes // 1024}{large}"


def slurm_time(seconds: int) -> str:
    """Seconds as days, hours, minutes and seconds, in sbatch's notation."""
    days, rest = divmod(seconds, 86400)
    return (f"{days}-" if days else "") + f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"


def pbs_time(seconds: int) -> str:
    """Seconds as hours (of any number), minutes and seconds, in qsub's notation."""
    return f"{seconds // 3600:02}:{seconds % 3600 // 60:02}:{seconds % 60:02}"
