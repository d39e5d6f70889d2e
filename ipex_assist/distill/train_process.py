"""Trains a draft head with `speculators`, in a process of its own whose Python may have other versions of libraries.

Run as `python -I train_process.py JOB`, with a JSON file that training.py writes. Imports torch, speculators, what that
brings, and the standard library, nothing of ipex_assist. Standard output has one JSON object a line (`say`). SIGTERM
and SIGINT end it after the step that runs: the state is stored, and the same job goes on from there.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import random
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars
from safetensors.torch import load_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.convert.mtp.converter import MTPConverter
from speculators.losses import resolve_loss_config
from speculators.model import SpeculatorModel
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.models.eagle3.data import shift_batch
from speculators.models.mtp import MTPDraftModel, MTPSpeculatorConfig, compute_step_weights, shift_batch_mtp
from speculators.proposals.greedy import GreedyTokenProposalConfig
from speculators.train.checkpointer import patch_config_dtype
from speculators.train.data import ArrowDataset, CollateFn
from speculators.train.optimizers import build_optimizers
from speculators.train.utils import normalize_counted_metrics
from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution, save_token_frequency_distribution
from transformers import AutoConfig, LlamaConfig, Qwen3Config

WARM_UP = 0.02  # part of the time in which the learning rate rises
LEAST_RATE = 0.05  # of the learning rate, at the end
TRAINED_STEPS = 3  # of an EAGLE-3 draft: what follows is alike, and a fourth would take as long again as each of them
HELD_OUT_TIMES = 12  # held-out samples are tried, over the whole time
HELD_OUT_TOKENS = 8192  # of them at most
SAVE_SECONDS = 120.0
SAID_SECONDS = 2.0
MODELS: dict[str, Any] = {"eagle3": Eagle3DraftModel, "dflash": DFlashDraftModel, "mtp": MTPDraftModel}
SHIFTS = {"eagle3": shift_batch, "dflash": None, "mtp": shift_batch_mtp}
Job = dict[str, Any]


def say(event: str, **facts: Any) -> None:
    """Tell the parent process."""
    print(json.dumps({"event": event, **facts}), flush=True)


def write_dataset(job: Job) -> int:
    """Samples as the folder of `datasets` that `speculators train` reads; returns how many there are."""
    folder = Path(job["data"])
    with (folder / "samples.jsonl").open(encoding="utf-8") as lines:
        samples = [json.loads(line) for line in lines]
    columns: dict[str, list[Any]] = {"input_ids": [], "loss_mask": [], "seq_len": []}
    for sample in samples:
        tokens, prompt = sample["tokens"], sample["prompt_tokens"]
        columns["input_ids"].append(tokens)
        columns["loss_mask"].append([0] * prompt + [1] * (len(tokens) - prompt))
        columns["seq_len"].append(len(tokens))
    disable_progress_bars()
    made = Dataset.from_dict(columns)
    made.set_format(type="torch")
    made.save_to_disk(folder)
    (folder / "token_freq.pt").unlink(missing_ok=True)  # of fewer answers
    save_token_frequency_distribution(made, folder / "token_freq.pt")
    return len(samples)


def split(job: Job, count: int, part: str) -> ArrowDataset:
    """The training samples ("train"), or those held out ("val"), which are the last."""
    ratio = (count - job["held_out"] + 0.5) / count  # half a sample more: it is rounded down
    return ArrowDataset(
        job["step_tokens"],
        job["data"],
        on_missing="raise",
        train_ratio=ratio,
        split=part,
        hidden_states_dtype=dtype(job),
    )


def dtype(job: Job) -> torch.dtype:
    """Of hidden states, and of the products of matrices."""
    return torch.bfloat16 if job["bf16"] else torch.float32


def batches(dataset: ArrowDataset, job: Job, seed: int | None) -> Iterator[dict[str, Any]]:
    """Samples packed to step_tokens at most, in random order; in their own where seed is None.

    MTP's are alone: its model predicts further tokens at the end of one from the next.
    """
    room = 0 if job["kind"] == "mtp" else job["step_tokens"]
    order = list(range(len(dataset)))
    if seed is not None:
        random.Random(seed).shuffle(order)
    packed: list[int] = []
    size = 0
    for index in [*order, None]:
        length = 0 if index is None else dataset.approx_lengths[index]
        if packed and (index is None or size + length > room):
            yield collated(dataset, job, packed)
            packed, size = [], 0
        if index is not None:
            packed.append(index)
            size += length


def collated(dataset: ArrowDataset, job: Job, indices: list[int]) -> dict[str, Any]:
    """Samples as one batch, without padding."""
    size = sum(dataset.approx_lengths[index] - (job["kind"] == "eagle3") for index in indices)
    shift = SHIFTS[job["kind"]]
    collate = CollateFn(size, job["hidden_size"], len(job["aux_layers"]), dtype(job), preprocess=shift)
    batch = collate([dataset[index] for index in indices])
    return {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}


def new_config(job: Job) -> Any:
    """The config of a new head."""
    if job["kind"] == "mtp":
        return MTPSpeculatorConfig(
            transformer_layer_config=AutoConfig.for_model(**job["layer"]), speculators_config=speculators_config(job)
        )
    common = {"draft_vocab_size": job["draft_vocab_size"], "speculators_config": speculators_config(job)}
    if job["kind"] == "eagle3":
        return Eagle3SpeculatorConfig(
            transformer_layer_config=LlamaConfig(**job["layer"]),
            norm_before_residual=False,
            fc_norm=True,
            eagle_aux_hidden_state_layer_ids=job["aux_layers"],
            **common,
        )
    return DFlashSpeculatorConfig(
        transformer_layer_config=Qwen3Config(**job["layer"]),
        block_size=job["block_size"],
        aux_hidden_state_layer_ids=job["aux_layers"],
        mask_token_id=job["mask_token"],
        **common,
    )


def speculators_config(job: Job) -> SpeculatorsConfig:
    """What a head says about its target, which is a folder with its embedding and lm_head while it is trained."""
    return SpeculatorsConfig(
        algorithm=job["kind"],
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=job["draft_tokens"])],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=job["verifier"], architectures=job["architectures"]),
    )


def make_model(job: Job) -> SpeculatorModel:
    """The head that training begins with: new, the target's own MTP layer, or `start_from`'s."""
    made = MODELS[job["kind"]]
    stored: dict[str, torch.Tensor] = {}
    if job["start_from"] is None:
        config = new_config(job)
        if job["kind"] == "mtp":
            stored = MTPConverter().convert_to_state_dict(Path(job["verifier"]) / "mtp")
    else:
        folder = Path(job["start_from"])
        config = made.config_class.from_pretrained(folder)
        config.speculators_config = speculators_config(job)
        for file in sorted(folder.glob("*.safetensors")):
            stored |= load_file(file)
    config.transformer_layer_config._attn_implementation = "eager"
    torch.manual_seed(job["seed"])
    model = made(config=config)
    if model.use_draft_vocab:
        if "d2t" not in stored:
            counts = torch.load(Path(job["data"]) / "token_freq.pt", weights_only=True)
            stored["d2t"], stored["t2d"] = build_vocab_mappings_from_distribution(
                counts, config.draft_vocab_size, config.transformer_layer_config.vocab_size
            )
        model.load_vocab_mappings(stored["t2d"].bool(), stored["d2t"].long())
    model.load_state_dict(stored, strict=False)
    model.load_verifier_weights()
    return model.float()


def call_options(job: Job) -> dict[str, Any]:
    """What a call of the model is given beside a batch: `speculators`' own defaults, with losses that need no GPU."""
    if job["kind"] == "eagle3":
        loss = resolve_loss_config("kl_div", "eager")
        return {"ttt_steps": job["draft_tokens"], "ttt_step_loss_decay": 1.0, "loss_config": loss}
    if job["kind"] == "mtp":
        return {"step_weights": compute_step_weights(num_steps=job["draft_tokens"])}
    return {
        "loss_config": resolve_loss_config("ce", "eager"),
        "gamma": 4.0,
        "max_anchors": job["step_tokens"] // job["block_size"],
        "per_position_loss_weight": "dpace",
        "dpace_alpha": 0.5,
    }


