"""The command `ipex-assist distill`: answers, hidden states, training, and what the head brings. Torch comes late."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipex_assist.batch.prompts import Defaults, Prompt, PromptFile
from ipex_assist.commands.shared.relaunch import run_placed
from ipex_assist.distill.arguments import parse
from ipex_assist.distill.plan import (
    HeadPlan,
    check_target,
    layer_config,
    new_plan,
    plan_from,
    stored_bytes,
    text_config,
)
from ipex_assist.distill.trainer_environment import trainer_python
from ipex_assist.distill.training import train
from ipex_assist.distill.work_folder import AnsweredPrompt, WorkFolder
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.isa import read_isa
from ipex_assist.env.memory import gib, release_free_memory
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.sources.assistant_name import NONE

if TYPE_CHECKING:
    from ipex_assist.checkpoints.base import Checkpoint
    from ipex_assist.distill.measure import Outcome
    from ipex_assist.generation.assisted_model import AssistedModel
    from ipex_assist.models.spec import DecoderSpec

STEP_TOKENS = 512  # of a training step, where no text is longer
HELD_OUT = 0.1  # of the texts
SAID_SECONDS = 10.0  # between lines about training steps


class Talk:
    """Progress on standard error: every line but those that come too fast."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._last = quiet, 0.0

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        often = text.startswith("step ")
        if self._quiet or (often and now - self._last < SAID_SECONDS):
            return
        if often:
            self._last = now
        print(f"ipex-assist: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class DistillRun:
    """What a run has found out before it begins."""

    args: argparse.Namespace
    load: LoadOptions
    checkpoint: Checkpoint
    spec: DecoderSpec
    plan: HeadPlan
    prompts: list[Prompt]
    folder: WorkFolder
    said: Talk


def main(argv: Sequence[str]) -> int:
    """Run `ipex-assist distill`; returns the exit code. Raises IpexAssistError."""
    args = parse(argv)
    load = replace(LoadOptions.from_flags(args), assistant=NONE, calibrate=False)
    prompts = read_prompts(args)

    def need() -> int | None:
        from ipex_assist.commands.shared.load import memory_need

        return memory_need(load, args.max_length).total

    return run_placed("distill", argv, args, need, lambda: _run(args, load, prompts))


def read_prompts(args: argparse.Namespace) -> list[Prompt]:
    """The prompts of the file, each greedy one once, each sampled one with a seed of its own.

    Raises UsageError for a line that is none.
    """
    options = GenerationOptions.from_flags(args)
    file = PromptFile(args.prompts, Defaults(options, args.chat))
    if file.problems:
        first = file.problems[0]
        raise UsageError(f"{args.prompts}, line {first.line}: {first.message}")
    found = []
    for number, prompt in enumerate(map(file.read, file.entries), start=options.seed or 0):
        own = replace(prompt.options, assisted=False, do_sample=bool(prompt.options.do_sample))
        found.append(replace(prompt, options=replace(own, seed=number) if own.draws else own))
    distinct = {prompt.digest(): prompt for prompt in found}
    if len(distinct) < 2:
        raise UsageError(f"{args.prompts} has {len(distinct)} prompts; at least 2 are needed, one to be held out")
    return list(distinct.values())


def _run(args: argparse.Namespace, load: LoadOptions, prompts: list[Prompt]) -> int:
    from ipex_assist.checkpoints.open import open_checkpoint

    checkpoint = open_checkpoint(args.model, revision=load.revision, offline=load.offline)
    spec = check_target(checkpoint, args.kind or "eagle3")
    if args.start_from is not None:
        plan = plan_from(open_checkpoint(args.start_from, offline=load.offline), checkpoint, args.kind)
        check_target(checkpoint, plan.kind)
    else:
        plan = new_plan(args.kind or "eagle3", spec, args.layers, args.draft_vocab_size)
    said = Talk(args.quiet)
    python = trainer_python(args.trainer_python, said)
    folder = WorkFolder(args.work)
    run = DistillRun(args, load, checkpoint, spec, plan, prompts, folder, said)
    folder.open(facts(run))
    samples = make_data(run)
    train(python, make_job(run, samples), folder, said)
    said(f"{args.output} is written; {folder.path} can be deleted")
    outcomes = judge(run, samples)
    if args.json:
        print(json.dumps({"head": args.output, "kind": plan.kind, "outcomes": [each.as_dict() for each in outcomes]}))
    else:
        print("\n".join([f"plain: {outcomes[0].plain_tokens_per_s:.1f} tokens/s", *(o.line() for o in outcomes)]))
    return 0


def facts(run: DistillRun) -> dict[str, Any]:
    """What decides the data and the training, by which a later run knows its own."""
    digests = "".join(sorted(prompt.digest() for prompt in run.prompts))
    plan = run.plan
    return {
        "target": run.checkpoint.source,
        "precision": run.load.precision,
        "prompts": hashlib.sha256(digests.encode()).hexdigest()[:16],
        "max_length": run.args.max_length,
        "aux_layers": list(plan.aux_layers),
        "head": [plan.kind, plan.layers, plan.draft_vocab_size, plan.start_from],
    }


def make_data(run: DistillRun) -> list[AnsweredPrompt]:
    """Answers and hidden states, as far as they are not there; returns the samples, of which the last are held out."""
    from ipex_assist.distill import answers
    from ipex_assist.distill.hidden_states import write_hidden_states, write_mtp, write_samples, write_verifier

    model = _load(run, run.load)
    try:
        folder, spec, said, longest = run.folder, run.spec, run.said, min(run.args.max_length, model.context_length)
        encoded = answers.encode(model, run.prompts, longest, said)
        most = sum(min(longest, len(tokens) + prompt.options.max_new_tokens) for prompt, tokens in encoded)
        size = stored_bytes(spec, run.plan, most)
        said(f"hidden states of at most {most:,} tokens take up to {gib(size, 2)} in {folder.path}")
        there = sum(file.stat().st_size for file in folder.hidden_states.glob("hs_*.safetensors"))
        folder.check_room(size - there, "hidden states")
        answers.write_answers(model, encoded, folder, longest, said)
        samples = answers.usable(folder, [prompt.digest() for prompt, _ in encoded])
        write_samples(folder, samples)
        write_hidden_states(model.target, run.plan.taps(spec), samples, folder, said)
        write_verifier(run.checkpoint, folder.verifier)
        if run.plan.kind == "mtp" and run.plan.start_from is None:
            write_mtp(run.checkpoint, folder.verifier / "mtp")
        return samples
    finally:
        model.close()
        del model
        release_free_memory()


def _load(run: DistillRun, options: LoadOptions) -> AssistedModel:
    from ipex_assist.commands.shared.load import leave_cores_to_native
    from ipex_assist.generation.assisted_model import AssistedModel
    from ipex_assist.generation.loading import load_by

    model = load_by(replace(options, progress=sys.stderr.isatty() and not run.args.quiet))
    leave_cores_to_native()
    assert isinstance(model, AssistedModel)
    return model


def make_job(run: DistillRun, samples: Sequence[AnsweredPrompt]) -> dict[str, Any]:
    """What train_process.py is told."""
    plan, folder = run.plan, run.folder
    features = read_isa().features
    return {
        "kind": plan.kind,
        "data": str(folder.data.absolute()),
        "verifier": str(folder.verifier.absolute()),
        "state": str(folder.state.absolute()),
        "output": str(Path(run.args.output).absolute()),
        "target": run.checkpoint.source,
        "architectures": [run.checkpoint.architecture],
        "layer": text_config(run.checkpoint) if plan.kind == "mtp" else layer_config(run.spec, plan),
        "hidden_size": run.spec.hidden_size,
        "aux_layers": list(plan.aux_layers),
        "draft_vocab_size": plan.draft_vocab_size,
        "draft_tokens": plan.draft_tokens,
        "block_size": plan.draft_tokens + 1,
        "mask_token": _mask_token(run),
        "start_from": plan.start_from,
        "start": "linear",
        "seconds": run.args.hours * 3600,
        "learning_rate": run.args.learning_rate,
        "step_tokens": max(STEP_TOKENS, *(len(sample.tokens) for sample in samples)),
        "held_out": held_out(len(samples)),
        "seed": run.args.seed or 0,
        "bf16": bool(features & {"avx512_bf16", "amx_bf16"}),
        "threads": _threads(),
    }


def held_out(count: int) -> int:
    """How many of so many samples are held out."""
    return max(1, round(count * HELD_OUT))


def _threads() -> int:
    from ipex_assist.executors.select_executor import compute_threads

    return compute_threads()


def _mask_token(run: DistillRun) -> int:
    """A token that stands for those of a block that are not known yet: one that texts do not have."""
    from ipex_assist.tokenization.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(run.checkpoint)
    if tokenizer.mask_token_id is not None:
        return int(tokenizer.mask_token_id)
    if len(tokenizer) < run.spec.vocab_size:
        return len(tokenizer)
    for token in (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    return run.spec.vocab_size - 1


def judge(run: DistillRun, samples: Sequence[AnsweredPrompt]) -> list[Outcome]:
    """What the head, lookup, and the sibling bring on the held-out prompts."""
    from ipex_assist.distill import measure

    prompts = [each.tokens[: each.prompt_tokens] for each in samples[-held_out(len(samples)) :]]
    longest = run.plan.draft_tokens
    head = replace(run.load, assistant=str(Path(run.args.output).absolute()), recalibrate=True, calibrate=True)
    outcomes = []
    model = _load(run, head)
    try:
        outcomes += measure.compare(model, f"head ({run.plan.kind})", prompts, longest)
        outcomes.append(measure.lookup(model, prompts, longest))
    finally:
        model.close()
    if (sibling := _sibling(run)) is not None:
        model = _load(run, replace(head, assistant=sibling))
        try:
            outcomes += measure.compare(model, sibling, prompts, longest)
        finally:
            model.close()
    return outcomes


def _sibling(run: DistillRun) -> str | None:
    """The small model to compare with: the one that is named, or the family's where it is on this machine."""
    from ipex_assist.checkpoints.open import open_checkpoint
    from ipex_assist.speculative.sources.default_assistants import default_assistant

    if run.args.compare is not None:
        return str(run.args.compare)
    found = default_assistant(run.checkpoint.config, run.checkpoint.source)
    if found is None:
        return None
    try:
        open_checkpoint(found, offline=True)
    except IpexAssistError:
        run.said(f"{found}, its small sibling, is not on this machine, and not compared (--compare {found} loads it)")
        return None
    return found
