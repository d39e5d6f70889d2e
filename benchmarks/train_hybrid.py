"""Trains a small hybrid on this repository's texts for minutes, and measures it: texts and acceptance not of noise.

    python benchmarks/train_hybrid.py train --folder FOLDER [--seconds 400] [--threads 2]
    ipex-launch -- python benchmarks/train_hybrid.py measure --folder FOLDER

`train` makes a tokenizer (byte-level, on the spot), a target of Qwen3.5's layers (Gated DeltaNet in three of four,
gated attention in the fourth) and a smaller sibling of the same kind, with transformers and torch, and saves all as
checkpoint folders. The texts are those of the package, its documents and its sources; evaluation.txt, which
`ipex-assist eval` scores, is held out. `measure` loads them: held-out perplexity by transformers, and by the native
core in each precision; greedy texts beside transformers' (fp32); and the acceptance of `lookup`, of the target's own
int4 copy and of the sibling. Weights are not kept: this is a recipe.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import numpy as np

from ipex_assist.commands import perplexity
from ipex_assist.env.errors import UsageError

ROOT = Path(__file__).resolve().parents[1]
HELD_OUT = ROOT / "ipex_assist" / "data" / "evaluation.txt"
VOCABULARY = 2048
CONTEXT, BATCH = 64, 32  # a chunk of transformers' scan, whose loops take as long for fewer rows
SHARES = {"target": 0.75, "sibling": 0.25}  # of the seconds
PRECISIONS = ("fp32", "bf16", "int8", "int4")
WINDOW, STRIDE = 256, 128  # of perplexity
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 8, 48, 64
END = "<|endoftext|>"


@dataclass(frozen=True)
class Trainee:
    """A module that is trained: the loss of rows (batch, CONTEXT + 1) of tokens, and what is saved at the end.

    A head that predicts further tokens is another one: its loss may run the target without gradients.
    """

    name: str
    module: Any
    loss: Callable[[Any], Any]
    save: Callable[[Path], None]


def texts() -> list[Path]:
    """The repository's texts and sources, but for the one that is held out."""
    found = [path for kind in ("data/*.txt", "data/*.jsonl", "**/*.py") for path in (ROOT / "ipex_assist").glob(kind)]
    found += [path for kind in ("docs/*.md", "*.md") for path in ROOT.glob(kind)]
    return sorted(path for path in found if path != HELD_OUT)


def make_tokenizer(folder: Path, files: list[Path]) -> Any:
    """A byte-level one of these texts, saved as transformers reads it."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    trained = ByteLevelBPETokenizer()
    trained.train([str(file) for file in files], vocab_size=VOCABULARY, special_tokens=[END], show_progress=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, eos_token=END)
    tokenizer.save_pretrained(folder)
    return tokenizer


def model_of(hidden: int, layers: int) -> Any:
    """Qwen3.5's text model of this size, with random weights."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=hidden * 5 // 2,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 128),
        head_dim=64,
        linear_num_key_heads=hidden // 64,
        linear_num_value_heads=hidden // 32,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    return Qwen3_5ForCausalLM(config)


def language_model(name: str, hidden: int, layers: int) -> Trainee:
    """A model that is trained on the next token."""
    model = model_of(hidden, layers)

    def loss(rows: Any) -> Any:
        return model(input_ids=rows[:, :-1], labels=rows[:, :-1], use_cache=False).loss

    return Trainee(name, model, loss, lambda folder: model.save_pretrained(folder / name))


def batches(text: np.ndarray[Any, Any], seed: int) -> Iterator[Any]:
    """Rows (BATCH, CONTEXT + 1) from anywhere in the text, for ever."""
    import torch

    chance = np.random.default_rng(seed)
    while True:
        places = chance.integers(0, len(text) - CONTEXT - 1, BATCH)
        yield torch.from_numpy(np.stack([text[place : place + CONTEXT + 1] for place in places]))


