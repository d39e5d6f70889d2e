"""Drafts priced by the experts they read, beside a price by rows and fixed lengths, on a trained router's choices.

    python benchmarks/router_trace.py train --folder FOLDER [--seconds 240]
    python benchmarks/router_trace.py record --folder FOLDER
    python benchmarks/router_trace.py replay --folder FOLDER

`train` makes a small mixture (Qwen3-MoE's shape: 32 experts, 4 of them a token) and a dense draft, both trained on the
sources of Python's standard library, so that their routers choose by what the text says. `record` writes, at each place
of texts they were not trained on, what the draft proposes, how much of it the mixture would have said, and how many
distinct experts a layer each number of rows reads. `replay` needs no clock: the seconds of a pass are a fixed part, and
a part for each distinct expert, in the proportion that Qwen3-30B-A3B's bytes have in int4; a draft step takes the share
that Qwen3-0.6B's bytes have, or less. All contenders see the same texts. Not a model of speed: of how schedules choose.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measure
import numpy as np

from ipex_assist.speculative.adaptive_schedule import AdaptiveSchedule
from ipex_assist.speculative.costs.acceptance import Acceptance
from ipex_assist.speculative.costs.expert_costs import ExpertCosts
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.schedule import LONGEST_DRAFT, ConstantSchedule, RoundResult, RoundState, Schedule

VOCABULARY, CONTEXT, BATCH = 2048, 96, 16
EXPERTS, PER_TOKEN, LAYERS = 32, 4, 4
TEXTS, TOKENS = 12, 160  # recorded
PLACES = 10_000  # numbers of a text's places, by which noise is drawn
TEMPERATURES = (0.2, 0.6)  # of texts in turn: the draft is right often, and seldom
# Of a plain pass of Qwen3-30B-A3B in int4, 1.7 GB: what its 8 experts a layer are; what a pass of Qwen3-0.6B reads, and
# two smaller drafts.
ORDERS = 20  # in which the texts come, for the contenders that learn from one text to the next
EXPERTS_SHARE, DRAFT_SHARES = 0.6, (0.2, 0.1, 0.03)


def sources(seed: int) -> list[Path]:
    """Return the standard library's files in a random order; the last tenth is not trained on."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    random.Random(seed).shuffle(files)
    return files


def encoded(tokenizer: Any, files: list[Path]) -> np.ndarray[Any, Any]:
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    return np.concatenate([np.array(each.ids, dtype=np.int64) for each in tokenizer.encode_batch(texts)])


