"""What the flags of `ipex-assist bench` mean, and what is refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipex_assist.bench import arguments
from ipex_assist.bench.arguments import parse
from ipex_assist.env.errors import UsageError

pytestmark = pytest.mark.one_stack

RANDOM = ["--pair", "opt-6.7b", "--random-weights"]


def test_defaults_of_each_task() -> None:
    """The published tables' lengths; what is measured is what people use, adaptive and greedy."""
    table = parse(["--pair", "opt-6.7b"])
    assert (table.model, table.assistant_model) == ("facebook/opt-6.7b", "facebook/opt-125m")
    assert (table.prompt_tokens, table.max_new_tokens) == ([256, 512], [64, 128, 256, 512, 1024])
    assert (table.num_assistant_tokens, table.repeats, table.precision) == (["adaptive"], 3, [None])
    decode = parse(["--task", "decode", "-m", "x"])
    assert (decode.max_new_tokens, decode.num_assistant_tokens, decode.do_sample) == ([30], ["adaptive"], None)
    dataset = parse(["--task", "dataset", "prompts", "-m", "x"])
    assert (dataset.samples, dataset.repeats, dataset.max_new_tokens) == (50, 1, [128])


def test_without_a_model_it_is_the_embedded_one() -> None:
    """A first look, which lasts no longer than a user waits; the other tasks are as long as with any model."""
    args = parse([])
    assert (args.model, args.prompt_tokens, args.max_new_tokens) == (None, [256], [128])
    assert arguments.pair_options(args).load.target is None
    assert parse(["--task", "decode"]).max_new_tokens == [30]
    assert parse(["--max-new-tokens", "8"]).max_new_tokens == [8]


def test_flags_of_drawing_without_drawing() -> None:
    """--temperature alone changes nothing, and whoever gives it is told so."""
    assert arguments.idle_flags(parse(["--temperature", "0.1", "--top-p", "0.9"])) == ["--temperature", "--top-p"]
    assert arguments.idle_flags(parse(["--temperature", "0.1", "--do-sample"])) == []


def test_defaults_of_throughput() -> None:
    """The set may be named by a flag as well, since --task dataset is not what is asked for."""
    load = parse(["--task", "throughput", "-m", "x", "--dataset", "prompts"])
    assert (load.concurrency, load.max_new_tokens, load.repeats) == ([1, 2, 4, 8, 16, 32], [128], 3)
    assert (load.requests, load.dataset, load.prompt_tokens) == (None, "prompts", [])
    asked = arguments.task_options(
        parse(["--task", "throughput", "-m", "x", "--concurrency", "8,1", "--requests", "20"])
    )
    assert (asked.concurrency, asked.requests) == ((8, 1), 20)


def test_lists() -> None:
    """Values keep the order given, each once; one value is a list of one."""
    args = parse(
        [
            *RANDOM,
            *("--acceptance", "0.8,0.5,0.8", "--precision", "int4,bf16", "--assistant-precision", "int8"),
            *("--num-assistant-tokens", "1, 4,adaptive,heuristic", "--prompt-tokens", "32", "--max-new-tokens", "8,16"),
        ]
    )
    assert args.acceptance == [0.8, 0.5]
    assert (args.precision, args.assistant_precision) == (["int4", "bf16"], ["int8"])
    assert args.num_assistant_tokens == [1, 4, "adaptive", "heuristic"]
    assert (args.prompt_tokens, args.max_new_tokens) == ([32], [8, 16])


