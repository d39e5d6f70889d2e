"""`ipex-assist submit slurm|pbs`: writes the script of a batch job, and submits it if asked. Never imports torch."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.launch.job_command import Parsers, locate, parse_command
from ipex_assist.launch.job_flags import build_parser, job_from
from ipex_assist.launch.jobs import Job, Scheduler, builtin_template, job_script

# Both read the script from standard input if no file is named, and print the job's id.
SUBMITTERS: dict[Scheduler, tuple[str, ...]] = {"slurm": ("sbatch", "--parsable"), "pbs": ("qsub",)}
_KEPT = ("SLURM_CONF",)  # where its configuration is
EXAMPLE = "for example: ipex-assist submit slurm --time 1:00:00 -- ipex-assist -m MODEL --prompt-file FILE"


def main(argv: Sequence[str], parsers: Parsers) -> int:
    """Run `ipex-assist submit`; returns the exit code. parsers: check the job's command before it waits in a queue.

    Raises:
        UsageError: the job cannot be made as asked, or its command's flags are wrong.
        IpexAssistError: the scheduler's program is not installed, or refuses the job.
    """
    own, dashes, command = _split(argv)
    try:
        args = _parse(own)
        if args.print_template:
            print(builtin_template(args.scheduler), end="")
            return 0
        if not command:
            raise UsageError(f"no command{' after --' if dashes else ''}; {EXAMPLE}")
        job = job_from(args, locate(parse_command(command, parsers), _folders(args.venv)))
    except SystemExit as exit_:  # argparse has printed the help, or what is wrong
        return int(exit_.code or 0)
    script = job_script(job, args.scheduler, *_template(args.template))
    for note in _notes(job, args.scheduler):
        print(f"ipex-assist submit: {note}", file=sys.stderr)
    path = args.output
    if path == "-" and args.submit:
        raise UsageError("-o - prints the script where --submit prints the job's id: leave one of them out")
    if args.dry_run or path == "-":
        sys.stdout.buffer.write(os.fsencode(script))
        return 0
    if path is None and not args.submit:
        path = f"{job.name}.{args.scheduler}"
    if path is not None:
        _write(Path(path), script, overwrite=args.force)
    program = SUBMITTERS[args.scheduler]
    if args.submit:
        print(_submit(program, script, path))
    else:
        print(f"ipex-assist submit: wrote {path}; {program[0]} {path} submits it", file=sys.stderr)
    return 0


def _split(argv: Sequence[str]) -> tuple[list[str], bool, list[str]]:
    if "--" not in argv:
        return list(argv), False, []
    cut = list(argv).index("--")
    return list(argv[:cut]), True, list(argv[cut + 1 :])


def _parse(own: list[str]) -> argparse.Namespace:
    """Parse the flags of submit itself. Any other word is most likely a command without `--` before it."""
    parser = build_parser()
    args, unknown = parser.parse_known_args(own)
    words = [word for word in unknown if not word.startswith("-")]
    if words:
        raise UsageError(f"the command goes after --, and {words[0]} is before it; {EXAMPLE}")
    if unknown:
        parser.refuse(unknown)
    return args


def _folders(venv: str | None) -> list[str]:
    """Folders to search for the job's program: where this command is, if the job is to run in its environment."""
    if venv == "none":
        return []
    if venv is not None:
        return [os.path.join(os.path.abspath(venv), "bin")]
    return [os.path.dirname(os.path.abspath(path)) for path in (sys.executable, sys.argv[0])]


def _template(path: str | None) -> tuple[str | None, str]:
    """The text of a site's template (None: use ours), and its name for errors."""
    if path is None:
        return None, "the template"
    try:
        return Path(path).read_text(encoding="utf-8"), path
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--template {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _notes(job: Job, scheduler: Scheduler) -> list[str]:
    """Notes on what the user may not expect from this job."""
    notes = []
    command = job.command
    if job.shards > 1:
        stem, suffix = os.path.splitext(command.results or "")
        parts = f"{stem}.*-of-{job.shards}{suffix}"
        notes.append(f"{job.shards} tasks share the prompts; results in {parts}, together: cat {parts}")
    elif command.results is None and (same := (job.array or 1) * job.tasks) > 1:
        names = "SLURM_PROCID" if scheduler == "slurm" else "IPEX_INSTANCE"
        if job.array:
            names += " and " + ("SLURM_ARRAY_TASK_ID" if scheduler == "slurm" else "PBS_ARRAY_INDEX")
        notes.append(f"{same} tasks run the same command; tell them apart by {names}")
    for path in (command.prompts, *command.files):
        if path is not None and not os.path.exists(os.path.expanduser(path)):
            notes.append(f"{path}: there is no such file yet")
    if scheduler == "pbs" and job.time is None:
        notes.append("without --time PBS ends the job with a few seconds of warning; with it, --grace is kept")
    return notes


def _write(path: Path, script: str, *, overwrite: bool) -> None:
    data = os.fsencode(script)
    try:
        if path.exists() and not overwrite and path.read_bytes() != data:
            raise UsageError(f"{path} is there and differs: --force replaces it, -o FILE writes another")
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; -o FILE writes another") from None


def _submit(program: Sequence[str], script: str, path: str | None) -> str:
    """Submit the script; returns the job's id."""
    argv = [*program] if path is None else [*program, path]
    given = os.fsencode(script) if path is None else None
    try:
        # What Slurm tells the tasks of a job about it (SLURM_MEM_PER_NODE, …) would be orders for another job.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name in _KEPT}
        done = subprocess.run(argv, input=given, env=environ, capture_output=True, check=False)
    except FileNotFoundError:
        raise IpexAssistError(
            f"there is no {program[0]} on PATH: submit from a node that has it, or write the script with -o FILE"
        ) from None
    messages = os.fsdecode(done.stderr).strip()
    if done.returncode != 0:
        raise IpexAssistError(f"{program[0]} refuses the job (exit code {done.returncode}): {messages}")
    if messages:
        print(messages, file=sys.stderr)
    return os.fsdecode(done.stdout).strip()