def fit(trainee: Trainee, rows: Iterator[Any], seconds: float, steps: int | None, rate: float = 3e-3) -> list[float]:
    """Train for this long, or these steps; returns the losses. The rate rises in 30 steps, and falls to a twentieth."""
    import torch

    optimizer = torch.optim.AdamW(trainee.module.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.05)
    losses: list[float] = []
    began, done = time.perf_counter(), 0.0
    trainee.module.train()
    while done < 1:
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (len(losses) + 1) / 30) * max(0.05, 1 - done)
        with torch.autocast("cpu", dtype=torch.bfloat16):  # twice as many steps
            loss = trainee.loss(next(rows))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainee.module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
        done = len(losses) / steps if steps else (time.perf_counter() - began) / seconds
    trainee.module.eval()
    return losses


def train(
    folder: Path, seconds: float, steps: int | None, seed: int, sizes: dict[str, tuple[int, int]]
) -> dict[str, Any]:
    """Tokenizer, target and sibling, the latter two for these seconds together, or so many steps each.

    sizes: width and layers of each.
    """
    import torch

    torch.manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    files = texts()
    tokenizer = make_tokenizer(folder, files)
    ids = [tokenizer(file.read_text(encoding="utf-8") + END)["input_ids"] for file in files]
    text = np.concatenate([np.array(each, dtype=np.int64) for each in ids])
    found: dict[str, Any] = {"tokens": len(text)}
    for name, share in SHARES.items():
        trainee = language_model(name, *sizes[name])
        losses = fit(trainee, batches(text, seed), share * seconds, steps)
        trainee.save(folder)
        tokenizer.save_pretrained(folder / name)
        found[name] = {
            "parameters": sum(each.numel() for each in trainee.module.parameters()),
            "steps": len(losses),
            "first_loss": round(statistics.mean(losses[:5]), 3),
            "last_loss": round(statistics.mean(losses[-20:]), 3),
        }
        print(f"{name}: {found[name]}", flush=True)
    return found


def held_out(folder: Path) -> list[int]:
    """The tokens of the text that no model was trained on."""
    from transformers import PreTrainedTokenizerFast

    return list(PreTrainedTokenizerFast.from_pretrained(folder)(HELD_OUT.read_text(encoding="utf-8"))["input_ids"])


def theirs(model: Any, tokens: list[int]) -> float:
    """Perplexity by transformers, over the windows that ours has."""
    import torch

    score = perplexity.Score()
    for window in perplexity.windows(len(tokens), WINDOW, STRIDE):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([tokens[window.start : window.end - 1]])).logits[0]
        rows = logits[window.scored - window.start - 1 :].float().log_softmax(-1)
        right = torch.tensor(tokens[window.scored : window.end])
        score.add(-rows.gather(1, right[:, None])[:, 0])
    return score.perplexity


def greedy(model: Any, prompt: list[int]) -> list[int]:
    """The text that transformers writes."""
    import torch

    with torch.no_grad():
        found = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
        )
    return [int(token) for token in found[0, len(prompt) :]]