@torch.no_grad()
def mtp_counts(drafted: list[torch.Tensor], batch: dict[str, Any]) -> dict[str, Any]:
    """How often the first token of MTP's drafts, the first two, … are the text's, as EAGLE-3's model counts them."""
    counts: dict[str, Any] = {}
    right: torch.Tensor | None = None
    for step, logits in enumerate(drafted):
        rows = logits.shape[1]
        here = logits.argmax(-1) == batch["input_ids"][:, step + 2 : step + 2 + rows]
        right = here if right is None else right & here
        asked = batch["loss_mask"][:, 1 : 1 + rows].bool()
        counts[f"full_acc_{step}_sum"], counts[f"full_acc_{step}_total"] = (right & asked).sum(), asked.sum()
    return counts


class Training:
    """A head, its optimizer, and how far it is."""

    def __init__(self, job: Job, count: int) -> None:
        self.job, self.model = job, make_model(job)
        self.train_set, self.held_out = split(job, count, "train"), split(job, count, "val")
        wanted = SimpleNamespace(optimizer="adamw", lr=job["learning_rate"], weight_decay=0.01)
        self.optimizers = build_optimizers(self.model, wanted)
        self.options = call_options(job)
        self.trained = {name for name, each in self.model.named_parameters() if each.requires_grad}
        self.done: dict[str, Any] = {"seconds": 0.0, "step": 0, "epoch": 0, "batch": 0, "tried": 0, "best": None}
        self.curve: list[dict[str, Any]] = []  # of held-out samples: what each try said
        self.loss: float | None = None
        self.stop = False
        self.tried_step = -1
        state = Path(job["state"])
        self._state, self._best, self._curve = (state / name for name in ("training.pt", "best.pt", "held_out.json"))
        if self._state.exists():
            self._resume()
        elif job["start_from"] is None and job["kind"] == "eagle3" and job["start"] == "linear":
            beside("linear_start").begin(self.model, batches(self.train_set, job, job["seed"]))

    def weights(self) -> dict[str, torch.Tensor]:
        """Of what is trained."""
        return {name: each for name, each in self.model.state_dict().items() if name in self.trained}

    def _resume(self) -> None:
        stored = torch.load(self._state, weights_only=True)
        self.model.load_state_dict(stored["weights"], strict=False)
        for optimizer, state in zip(self.optimizers, stored["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.done, self.curve = stored["done"], stored["curve"]
        say("resumed", **self.done)

    def store(self) -> None:
        """Store the state, so that a job that is run again goes on."""
        optimizers = [each.state_dict() for each in self.optimizers]
        replace(
            self._state, {"weights": self.weights(), "optimizers": optimizers, "done": self.done, "curve": self.curve}
        )

    def forward(self, batch: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        """Loss and counts of a batch."""
        precision = torch.autocast("cpu", torch.bfloat16) if self.job["bf16"] else contextlib.nullcontext()
        options = dict(self.options)
        if self.job["kind"] == "eagle3" and self.model.training:
            options["ttt_steps"] = min(TRAINED_STEPS, options["ttt_steps"])
        with precision:
            drafted, loss, counts = self.model(**batch, **options)
        return loss, mtp_counts(drafted, batch) | counts if self.job["kind"] == "mtp" else counts

    def step(self, batch: dict[str, Any]) -> None:
        """Learn from a batch."""
        part = self.done["seconds"] / self.job["seconds"]
        rise = min(1.0, part / WARM_UP + 0.1)
        fall = LEAST_RATE + (1 - LEAST_RATE) * 0.5 * (1 + math.cos(math.pi * min(1.0, part)))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.job["learning_rate"] * rise * fall
            optimizer.zero_grad()
        loss, _ = self.forward(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        value = float(loss)
        self.loss = value if self.loss is None else 0.95 * self.loss + 0.05 * value
        self.done["step"] += 1

    @torch.no_grad()
    def try_held_out(self) -> None:
        """Compute what the held-out samples say of the head as it is, and keep it where it is the best so far."""
        self.model.eval()
        sums: dict[str, float] = {}
        tokens = 0
        with torch.random.fork_rng():
            torch.manual_seed(0)  # which anchors of blocks are tried
            for batch in batches(self.held_out, self.job, None):
                _, counts = self.forward(batch)
                for name, value in counts.items():
                    sums[name] = sums.get(name, 0.0) + float(value)
                tokens += batch["input_ids"].shape[1]
                if tokens >= HELD_OUT_TOKENS:
                    break
        self.model.train()
        rates = normalize_counted_metrics(sums)
        if self.job["kind"] != "dflash":
            by_position = [rates[f"full_acc_{i}"] for i in range(self.job["draft_tokens"])]
            length = sum(by_position)
        else:
            by_position = [rates[f"position_{i}_acc"] for i in range(1, self.job["block_size"])]
            length = rates["eal"] - 1
        self.done["tried"] += 1
        self.tried_step = self.done["step"]
        if self.done["best"] is None or length > self.done["best"]["length"]:
            self.done["best"] = {"length": length, "by_position": by_position, "step": self.done["step"]}
            replace(self._best, self.weights())
        self.curve.append({
            "loss": rates["loss"], "length": length, "by_position": by_position,
            "step": self.done["step"], "seconds": self.done["seconds"],
        })  # fmt: skip
        self._curve.write_text(json.dumps(self.curve))
        say("held_out", **self.curve[-1])

    def run(self) -> None:
        """Train until the time is over, or a signal came."""
        self.model.train()
        total = self.job["seconds"]
        clock = time.monotonic()
        said = stored = clock
        if not self.done["tried"]:
            self.try_held_out()
        while not self.stop and self.done["seconds"] < total:
            skip = self.done["batch"]
            for number, batch in enumerate(batches(self.train_set, self.job, self.job["seed"] + self.done["epoch"])):
                if number < skip:
                    continue
                self.step(batch)
                self.done["batch"] = number + 1
                now = time.monotonic()
                self.done["seconds"] += now - clock
                clock = now
                if now - said >= SAID_SECONDS:
                    said = now
                    left = max(0.0, total - self.done["seconds"])
                    say("step", step=self.done["step"], epoch=self.done["epoch"], loss=self.loss, left=left)
                if self.done["seconds"] >= total * self.done["tried"] / HELD_OUT_TIMES:
                    self.try_held_out()
                if now - stored >= SAVE_SECONDS:
                    self.store()
                    stored = now
                if self.stop or self.done["seconds"] >= total:
                    break
            else:
                self.done["epoch"], self.done["batch"] = self.done["epoch"] + 1, 0
        if not self.stop and self.tried_step != self.done["step"]:
            self.try_held_out()
        self.store()

    def save_head(self) -> None:
        """Write the best head of all tries as a checkpoint of `speculators`, which appears when it is complete."""
        self.model.load_state_dict(torch.load(self._best, weights_only=True), strict=False)
        self.model.config.speculators_config.verifier.name_or_path = self.job["target"]
        tensors = {
            name: each.to(torch.bfloat16) if each.is_floating_point() else each
            for name, each in self.model.state_dict().items()
        }
        output = Path(self.job["output"])
        work = output.with_name(f".{output.name}.{os.getpid()}")
        shutil.rmtree(work, ignore_errors=True)
        self.model.save_pretrained(work, state_dict=tensors)
        patch_config_dtype(work / "config.json", torch.bfloat16)
        if output.exists():  # an empty folder, or an earlier result of this job
            shutil.rmtree(output)
        os.replace(work, output)


def beside(name: str) -> Any:
    """A module in this script's folder, which -I keeps from being imported."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def replace(path: Path, content: Any) -> None:
    """Store a file, which is never seen half written."""
    part = path.with_suffix(".part")
    torch.save(content, part)
    os.replace(part, path)


def main(path: str) -> int:
    """Do a job; returns the exit code."""
    job: Job = json.loads(Path(path).read_text(encoding="utf-8"))
    warnings.filterwarnings("ignore")
    torch.set_num_threads(job["threads"])
    training = Training(job, write_dataset(job))

    def on_signal(*_: object) -> None:
        training.stop = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    parameters = sum(each.numel() for each in training.model.parameters() if each.requires_grad)
    say("begin", parameters=parameters, samples=len(training.train_set), held_out=len(training.held_out))
    training.run()
    if training.stop and training.done["seconds"] < job["seconds"]:
        say("stopped", **training.done)
        return 0
    training.save_head()
    say("done", **training.done)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
