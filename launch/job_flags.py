"""The flags of `ipex-assist submit`, and checks whether the scheduler supports them."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys

from ipex_assist.env.errors import UsageError
from ipex_assist.env.parser import ArgumentParser
from ipex_assist.launch.jobs import Job, JobCommand

EPILOG = """\
examples:
  ipex-assist submit slurm --time 2:00:00 -- ipex-assist -m facebook/opt-13b --prompt-file prompt.txt
  ipex-assist submit slurm --instances 2 --cores-per-instance 14 --mem 64G -- ipex-launch -- python script.py
  ipex-assist submit slurm --array 8 --requeue 10 --submit -- ipex-assist batch prompts.jsonl -o out.jsonl
  ipex-assist submit pbs --cores-per-instance 56 --exclusive -- ipex-launch --instances per-node -- python script.py

A batch is split over all tasks of the job and its array: task t of 8 does every 8th line and writes out.t-of-8.jsonl.
Two flags are added to the command: --resume, so that a job that was ended continues, and --shard. To change the script
for a site, start from --print-template, and use it with --template.
"""
MEBIBYTES = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}


def build_parser() -> ArgumentParser:
    """The parser of all flags of `ipex-assist submit`, without the command after `--`."""
    parser = ArgumentParser(
        prog="ipex-assist submit",
        usage="%(prog)s slurm|pbs [options] -- ipex-assist|ipex-launch ARGUMENTS …",
        description="Write the script of a batch job, which places the command on the cores that it is given.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("scheduler", choices=("slurm", "pbs"), metavar="slurm|pbs")
    _add_resources(parser.add_argument_group("what the job asks for"))
    _add_run(parser.add_argument_group("how it runs"))
    script = parser.add_argument_group("script")
    script.add_argument("-o", "--output", metavar="FILE", help="write it here, - prints it (default: NAME.SCHEDULER)")
    script.add_argument("--force", action="store_true", help="replace FILE")
    script.add_argument("--submit", action="store_true", help="pass it to sbatch or qsub, and print the job's id")
    script.add_argument("--dry-run", action="store_true", help="print it, write and submit nothing")
    script.add_argument("--template", metavar="FILE", help="fill in this script instead of ours")
    script.add_argument("--print-template", action="store_true", help="print our template, to be copied and changed")
    return parser


def _add_resources(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--nodes", type=_count, default=1, metavar="N", help="(default: 1; for pbs use --array)")
    group.add_argument("--instances", type=_count, default=1, metavar="N", help="tasks per node (default: 1)")
    group.add_argument(
        "--cores-per-instance", type=_count, metavar="N", help="physical cores of each (default: the whole node)"
    )
    node = group.add_mutually_exclusive_group()
    node.add_argument("--exclusive", action="store_true", default=None, help="whole nodes (default without cores)")
    node.add_argument(
        "--shared",
        dest="exclusive",
        action="store_false",
        default=None,
        help="share nodes with other jobs (default with cores)",
    )
    group.add_argument(
        "--mem", type=_memory, metavar="SIZE", help="per node, e.g. 64G (default: all of exclusive nodes on slurm)"
    )
    group.add_argument("--time", type=_time, metavar="HH:MM:SS", help="time limit, also D-HH:MM:SS, or minutes")
    group.add_argument("--partition", "--queue", type=_word, metavar="NAME")
    group.add_argument("--account", type=_word, metavar="NAME")
    group.add_argument(
        "--array", type=_array, metavar="N[%M]", help="N elements, M at a time; they share the prompts of a batch"
    )
    group.add_argument(
        "--directive",
        action="append",
        default=[],
        type=_line,
        metavar="TEXT",
        help="any other, e.g. --directive=--constraint=icelake; repeatable",
    )


def _add_run(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--name", type=_name, metavar="NAME", help="of the job")
    group.add_argument("--log", type=_line, metavar="FILE", help="output of the job, in the scheduler's patterns")
    group.add_argument(
        "--grace", type=_count, default=30, metavar="S", help="seconds from SIGTERM to the time limit (default: 30)"
    )
    group.add_argument(
        "--requeue",
        type=_restarts,
        default=0,
        metavar="N",
        help="start again up to N times: after a node's failure, and on slurm when the time runs out (default: 0)",
    )
    group.add_argument("--module", action="append", default=[], type=_line, metavar="NAME", help="load it; repeatable")
    group.add_argument(
        "--venv",
        metavar="DIR",
        help="activate it, run its ipex-assist (default: this one; none: what the job finds)",
    )
    group.add_argument(
        "--setup", action="append", default=[], metavar="LINE", help="shell line to run before the command; repeatable"
    )


def job_from(args: argparse.Namespace, command: JobCommand) -> Job:
    """The job that the flags describe.

    Raises:
        UsageError: the scheduler does not support it, or flags contradict each other.
    """
    cores = args.cores_per_instance
    exclusive = cores is None if args.exclusive is None else args.exclusive
    _check_cores(args, cores, exclusive)
    if args.time is not None and args.time <= args.grace:
        raise UsageError(f"--time is {args.time} s, and SIGTERM is to come {args.grace} s before (--grace): give more")
    if args.scheduler == "pbs":
        _check_pbs(args)
    array, at_once = args.array or (None, None)
    job = Job(
        name=args.name or ("ipex-batch" if command.results else os.path.basename(command.argv[0])),
        command=command,
        nodes=args.nodes,
        instances=args.instances,
        cores=cores,
        exclusive=exclusive,
        memory=args.mem,
        time=args.time,
        partition=args.partition,
        account=args.account,
        array=array,
        at_once=at_once,
        log=args.log,
        grace=args.grace,
        restarts=args.requeue,
        modules=tuple(args.module),
        venv=_venv(args.venv),
        setup=tuple(args.setup),
        directives=tuple(args.directive),
    )
    if command.sharded and job.shards > 1:
        raise UsageError(f"the job gives each of its {job.shards} tasks its part of the prompts: leave out --shard")
    return job


def _check_cores(args: argparse.Namespace, cores: int | None, exclusive: bool) -> None:
    if cores is not None:
        return
    if args.instances > 1:
        raise UsageError(
            f"--instances {args.instances}: how many cores has each? Give --cores-per-instance; or leave --instances "
            f"to the command, as in: … -- ipex-launch --instances {args.instances} -- …, which divides what there is"
        )
    if args.scheduler == "pbs":
        raise UsageError("PBS gives one CPU to those who do not ask: give --cores-per-instance")
    if not exclusive:
        raise UsageError("--shared: how many cores are wanted of the node? Give --cores-per-instance")


def _check_pbs(args: argparse.Namespace) -> None:
    if args.nodes > 1:
        raise UsageError(
            f"--nodes {args.nodes}: PBS has no srun to start tasks on other nodes. --array {args.nodes} gives as many "
            "jobs of one node each, which share the prompts of a batch and start as nodes become free"
        )
    if args.log is not None and re.search(r"\s", args.log):
        raise UsageError(f"--log {args.log}: PBS takes no blanks here")


def _venv(given: str | None) -> str | None:
    """The virtual environment to activate: by default the one that this command runs in; None for "none"."""
    if given == "none":
        return None
    if given is None:
        here = sys.prefix
        return here if os.path.isfile(os.path.join(here, "bin", "activate")) else None
    path = os.path.abspath(given)
    for name in ("activate", "ipex-assist"):
        if not os.path.isfile(os.path.join(path, "bin", name)):
            raise UsageError(f"--venv {given}: there is no {path}/bin/{name}")
    return path


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


_count.__name__ = "number (1 or more)"  # argparse names the function in: invalid number value: 'x'


def _restarts(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


_restarts.__name__ = "number"


def _array(text: str) -> tuple[int | None, int | None]:
    number, percent, at_once = text.partition("%")
    count = _count(number)
    # PBS has no arrays of one.
    return count if count > 1 else None, _count(at_once) if percent else None


_array.__name__ = "array (N, or N%M)"


def _time(text: str) -> int:
    """Seconds, of Slurm's forms: M, M:S, H:M:S, D-H, D-H:M and D-H:M:S."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text, re.ASCII)
    if match is None:
        raise ValueError
    days, numbers = match[1], [int(part) for part in match.groups()[1:] if part is not None]
    if days is not None or len(numbers) == 3:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    else:
        hours, (minutes, seconds) = 0, [*numbers, 0][:2]
    if seconds > 59 or (minutes > 59 and (hours or days is not None or len(numbers) == 3)):
        raise ValueError
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


_time.__name__ = "time (HH:MM:SS, D-HH:MM:SS, or minutes)"


def _memory(text: str) -> int:
    """A size such as 120G or 120g, in MiB."""
    match = re.fullmatch(r"(\d+)([KMGT])i?B?", text, re.IGNORECASE | re.ASCII)
    size = 0 if match is None else math.ceil(int(match[1]) * MEBIBYTES[match[2].upper()])
    if size < 1:
        raise ValueError
    return size


_memory.__name__ = "size (e.g. 64G)"


def _word(text: str) -> str:
    if not re.fullmatch(r"[\w.,@:+/-]+", text):
        raise ValueError
    return text


_word.__name__ = "name"


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z][\w.+-]*", text, re.ASCII):
        raise ValueError
    return text


_name.__name__ = "name (a letter, then letters, digits, . _ + or -)"


def _line(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError
    return text


_line.__name__ = "line of text"