def prompts(tokens: list[int]) -> list[list[int]]:
    """Beginnings from even places of the held-out text."""
    step = max(1, (len(tokens) - PROMPT_TOKENS) // PROMPTS)
    return [tokens[place : place + PROMPT_TOKENS] for place in range(0, step * PROMPTS, step)]


def ours(folder: Path, tokens: list[int], expected: list[list[int]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Perplexity in each precision; greedy texts beside `expected`, and with drafts beside those without."""
    import ipex_assist

    rows: list[dict[str, Any]] = []
    figures: dict[str, Any] = {"perplexity": {}, "acceptance": {}, "equal_plain": {}}
    for precision in PRECISIONS:
        with ipex_assist.load(folder / "target", None, precision=precision, calibrate=False) as model:
            score = perplexity.perplexity(model.target, tokens, WINDOW, STRIDE)  # type: ignore[attr-defined]
            figures["perplexity"][precision] = score.perplexity
            written = [model.generate(each, max_new_tokens=NEW_TOKENS, ignore_eos=True) for each in prompts(tokens)]
            same = sum(result.tokens == right for result, right in zip(written, expected, strict=True))
        if precision == "fp32":
            figures["greedy_equal"] = same
        rows.append(
            {
                "what": f"perplexity, {precision}",
                "figure": f"{score.perplexity:.3f}",
                "greedy texts equal to transformers' fp32": f"{same} of {len(expected)}",
            }
        )
        if precision not in ("fp32", "int8"):
            continue
        for draft in ("lookup", "self", str(folder / "sibling")):
            name = f"{precision}, {Path(draft).name}" + (" int4" if draft == "self" else "")
            figures["acceptance"][name], equal = accepted(folder, precision, draft, prompts(tokens), written)
            figures["equal_plain"][name] = equal
            shown = "–" if figures["acceptance"][name] is None else f"{figures['acceptance'][name]:.3f}"
            rows.append(
                {
                    "what": f"acceptance of {name}",
                    "figure": shown,
                    "greedy texts equal to transformers' fp32": f"{equal} of {len(expected)} equal to plain",
                }
            )
    return rows, figures


def accepted(
    folder: Path, precision: str, draft: str, asked: list[list[int]], plain: list[Any]
) -> tuple[float | None, int]:
    """The share of drafted tokens that are right, four a round, and how many texts are those without drafts."""
    import ipex_assist

    fixed = {"num_assistant_tokens": 4, "num_assistant_tokens_schedule": "constant"}
    with ipex_assist.load(folder / "target", draft, precision=precision, calibrate=False) as model:
        found = [model.generate(each, max_new_tokens=NEW_TOKENS, ignore_eos=True, **fixed) for each in asked]
    drafted = sum(result.draft.drafted or 0 for result in found)
    right = sum(result.draft.accepted or 0 for result in found)
    equal = sum(result.tokens == other.tokens for result, other in zip(found, plain, strict=True))
    return (right / drafted if drafted else None), equal


def measured(folder: Path) -> int:
    """Print a table and JSON; 1 where a text with drafts is not the one without."""
    from transformers import AutoModelForCausalLM

    if not (folder / "target" / "config.json").is_file():
        raise UsageError(f"--folder {folder}: there is no target; run `train --folder {folder}` first")
    tokens = held_out(folder)
    model = AutoModelForCausalLM.from_pretrained(folder / "target").eval()
    figures: dict[str, Any] = {"held_out_tokens": len(tokens), "transformers": theirs(model, tokens)}
    figures["uniform"] = float(VOCABULARY)
    expected = [greedy(model, each) for each in prompts(tokens)]
    rows, found = ours(folder, tokens, expected)
    first = {"what": "perplexity, transformers fp32", "figure": f"{figures['transformers']:.3f}"}
    rows = [{**first, "greedy texts equal to transformers' fp32": ""}, *rows]
    training = folder / "training.json"
    figures |= found | {"training": json.loads(training.read_text()) if training.is_file() else None}
    measure.report(rows, figures)
    return 0 if all(equal == len(expected) for equal in found["equal_plain"].values()) else 1


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "measure"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=400.0, help="of training (default: 400)")
    parser.add_argument("--steps", type=int, help="of each of the two, whatever they take")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--width", type=int, default=192, help="of the target, a multiple of 64 (default: 192)")
    parser.add_argument("--layers", type=int, default=8, help="of the target (default: 8); the sibling has half")
    args = parser.parse_args(argv)
    if not 0 < args.seconds < math.inf or args.threads < 1 or (args.steps or 1) < 1:
        parser.error("--seconds, --steps and --threads must be above 0")
    if args.width < 128 or args.width % 64 or args.layers < 4:
        parser.error(f"--width {args.width} --layers {args.layers}: a multiple of 64 from 128 on, and at least 4")
    return args


def run(args: argparse.Namespace) -> int:
    """Train, or measure."""
    import torch

    torch.set_num_threads(args.threads)
    if args.what == "measure":
        return measured(args.folder)
    sizes = {"target": (args.width, args.layers), "sibling": (128, max(4, args.layers // 2))}
    found = train(args.folder, args.seconds, args.steps, args.seed, sizes)
    (args.folder / "training.json").write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(measure.exit_code(lambda: run(parse()), print))