def models() -> tuple[Any, Any]:
    """Return the mixture and the dense draft, with random weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    shared = {"vocab_size": VOCABULARY, "head_dim": 32, "max_position_embeddings": 256, "tie_word_embeddings": True}
    mixture = Qwen3MoeConfig(
        hidden_size=192,
        num_hidden_layers=LAYERS,
        num_attention_heads=6,
        num_key_value_heads=2,
        num_experts=EXPERTS,
        num_experts_per_tok=PER_TOKEN,
        moe_intermediate_size=96,
        norm_topk_prob=True,
        router_aux_loss_coef=0.01,
        **shared,
    )
    draft = Qwen3Config(
        hidden_size=128,
        num_hidden_layers=2,
        intermediate_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        **shared,
    )
    return Qwen3MoeForCausalLM(mixture), Qwen3ForCausalLM(draft)


def train(folder: Path, seconds: float, seed: int) -> None:
    """Train tokenizer, mixture and draft, the latter two for this many seconds together."""
    import torch
    from tokenizers import ByteLevelBPETokenizer

    torch.manual_seed(seed)
    files = sources(seed)
    files = files[: len(files) * 9 // 10]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train([str(file) for file in files], vocab_size=VOCABULARY)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    text = encoded(tokenizer, files)
    for name, model, share in zip(("mixture", "draft"), models(), (0.8, 0.2), strict=True):
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
        extra = {"output_router_logits": True} if name == "mixture" else {}
        generator, losses = np.random.default_rng(seed), []
        began, taken = time.perf_counter(), 0.0
        while taken < share * seconds:
            rate = min(1.0, (len(losses) + 1) / 50) * max(0.05, 1 - taken / (share * seconds))
            for group in optimizer.param_groups:
                group["lr"] = 2e-3 * rate
            places = generator.integers(0, len(text) - CONTEXT - 1, BATCH)
            rows = torch.from_numpy(np.stack([text[place : place + CONTEXT] for place in places]))
            loss = model(input_ids=rows, labels=rows, **extra).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
            taken = time.perf_counter() - began
        print(f"{name}: {len(losses)} steps, loss {statistics.mean(losses[-20:]):.2f}", flush=True)
        model.save_pretrained(folder / name)


class Chooser:
    """What a model says at places of texts, by the CONTEXT tokens before, with noise of the place (Gumbel)."""

    def __init__(self, model: Any, seed: int) -> None:
        self.model, self.seed = model.eval(), seed

    def noise(self, place: int) -> Any:
        import torch

        uniform = np.random.default_rng((self.seed, place)).random(VOCABULARY)
        return torch.from_numpy(-np.log(-np.log(np.clip(uniform, 1e-12, 1 - 1e-12)))).float()

    def next(self, windows: Any, places: list[int]) -> tuple[list[int], list[float]]:
        """Return the token after each window (places, CONTEXT), and its probability."""
        import torch

        with torch.no_grad():
            logits = torch.cat([self.model(input_ids=part).logits[:, -1] for part in windows.split(64)])
        scaled = logits / torch.tensor([[TEMPERATURES[place // PLACES % len(TEMPERATURES)]] for place in places])
        tokens = (scaled + torch.stack([self.noise(place) for place in places])).argmax(-1)
        chances = scaled.softmax(-1).gather(1, tokens[:, None])[:, 0]
        return tokens.tolist(), chances.tolist()


def distinct_experts(model: Any, windows: Any, rows: int) -> list[list[float]]:
    """Return for each window the distinct experts a layer of the first 1, 2, … of its last `rows` tokens."""
    import torch

    found = []
    for part in windows.split(64):
        with torch.no_grad():
            router = model(input_ids=part, output_router_logits=True).router_logits
        layers = [each.reshape(*part.shape, EXPERTS)[:, -rows:].topk(PER_TOKEN, -1).indices for each in router]
        one_hot = torch.stack([torch.zeros(*each.shape[:2], EXPERTS).scatter_(2, each, 1.0) for each in layers])
        found += (one_hot.cumsum(2) > 0).float().sum(-1).mean(0).tolist()
    return found


def record(folder: Path, seed: int) -> dict[str, Any]:
    """Return the texts as `replay` takes them, and the experts that calibration's own tokens read."""
    import torch
    from tokenizers import Tokenizer
    from transformers import Qwen3ForCausalLM, Qwen3MoeForCausalLM

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    mixture = Qwen3MoeForCausalLM.from_pretrained(folder / "mixture")
    target = Chooser(mixture, seed)
    draft = Chooser(Qwen3ForCausalLM.from_pretrained(folder / "draft"), seed)
    files = sources(seed)
    text = encoded(tokenizer, files[len(files) * 9 // 10 :])
    places = np.random.default_rng(seed).integers(0, len(text) - CONTEXT, TEXTS)
    rows = torch.from_numpy(np.stack([text[place : place + CONTEXT] for place in places]))
    for number in range(TOKENS + LONGEST_DRAFT):
        tokens, _ = target.next(rows[:, -CONTEXT:], [PLACES * text + number for text in range(TEXTS)])
        rows = torch.cat([rows, torch.tensor(tokens)[:, None]], 1)
    texts = [one_text(rows[number], number, mixture, draft) for number in range(TEXTS)]
    calibration = torch.tensor([[(7 * i + 3) % VOCABULARY for i in range(8 + 1 + LONGEST_DRAFT)]])
    return {"texts": texts, "calibration": distinct_experts(mixture, calibration, 1 + LONGEST_DRAFT)[0]}


def one_text(row: Any, text: int, mixture: Any, draft: Chooser) -> dict[str, Any]:
    """Return what the draft says at each place of a text, how much of it is right, and the experts of its rows."""
    import torch

    starts = range(1, TOKENS)
    windows = torch.stack([row[place : place + CONTEXT] for place in starts])
    drafted: list[list[int]] = []
    confidence: list[list[float]] = []
    for depth in range(LONGEST_DRAFT):
        tokens, chances = draft.next(windows[:, -CONTEXT:], [PLACES * text + place + depth for place in starts])
        drafted.append(tokens)
        confidence.append(chances)
        windows = torch.cat([windows, torch.tensor(tokens)[:, None]], 1)
    experts = distinct_experts(mixture, windows, 1 + LONGEST_DRAFT)
    right = []
    for number, place in enumerate(starts):
        true = row[place + CONTEXT : place + CONTEXT + LONGEST_DRAFT].tolist()
        said = [tokens[number] for tokens in drafted]
        right.append(next((i for i, (a, b) in enumerate(zip(said, true, strict=True)) if a != b), LONGEST_DRAFT))
    chances = [[round(values[number], 4) for values in confidence] for number in range(len(starts))]
    return {
        "right": right,
        "confidence": chances,
        "experts": [[round(value, 2) for value in each] for each in experts],
    }


def seconds_of(distinct: float) -> float:
    """Return the seconds of a pass that reads this many experts a layer; that of a plain one is 1."""
    return 1 - EXPERTS_SHARE + EXPERTS_SHARE * distinct / PER_TOKEN


def rounds(schedule: Schedule, text: dict[str, Any], share: float) -> Iterator[tuple[int, int, float]]:
    """Yield drafted and accepted tokens and seconds of each round of a text, whose prompt was read before."""
    new, read = 1, CONTEXT
    while new < TOKENS:
        remaining = TOKENS - new
        plan = schedule.plan(RoundState(CONTEXT + new, remaining, max(1, CONTEXT + new - read)))
        confidence = []
        for value in text["confidence"][new - 1][: max(0, min(plan.k, remaining - 1))]:
            confidence.append(value)
            if value < plan.min_confidence:
                break
        drafted = len(confidence)
        accepted = min(text["right"][new - 1], drafted)
        experts = text["experts"][new - 1][drafted]
        draft_s, target_s = drafted * share, seconds_of(experts)
        read = CONTEXT + new + min(accepted, drafted - 1) if drafted else read
        schedule.observe(RoundResult(drafted, accepted, confidence, draft_s, target_s, experts))
        yield drafted, accepted, draft_s + target_s
        new += accepted + 1


def contenders(recorded: dict[str, Any], share: float) -> dict[str, Any]:
    """Return what makes the schedule of a text by the contender's name, given acceptance so far."""
    read = recorded["calibration"]
    verify = tuple(np.maximum.accumulate([seconds_of(each) for each in read]).tolist())
    by_rows = Costs(verify, share, (share,) * 16, share / 10)
    mixture = ExpertCosts(EXPERTS, PER_TOKEN, tuple(read), EXPERTS_SHARE / PER_TOKEN)
    by_experts = Costs(verify, share, by_rows.rows, by_rows.read, mixture)
    return {
        **{f"k={k}": (lambda costs, known, k=k: ConstantSchedule(k), None) for k in range(9)},
        "by rows": (lambda costs, known: AdaptiveSchedule(costs, TOKENS, model_acceptance=known), by_rows),
        "by experts": (lambda costs, known: AdaptiveSchedule(costs, TOKENS, model_acceptance=known), by_experts),
    }


def replay(recorded: dict[str, Any], share: float) -> dict[str, Any]:
    """Return tokens per pass-second of each contender, and what it drafted, the mean of several orders of the texts."""
    found = {}
    for name, (make, costs) in contenders(recorded, share).items():
        orders = ORDERS if costs else 1  # fixed lengths learn nothing
        each = [one_order(make, costs, recorded["texts"], share, order) for order in range(orders)]
        seconds, drafted, accepted = (statistics.mean(values) for values in zip(*each, strict=True))
        tokens = len(recorded["texts"]) * (TOKENS - 1)
        speeds = [tokens / values[0] for values in each]
        found[name] = {"speed": tokens / seconds, "drafted": round(drafted), "accepted": round(accepted)}
        found[name] |= {"orders": measure.summary(speeds)}
    return found


def one_order(
    make: Any, costs: Costs | None, texts: list[dict[str, Any]], share: float, order: int
) -> tuple[float, int, int]:
    """Return seconds, drafted and accepted tokens of all texts in one order; what each taught is known to the next."""
    texts = random.Random(order).sample(texts, len(texts))
    known, taken, drafted, accepted = Acceptance(), 0.0, 0, 0
    for text in texts:
        known = known.for_next_text()
        schedule = make(costs, known)
        for one, right, seconds in rounds(schedule, text, share):
            taken, drafted, accepted = taken + seconds, drafted + one, accepted + right
        if isinstance(schedule, AdaptiveSchedule):
            costs = schedule.findings().costs
    return taken, drafted, accepted


def row(share: float, found: dict[str, Any]) -> dict[str, Any]:
    """Return one line of the table: speeds ÷ plain decoding's."""
    speeds = {name: each["speed"] / found["k=0"]["speed"] for name, each in found.items()}
    fixed = {name: speed for name, speed in speeds.items() if name.startswith("k=") and name != "k=0"}
    best = max(fixed, key=lambda name: fixed[name])
    return {
        "draft step ÷ plain pass": share,
        "best fixed length": f"{best}: {fixed[best]:.3f}",
        "k=3": f"{speeds['k=3']:.3f}",
        "adaptive by rows": f"{speeds['by rows']:.3f}",
        "adaptive by experts": f"{speeds['by experts']:.3f}",
        "drafted by rows": found["by rows"]["drafted"],
        "by experts": found["by experts"]["drafted"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("train", "record", "replay"))
    parser.add_argument("--folder", type=Path, required=True, help="of models and trace")
    parser.add_argument("--seconds", type=float, default=240.0, help="that training may take")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    trace = args.folder / "trace.json"
    if args.part == "train":
        train(args.folder, args.seconds, args.seed)
    elif args.part == "record":
        trace.write_text(json.dumps(record(args.folder, args.seed)))
    else:
        recorded = json.loads(trace.read_text())
        found = {share: replay(recorded, share) for share in DRAFT_SHARES}
        measure.report([row(share, each) for share, each in found.items()], {"contenders": found})


if __name__ == "__main__":
    main()
