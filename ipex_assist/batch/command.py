"""The command `ipex-assist batch`: from its flags to a run, and from its end to an exit code. Never imports torch."""

from __future__ import annotations

import argparse
import heapq
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from ipex_assist.batch.arguments import defaults_from, parse, worker_settings
from ipex_assist.batch.coordinator import Coordinator
from ipex_assist.batch.options import suggestion
from ipex_assist.batch.progress import Progress
from ipex_assist.batch.prompts import Entry, PromptFile
from ipex_assist.batch.results import OutputError, ResultFile
from ipex_assist.commands.shared.arguments import load_options
from ipex_assist.commands.shared.demo_model import demo_options
from ipex_assist.commands.shared.stop_signal import StopSignal
from ipex_assist.env.errors import UsageError
from ipex_assist.native.rows import BLOCK
from ipex_assist.workers.arguments import instance_request
from ipex_assist.workers.capacity import MOST_CONCURRENCY
from ipex_assist.workers.local_machine import instance_need, local_commands, local_pool, measure_ways
from ipex_assist.workers.pool import WorkerPool
from ipex_assist.workers.settings import WorkerSettings

SHOWN_PROBLEMS = 20
LINE_BYTES_PER_TOKEN = 3  # English has four, code and most other scripts fewer


def main(argv: Sequence[str]) -> int:
    """Run `ipex-assist batch`; returns the exit code.

    Raises:
        IpexAssistError: the run cannot begin, or cannot go on; records written before are kept.
    """
    args = parse(argv)
    load = load_options(args)
    load = load if load.target is not None else demo_options(load)
    settings = worker_settings(args, load)
    prompts = PromptFile(args.prompts, defaults_from(args, load), args.shard)
    if args.dry_run:
        return _dry_run(args, prompts, settings)
    with StopSignal().caught() as stop:
        if args.output == "-":
            raise UsageError("-o -: results go to a file, from which a run can be resumed: name one")
        results = ResultFile(args.output, resume=args.resume, prompts=args.prompts)
        try:
            return _run(args, prompts, results, stop, settings)
        finally:
            with suppress(OutputError):  # what the run wrote it has synced itself
                results.close()


def _run(
    args: argparse.Namespace,
    prompts: PromptFile,
    results: ResultFile,
    stop: StopSignal,
    settings: WorkerSettings,
) -> int:
    check_same_prompts(prompts, results, ignore_failed=args.retry_failed)
    ids = {entry.id for entry in prompts.entries}
    retried = results.drop(lambda own_id, done: done.failed and own_id in ids) if args.retry_failed else 0
    todo = [entry for entry in prompts.entries if entry.id not in results.done]
    progress = Progress(len(prompts.entries), len(prompts.entries) - len(todo), quiet=args.quiet)
    for note in results.notes:
        progress.say(note)
    _tell_about_lines(prompts, progress)
    if retried:
        progress.say(f"{_count(retried, 'failed prompt')} to be tried again")
    if todo:
        settings = _with_lengths(settings, todo)
        if args.ray is None:
            pool: WorkerPool = local_pool(args, settings, progress.say, progress.say_once, len(todo))
        else:
            pool = _ray_pool(args, progress, stop, settings)
        run = Coordinator(
            prompts,
            todo,
            results,
            pool,
            progress,
            stop,
            concurrency=args.concurrency,
            timeout=args.timeout,
            verbose=args.verbose,
        )
        try:
            run.run()
            results.sync(now=True)
        finally:
            progress.close()
        if not args.quiet:
            progress.say(progress.summary())
    elif not ids:
        progress.say(f"{prompts.path} has no prompt that can be run" + _shard_note(args.shard))
    else:
        progress.say(f"nothing to do: each of {_count(len(ids), 'prompt')} has its record in {args.output}")
    return _verdict(prompts, results, progress, stop.number, len(todo) - progress.done)


