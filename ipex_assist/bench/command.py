"""The command `ipex-assist bench`: from its flags to a report. Torch is imported where models are loaded."""

from __future__ import annotations

import argparse
import logging
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipex_assist.bench.arguments import idle_flags, pair_options, parse, task_options
from ipex_assist.commands.shared.relaunch import run_placed
from ipex_assist.env.options import options_of
from ipex_assist.env.runner import interrupt_exit
from ipex_assist.speculative.options import GenerationOptions

if TYPE_CHECKING:
    from ipex_assist.bench.dataset import Records
    from ipex_assist.bench.measure import Row
    from ipex_assist.bench.report import BenchReport
    from ipex_assist.bench.throughput import LoadRow
    from ipex_assist.generation.text_model import TextModel

log = logging.getLogger("ipex_assist")

WARM_UP_TOKENS = 16


def main(argv: Sequence[str]) -> int:
    """Run `ipex-assist bench`; returns the exit code. Raises IpexAssistError."""
    args = parse(argv)

    def need() -> int | None:
        from ipex_assist.bench.loading import needed_bytes

        return needed_bytes(pair_options(args))

    return run_placed("bench", argv, args, need, lambda: _work(args, argv))


def _work(args: argparse.Namespace, argv: Sequence[str]) -> int:
    from ipex_assist.bench.loading import models
    from ipex_assist.bench.report import BenchReport, render

    report = BenchReport(
        args.task, shlex.join(["ipex-assist", "bench", *(flag for flag in argv if flag != "--placed")])
    )
    if idle := idle_flags(args):
        log.warning("%s: no effect without --do-sample", ", ".join(idle))
    records = _records(args)
    code = 0
    try:
        for model, notes in models(pair_options(args)):
            report.describe(model, notes)
            if args.task == "throughput":
                _measure_loads(args, model, report)
            else:
                _measure(args, model, report, records)
            del model  # the next one needs its memory
    except KeyboardInterrupt as error:
        report.notes.append("interrupted: these are the cases that were finished")
        code = interrupt_exit(error)
    finally:
        if records is not None:
            records.close()
    print(render(report, args.format, args.seed), flush=True)
    if args.format == "csv" and report.conclusion:
        print(f"ipex-assist: {report.conclusion}", file=sys.stderr)
    if args.plot and (report.loads or any(row.speedup for row in report.rows)):
        from ipex_assist.bench.plots import draw

        draw(report, Path(args.plot))
    return code or _verdict(report)


def _verdict(report: BenchReport) -> int:
    """1 where greedy assisted text was not the plain one; transformers does not promise that it is."""
    rows: list[Row | LoadRow] = [*report.rows, *report.loads]
    different = [row for row in rows if row.equals_plain is False]
    if not different or report.executor.startswith(("transformers", "optimum")):
        return 0
    log.error(
        "assisted tokens differ from plain ones in %d of %d measurements, the first is example %s, %s",
        len(different),
        len(rows),
        different[0].example,
        different[0].contender.label,
    )
    return 1


def _records(args: argparse.Namespace) -> Records | None:
    if args.output is None:
        return None
    from ipex_assist.bench.dataset import Records

    names = ["dataset", "samples", "chat", "repeats", "model", "assistant_model", "random_weights", "acceptance"]
    names += ["executor", "precision", "assistant_precision", "draft_vocabulary", "universal", "threads", "cpus"]
    names += [
        "draft_threads",
        "draft_corpus",
        "draft_history",
        "revision",
        "generation_config",
        *(name for name in options_of(GenerationOptions) if hasattr(args, name)),
    ]
    settings: dict[str, Any] = {name: getattr(args, name) for name in names}
    file = Path(args.dataset).expanduser()
    if file.is_file():
        import hashlib

        settings["digest"] = hashlib.sha256(file.read_bytes()).hexdigest()
    return Records(Path(args.output), settings, resume=args.resume)


def _measure(args: argparse.Namespace, model: TextModel, report: BenchReport, records: Records | None) -> None:
    from ipex_assist.bench.cases import cases, contenders
    from ipex_assist.bench.measure import measure

    asked = task_options(args)
    compared = contenders(asked, model)
    names = model.identity
    planned = list(cases(asked, model, report.notes))
    todo = [case for case in planned if records is None or _key(names, case.example) not in records.done]
    if todo:
        for contender in (compared[0], compared[-1]):  # the first pass touches memory that later ones find in place
            options = contender.options(args.num_assistant_tokens_schedule)
            model.generate(todo[0].prompt, max_new_tokens=WARM_UP_TOKENS, ignore_eos=True, **options)
    for number, case in enumerate(planned, 1):
        key = _key(names, case.example)
        if records is not None and key in records.done:
            report.rows += records.done[key]
            continue
        rows = list(measure(model, case, compared, args.num_assistant_tokens_schedule))
        report.rows += rows
        if records is not None:
            records.add(key, rows)
        if not args.quiet:
            print(_progress(f"{names.precision}, {number} of {len(planned)}", rows), file=sys.stderr, flush=True)


def _measure_loads(args: argparse.Namespace, model: TextModel, report: BenchReport) -> None:
    from ipex_assist.bench.cases import contenders
    from ipex_assist.bench.load_cases import load_cases
    from ipex_assist.bench.throughput import measure_load, warm_up

    asked = task_options(args)
    compared = contenders(asked, model)
    texts: dict[int, list[int]] = {}
    planned = load_cases(asked, model, report.notes)
    for number, case in enumerate(planned, 1):
        warm_up(model, case, compared, args.num_assistant_tokens_schedule)
        rows = measure_load(model, case, compared, texts, args.num_assistant_tokens_schedule)
        report.loads += rows
        where = f"{model.identity.precision}, {number} of {len(planned)}: {case.concurrency} in flight"
        speeds = "; ".join(f"{row.contender.label} {statistics.median(row.speeds):.2f} tokens/s" for row in rows)
        if not args.quiet:
            print(f"ipex-assist: {where}: {speeds}", file=sys.stderr, flush=True)


def _key(names: Any, example: str) -> str:
    return f"{names.precision} {names.assistant_precision} {example}"


def _progress(where: str, rows: Sequence[Row]) -> str:
    parts = []
    for row in rows:
        token_s = row.median(lambda sample: sample.token_s)
        speed = "-" if token_s is None else f"{1 / token_s:.2f} tokens/s"
        ratio = f" ({sorted(row.speedup)[len(row.speedup) // 2]:.2f} ×)" if row.speedup else ""
        parts.append(f"{row.contender.label} {speed}{ratio}")
    tokens = rows[0].median(lambda sample: sample.new_tokens)
    return f"ipex-assist: {where}: {rows[0].prompt_tokens} + {tokens:.0f} tokens: " + "; ".join(parts)