def test_a_pair_may_have_another_assistant() -> None:
    """The tables of OPT show three."""
    args = parse(["--pair", "opt-13b", "--assistant-model", "facebook/opt-350m"])
    assert (args.model, args.assistant_model) == ("facebook/opt-13b", "facebook/opt-350m")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--random-weights"], r"of which shapes\? Give -m ID, or --pair with one of opt-6\.7b"),
        (["--pair", "opt-7b"], r"--pair opt-7b: there is no such pair; known: opt-6\.7b"),
        (["--pair", "opt-13b", "-m", "x"], "--pair and -m are both given"),
        ([*RANDOM, "--acceptance", "1.5"], r"--acceptance 1\.5: must be a probability, between 0 and 1"),
        ([*RANDOM, "--acceptance", "-0.1"], r"must be a probability"),
        ([*RANDOM, "--acceptance", "nan"], r"must be a probability"),
        ([*RANDOM, "--acceptance", "0.5,"], r"--acceptance : must be"),
        (["--pair", "opt-6.7b", "--layers", "2"], r"--layers cuts a model of random weights: add --random-weights"),
        ([*RANDOM, "--layers", "33", "--acceptance", "1"], r"--layers 33: the model has 32 layers; must be between 1"),
        (RANDOM, r"--random-weights: a draft of random weights guesses nothing\. Add --acceptance 0\.8"),
        (["-m", "gpt2", "--random-weights", "--no-assisted"], "shapes of gpt2 are not known"),
        (
            [*RANDOM, "--assistant-model", "facebook/opt-2.7b", "--acceptance", "1"],
            r"shapes of facebook/opt-2\.7b are not known",
        ),
        (["-m", "facebook/opt-13b", "--random-weights", "--acceptance", "1"], "needs a draft"),
        ([*RANDOM, "--acceptance", "1", "--lora", "a=b"], "--lora goes with a model's own weights"),
        (["-m", "x", "--acceptance", "0.5", "--no-assisted"], "leave out --no-assisted"),
        (["-m", "x", "--acceptance", "0.5", "--do-sample"], "leave out --do-sample"),
        (["-m", "x", "--precision", "int3"], r"--precision int3: there is no such precision; known: bf16"),
        (["-m", "x", "--num-assistant-tokens", "0"], r"--num-assistant-tokens 0: .* 1 and 64, or adaptive"),
        (["-m", "x", "--num-assistant-tokens", "fast"], "adaptive or heuristic"),
        (["-m", "x", "--max-new-tokens", "1"], r"--max-new-tokens 1: must be a whole number between 2"),
        (["-m", "x", "--prompt-tokens", "0"], r"--prompt-tokens 0"),
        (["-m", "x", "--repeats", "0"], r"--repeats 0: must be between 1"),
        (["-m", "x", "--temperature", "nan"], r"--temperature nan"),
        (["-m", "x", "prompts"], "'prompts' is of --task dataset and throughput, and this is --task benchmark"),
        (
            ["-m", "x", "--task", "decode", "--prompt-tokens", "8"],
            "--prompt-tokens is of --task benchmark and throughput",
        ),
        (["-m", "x", "--samples", "8"], "--samples is of --task dataset"),
        (["-m", "x", "--concurrency", "8"], "--concurrency is of --task throughput, and this is --task benchmark"),
        (
            ["-m", "x", "--task", "throughput", "--concurrency", "0"],
            "--concurrency 0: must be a whole number between 1",
        ),
        (["-m", "x", "--task", "throughput", "--requests", "0"], "--requests 0: must be between 1"),
        (["-m", "x", "--task", "throughput", "--samples", "8"], "--samples is of --task dataset"),
        (["-m", "x", "--task", "throughput", "--dataset", "/nowhere/s.json"], "/nowhere/s.json: there is no such file"),
        (["-m", "x", "--task", "throughput", "prompts", "--dataset", "a"], "are both given"),
        (["-m", "x", "--task", "throughput", "--acceptance", "0.5"], "--acceptance simulates the draft of one text"),
        ([*RANDOM, "--task", "throughput"], "guesses nothing. Add --no-assisted"),
        (["-m", "x", "--task", "dataset"], "which\\? Give a file, or prompts"),
        (["-m", "x", "--task", "dataset", "prompts", "--resume"], "--resume goes with -o FILE"),
        (["-m", "x", "--text", "/nowhere/t.txt"], "--text /nowhere/t.txt cannot be read as UTF-8 text: .*No such file"),
        (["-m", "x", "--task", "dataset", "/nowhere/set.json"], "/nowhere/set.json: there is no such file"),
        (["-m", "x", "--task", "dataset", "prompts:poems"], "there is no such kind; known: "),
        (["-m", "x", "--task", "dataset", "prompts", "--max-new-tokens", "8,16"], "--task dataset takes one length"),
        (["-m", "x", "--plot", "curve.txt"], r"must end in \.png, \.svg or \.pdf"),
        (["-m", "x", "--plot", "/nowhere/c.png"], "there is no such folder"),
        (["-m", "x", "-p", "Hello"], "-p: prompts come with the task"),
        (["-m", "x", "--show-accepted"], "--show-accepted: no text is printed"),
    ],
)
def test_refusals(argv: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors name the flag, the value and what would be right; none of them comes after an hour of loading."""
    monkeypatch.setattr(arguments.importlib.util, "find_spec", lambda name: object())
    with pytest.raises(UsageError, match=message):
        parse(argv)


def test_a_plot_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known before the run, not after it."""
    monkeypatch.setattr(arguments.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install '.*\[plot\]'"):
        parse(["-m", "x", "--plot", str(tmp_path / "c.png")])


def test_an_adapter_is_that_of_all_measured_texts() -> None:
    """Else its cost would not be measured."""
    load = arguments.pair_options(arguments.parse(["-m", "facebook/opt-13b", "--lora", "sql=adapters/sql"])).load
    assert (load.adapters, load.lora_by_default) == ({"sql": "adapters/sql"}, True)