def _verdict(prompts: PromptFile, results: ResultFile, progress: Progress, stopped: int | None, left: int) -> int:
    """The exit code, after the last messages."""
    if stopped is not None:
        progress.say(f"stopped by {signal.Signals(stopped).name}; {_count(left, 'prompt')} left for --resume")
        return 128 + stopped
    earlier = sum(entry.id in results.done and results.done[entry.id].failed for entry in prompts.entries)
    if earlier:
        progress.say(f"{_count(earlier, 'prompt')} failed in an earlier run; --resume --retry-failed tries again")
    if prompts.problems:
        progress.say(f"{_count(len(prompts.problems), 'line')} of {prompts.path} could not be run (see above)")
    return 1 if progress.failed or earlier or prompts.problems else 0


def check_same_prompts(prompts: PromptFile, results: ResultFile, *, ignore_failed: bool) -> None:
    """UsageError where records belong to other prompts than those that have their ids now."""
    others = [
        entry
        for entry in prompts.entries
        if (done := results.done.get(entry.id)) is not None
        and done.digest not in (None, entry.digest)
        and not (ignore_failed and done.failed)  # it may have been corrected since
    ]
    if others:
        first = others[0]
        raise UsageError(
            f"{results.path} has {len(others)} results of other prompts or options under the same ids, the first is id "
            f"{first.id!r} of line {first.line}: resume with the file and the flags of the first run, or name another "
            "-o. (Lines without an id have their number, which changes when lines are added or removed.)"
        )


def _shard_note(shard: tuple[int, int]) -> str:
    return "" if shard[1] == 1 else f" in shard {shard[0]}/{shard[1]}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


def _tell_about_lines(prompts: PromptFile, progress: Progress) -> None:
    for problem in prompts.problems[:SHOWN_PROBLEMS]:
        progress.say(f"{prompts.path} line {problem.line}: {problem.message}")
    if len(prompts.problems) > SHOWN_PROBLEMS:
        progress.say(f"{prompts.path}: and {len(prompts.problems) - SHOWN_PROBLEMS} more lines that cannot be run")
    for name, (lines, first) in prompts.unknown.items():
        progress.say(
            f"{prompts.path}: {name} is no option and has no effect{suggestion(name)}; in "
            f"{_count(lines, 'line')} from line {first}"
        )


def longest_requests(entries: Iterable[Entry], count: int = MOST_CONCURRENCY) -> tuple[int, ...]:
    """Estimate the tokens, prompt and answer, of the `count` longest requests, the longest first."""
    tokens = (entry.length // LINE_BYTES_PER_TOKEN + entry.max_new_tokens for entry in entries)
    return tuple(-(-length // BLOCK) * BLOCK for length in heapq.nlargest(count, tokens))


def _with_lengths(settings: WorkerSettings, entries: Sequence[Entry]) -> WorkerSettings:
    return replace(settings, lengths=longest_requests(entries, settings.concurrency or MOST_CONCURRENCY))


def _ray_pool(args: argparse.Namespace, progress: Progress, stop: StopSignal, settings: WorkerSettings) -> WorkerPool:
    from ipex_assist.workers.ray_pool import connect

    need = instance_need(settings)
    pool = connect(args.ray, instance_request(args, need.total), need, settings, progress.say_once)
    stop.catch()  # Ray has put a handler of its own in place of ours
    return pool


def _dry_run(args: argparse.Namespace, prompts: PromptFile, settings: WorkerSettings) -> int:
    from ipex_assist.launch.table import format_instances

    print(f"# {_count(len(prompts.entries), 'prompt')}, {_count(len(prompts.problems), 'line')} that cannot be run")
    settings = _with_lengths(settings, prompts.entries)
    if settings.load.recalibrate:
        measure_ways(args, settings, lambda line: print(f"# {line}", flush=True))
    need = instance_need(settings)
    print(format_instances(local_commands(args, need, len(prompts.entries), args.concurrency)), flush=True)
    return 0
