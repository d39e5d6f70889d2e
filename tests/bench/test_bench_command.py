"""`ipex-assist bench` from its flags to its report, on tiny models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import checkpoint_files
import pytest
from conftest import HAS_NATIVE
from test_bench_random import TINY_LLAMA

from ipex_assist import cli
from ipex_assist.bench import command, loading, pairs
from ipex_assist.bench.arguments import pair_options, parse
from ipex_assist.bench.measure import Row
from ipex_assist.bench.options import PairOptions
from ipex_assist.checkpoints.open import OpenCheckpoints
from ipex_assist.commands.shared.memory_need import MemoryNeed
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.memory import MemoryInfo
from ipex_assist.generation.assisted_model import AssistedModel

HERE = ["--no-launch", "--executor", "torch", "--precision", "fp32"]
SHORT = ["--prompt-tokens", "8,12", "--max-new-tokens", "6", "--repeats", "2", "--num-assistant-tokens", "2,3"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Flags of a target and an assistant with a tokenizer."""
    folder = checkpoint_files.save_pair(tmp_path_factory.mktemp("bench"))
    return ["-m", str(folder / "target"), "--assistant-model", str(folder / "assistant")]


@pytest.fixture
def tiny_pair(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Flags of a pair of random weights small enough for tests."""
    monkeypatch.setitem(pairs.CONFIGS, "tiny/target", TINY_LLAMA)
    monkeypatch.setitem(pairs.CONFIGS, "tiny/assistant", TINY_LLAMA | {"num_hidden_layers": 1})
    monkeypatch.setitem(pairs.PAIRS, "tiny", pairs.PublishedPair("tiny/target", "tiny/assistant"))
    return ["--pair", "tiny", "--random-weights"]


def needed(asked: PairOptions, precision: str, draft: str | None = None) -> MemoryNeed:
    """The memory of one combination of precisions."""
    return loading._need(asked, replace(asked.load, precision=precision, assistant_precision=draft), OpenCheckpoints())


def bench(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    """Run the command, and return its report from JSON."""
    capsys.readouterr()
    assert command.main([*argv, "--json"]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


@pytest.mark.parametrize("name", ["qwen3.5-9b", "qwen3-next-80b-a3b", "deepseek-v2-lite", "glm-4.7-flash"])
def test_models_of_today_by_their_pairs(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Small forms of the published configs, cut to some layers: built, timed, and named as what they are."""
    source = pairs.find_pair(name).target
    known = pairs.published_config(source)
    small = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 512, "moe_intermediate_size": 32}
    small |= {"num_experts": 8, "n_routed_experts": 8, "shared_expert_intermediate_size": 32, "num_experts_per_tok": 2}
    small |= {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "q_lora_rank": None, "kv_lora_rank": 64}
    monkeypatch.setitem(pairs.CONFIGS, source, known | {key: small[key] for key in small.keys() & known.keys()})
    flags = ["--pair", name, "--random-weights", "--layers", "4", "--precision", "int4", "--no-assisted"]
    content = bench(capsys, *flags, *HERE, "--prompt-tokens", "8", "--max-new-tokens", "4", "--repeats", "1")
    assert content["target"] == f"{source} (random weights, the first 4 of {known['num_hidden_layers']} layers)"
    assert [row["label"] for row in content["rows"]] == ["plain"]


def test_a_table_of_a_real_pair(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Plain and two draft lengths on each case, equal texts, and lengths exactly as asked."""
    content = bench(capsys, *pair, *HERE, "--placed", *SHORT)
    found = [(row["label"], row["prompt_tokens"], len(row["samples"])) for row in content["rows"]]
    labels = ["plain", "assisted, k = 2", "assisted, k = 3"]
    assert found == [(label, prompt, 2) for prompt in (8, 12) for label in labels]
    assert all(sample["new_tokens"] == 6 for row in content["rows"] for sample in row["samples"])
    assert [row["equals_plain"] for row in content["rows"]] == [None, True, True] * 2
    assert [len(row["speedup"]) for row in content["rows"]] == [0, 2, 2] * 2
    assert (content["simulated"], content["random_weights"]) == (False, False)
    assert content["command"].startswith("ipex-assist bench -m")
    assert "--placed" not in content["command"]


@pytest.mark.one_stack
def test_lengths_beyond_the_context_are_left_out(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The context has 128 tokens: the report says so, and the other cases are not lost."""
    content = bench(
        capsys, *pair, *HERE, "--prompt-tokens", "8,100", "--max-new-tokens", "30", "--repeats", "1", "--no-assisted"
    )
    assert [row["prompt_tokens"] for row in content["rows"]] == [8]
    assert "100 + 30 tokens are left out: the context holds 128" in content["warnings"]


def test_no_length_within_the_context_is_an_error(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Empty tables with exit code 0 told a script that all was measured; the numbers say what would fit."""
    flags = ["--prompt-tokens", "200,100", "--max-new-tokens", "40,30", "--repeats", "1", "--no-assisted"]
    assert cli.main(["bench", *pair, *HERE, *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "the shortest case has 100 + 30 tokens, and the context of" in err
    assert "holds 128. Give less with --prompt-tokens or --max-new-tokens" in err


@pytest.mark.one_stack
def test_the_decode_task(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Ten short prompts, 30 new tokens, greedy, or drawn with six drafted tokens every round where flags say so."""
    content = bench(capsys, *pair, *HERE, "--task", "decode", "--repeats", "1")
    assert [row["label"] for row in content["rows"]] == ["plain", "assisted, adaptive k"] * 10
    assert [row["equals_plain"] for row in content["rows"]] == [None, True] * 10
    assert "as fast as plain, same tokens." in content["conclusion"]  # and perhaps that nothing was drafted
    drawn = ["--do-sample", "--temperature", "0.1", "--top-p", "0.95", "--num-assistant-tokens", "6"]
    content = bench(capsys, *pair, *HERE, "--task", "decode", "--repeats", "1", *drawn)
    assert [row["label"] for row in content["rows"]] == ["plain", "assisted, k = 6"] * 10
    assert {row["equals_plain"] for row in content["rows"]} == {None}
    assert content["conclusion"].endswith("as fast as plain, texts drawn.")
    assert {sample["new_tokens"] for row in content["rows"] for sample in row["samples"]} == {30}


@pytest.mark.one_stack
def test_random_weights_with_simulated_acceptance(tiny_pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Every acceptance with every precision of the draft; the extremes are exact, and the text is the plain one."""
    flags = ["--no-launch", "--executor", "torch", "--precision", "fp32", "--assistant-precision", "fp32,bf16"]
    sizes = ["--prompt-tokens", "8", "--max-new-tokens", "13", "--num-assistant-tokens", "3", "--repeats", "2"]
    content = bench(capsys, *tiny_pair, *flags, *sizes, "--acceptance", "0,1")
    labels = [(row["label"], row["assistant_precision"]) for row in content["rows"]]
    simulated = [f"assisted, k = 3, simulated acceptance {a}" for a in (0, 1)]
    assert labels == [(label, p) for p in ("fp32", "bf16") for label in ("plain", *simulated)]
    assert [row["acceptance_rate"] for row in content["rows"]] == [None, 0.0, 1.0] * 2
    assert [row["equals_plain"] for row in content["rows"]] == [None, True, True] * 2
    assert content["target"] == "tiny/target (random weights)"
    assert content["simulated"] is content["random_weights"] is True


TWO = ["--num-assistant-tokens", "2"]
MANY = ["--task", "throughput", "--prompt-tokens", "8,60", "--max-new-tokens", "6"]


@pytest.mark.one_stack
@pytest.mark.parametrize(
    "executor", [["torch", "fp32"], *([["native", "int8"]] if HAS_NATIVE else [])], ids=lambda each: each[0]
)
def test_throughput(pair: list[str], executor: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Plain and assisted at each concurrency: every text is the one that it has alone, and nothing is missing."""
    flags = ["--no-launch", "--executor", executor[0], "--precision", executor[1], "--repeats", "2"]
    content = bench(capsys, *pair, *flags, *MANY, "--concurrency", "1,3", "--requests", "5", *TWO)
    found = [(row["concurrency"], row["label"]) for row in content["rows"]]
    assert found == [(many, label) for many in (1, 3) for label in ("plain", "assisted, k = 2")]
    assert [row["equals_plain"] for row in content["rows"]] == [True] * 4
    for row in content["rows"]:
        assert len(row["samples"]) == 2
        for sample in row["samples"]:
            assert [each["new_tokens"] for each in sample["requests"]] == [6] * 5
            assert all(0 < each["first_s"] <= each["last_s"] <= sample["total_s"] for each in sample["requests"])
            assert 0 < sample["passes"] <= 30
    alone, company = content["rows"][0], content["rows"][2]
    assert alone["tokens_per_pass"] == 1.0
    assert company["tokens_per_pass"] > 1.5
    assert all(content["rows"][at]["acceptance_rate"] is not None for at in (1, 3))


@pytest.mark.one_stack
def test_throughput_of_random_weights(tiny_pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Without a tokenizer, prompts are random numbers of the lengths asked for."""
    content = bench(capsys, *tiny_pair, *HERE, *MANY, "--no-assisted", "--concurrency", "2", "--repeats", "1")
    (row,) = content["rows"]
    lengths = [each["prompt_tokens"] for each in row["samples"][0]["requests"]]
    assert (len(lengths), min(lengths)) == (16, 8)
    assert 50 < max(lengths) <= 60


@pytest.mark.one_stack
def test_self_as_the_draft_of_random_weights(tiny_pair: list[str]) -> None:
    """The target's own copy, in int4 unless another precision is asked for."""
    args = parse([*tiny_pair, "--assistant-model", "self", "--acceptance", "1", "--max-new-tokens", "4"])
    need = needed(pair_options(args), "bf16")
    assert need.assistant is not None
    assert need.target is not None
    assert 0.2 * need.target < need.assistant < 0.8 * need.target


def test_what_does_not_fit_is_refused_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is built: 13 billion weights of 2 bytes into 20 GiB."""
    monkeypatch.setattr("ipex_assist.commands.shared.memory_need.read_memory", lambda: MemoryInfo(24 << 30, 20 << 30))
    flags = ["--pair", "opt-13b", "--random-weights", "--acceptance", "0.8", "--executor", "torch"]
    with pytest.raises(IpexAssistError, match=r"2\d\.\d GiB are needed .* and 20\.0 GiB are available"):
        next(loading.models(pair_options(parse(flags))))
    needed = {
        precision: loading.needed_bytes(pair_options(parse([*flags, "--precision", precision])))
        for precision in ("int4", "bf16")
    }
    assert (needed["int4"] or 0) < 10 << 30
    assert (needed["bf16"] or 0) > 24 << 30
    assert loading.needed_bytes(pair_options(parse([*flags, "--precision", "int4,bf16"]))) == needed["bf16"]


@pytest.mark.one_stack
@pytest.mark.skipif(not HAS_NATIVE, reason="blocks are the native core's")
def test_a_pair_shares_kv_memory(tiny_pair: list[str], pair: list[str]) -> None:
    """Each of two models took all that was left, so that both together took twice that; --kv-memory had no effect."""
    where = ["--executor", "native", "--kv-memory", "8M", "--max-new-tokens", "4"]
    random = [*tiny_pair, "--acceptance", "1", *where]
    for flags in (random, [*pair, *where]):
        asked = pair_options(parse(flags))
        assert needed(asked, "bf16", "bf16").kv == 8 << 20
        model, _ = next(loading.models(asked))
        assert isinstance(model, AssistedModel)
        assert model.assistant is not None
        assert model.target.blocks is not None
        assert model.assistant.blocks is not None
        blocks = sum(each.block_bytes for each in (model.target, model.assistant))  # type: ignore[attr-defined]
        assert model.target.blocks.count == model.assistant.blocks.count == (8 << 20) // blocks


@pytest.mark.one_stack
def test_all_texts_of_a_concurrency_are_planned(tiny_pair: list[str]) -> None:
    """Of --task throughput, 32 of them took no more than one."""
    flags = [*tiny_pair, "--no-assisted", "--task", "throughput", "--max-new-tokens", "4", "--executor", "torch"]
    kv = [needed(pair_options(parse([*flags, "--concurrency", each])), "bf16").kv for each in ("1", "2,32")]
    assert kv[1] == 32 * kv[0] > 0


def dataset(folder: Path, count: int = 6) -> str:
    """A file of short instructions, with a line that is none."""
    lines = [json.dumps({"instruction": f"say the number {n}", "id": f"p{n}"}) for n in range(count)]
    path = folder / "set.jsonl"
    path.write_text("\n".join([*lines, "broken"]) + "\n")
    return str(path)


@pytest.mark.one_stack
def test_a_dataset_is_resumed(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted after two prompts, it goes on with the third; the summary is of all, nothing is measured twice."""
    records = str(tmp_path / "r.jsonl")
    flags = [*pair, *HERE, "--task", "dataset", dataset(tmp_path), "--samples", "4", "--max-new-tokens", "5"]
    flags += ["--num-assistant-tokens", "2", "-o", records]
    measure, asked = __import__("ipex_assist.bench.measure", fromlist=["measure"]).measure, []

    def interrupted(model: Any, case: Any, *rest: Any) -> list[Row]:
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(case.example)
        return list(measure(model, case, *rest))

    monkeypatch.setattr("ipex_assist.bench.measure.measure", interrupted)
    assert command.main([*flags, "--json"]) == 130
    partial = json.loads(capsys.readouterr().out)
    assert partial["summaries"][0]["prompts"] == 2
    assert any("interrupted" in warning for warning in partial["warnings"])
    before = Path(records).read_bytes()

    monkeypatch.setattr("ipex_assist.bench.measure.measure", measure)
    whole = bench(capsys, *flags, "--resume")
    assert Path(records).read_bytes().startswith(before)
    assert [row["example"] for row in whole["rows"]][::2][:2] == asked
    assert len({row["example"] for row in whole["rows"]}) == 4
    assert whole["summaries"][0]["prompts"] == 4
    assert len(Path(records).read_text().splitlines()) == 5
    assert any("1 entries are left out, the first: line 7: no JSON" in warning for warning in whole["warnings"])
    with pytest.raises(UsageError, match="other settings"):
        command.main([*flags[:-2], "-o", records, "--resume", "--seed", "1"])

    monkeypatch.setattr("ipex_assist.bench.measure.measure", lambda *rest: asked.append(rest[1]) or measure(*rest))
    asked.clear()
    more = bench(capsys, *flags, "--resume", "--samples", "6")
    assert len(asked) == 2  # the four there are were kept
    assert len({row["example"] for row in more["rows"]}) == 6
    assert {row["example"] for row in whole["rows"]} < {row["example"] for row in more["rows"]}


@pytest.mark.one_stack
def test_a_difference_fails_the_command(
    pair: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Assisted text that is not the plain one is a bug of ours: a script must notice."""

    def differing(*_: Any) -> list[Row]:
        rows = list(measure(*_))
        rows[-1].equals_plain = False
        return rows

    measure = __import__("ipex_assist.bench.measure", fromlist=["measure"]).measure
    monkeypatch.setattr("ipex_assist.bench.measure.measure", differing)
    sizes = ["--prompt-tokens", "8", "--max-new-tokens", "4", "--repeats", "1", "--num-assistant-tokens", "2"]
    assert command.main([*pair, *HERE, *sizes]) == 1
    assert "| NO " in capsys.readouterr().out


@pytest.mark.one_stack
def test_from_the_command_line(tiny_pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """`ipex-assist bench`: help, errors with exit code 2, and a table on standard output alone."""
    assert cli.main(["bench", "--help"]) == 0
    assert "--acceptance" in capsys.readouterr().out
    assert cli.main(["bench", "--pair", "opt-7b"]) == 2
    assert "known: opt-6.7b" in capsys.readouterr().err
    assert cli.main(["bench", "--precision"]) == 2
    capsys.readouterr()
    assert cli.main(["bench", *tiny_pair, "--acceptance", "1.5"]) == 2
    assert "--acceptance 1.5: must be a probability, between 0 and 1" in capsys.readouterr().err
    sizes = ["--prompt-tokens", "4", "--max-new-tokens", "4", "--repeats", "1", "--acceptance", "0.5"]
    assert cli.main(["bench", *tiny_pair, *HERE, *sizes, "--num-assistant-tokens", "2", "--format", "csv"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Example#,Prompt Length (tokens)")
    assert "simulated acceptance 0.5" in err


def test_a_dry_run_prints_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The command shows where it would run; nothing is loaded, not even for 33 billion weights."""
    flags = ["--pair", "guanaco-33b", "--random-weights", "--acceptance", "0.8", "--precision", "int4", "--dry-run"]
    assert command.main(flags) == 0
    assert "bench --placed --pair guanaco-33b" in capsys.readouterr().out


@pytest.mark.one_stack
def test_help_and_refusals_do_not_import_torch() -> None:
    """A wrong flag must not take seconds to be told."""
    code = (
        "import sys; from ipex_assist import cli; cli.main(['bench', '--help']); cli.main(['bench', '--pair', 'x']);"
        "print({'torch', 'transformers', 'numpy', 'matplotlib'} & set(sys.modules))"
    )
    assert checkpoint_files.run_python(code).strip().endswith("set()")


@pytest.mark.one_stack
@pytest.mark.parametrize(
    "flags",
    [
        ["--do-sample"],
        ["--min-p", "0.1"],
        ["--presence-penalty", "1"],
        ["--frequency-penalty", "1"],
        ["--logit-bias", '{"5": -100}'],
        ["--ignore-eos"],
        ["--max-new-tokens", "9"],
        ["--no-assisted"],
    ],
)
def test_records_of_other_sampling_are_not_mixed(tmp_path: Path, flags: list[str]) -> None:
    """Catches an option of the texts that --resume does not compare: half of the file would be drawn otherwise."""
    words = ["--task", "dataset", "prompts", "-m", "x", "-o", str(tmp_path / "records.jsonl"), "--resume"]
    for _ in range(2):
        records = command._records(parse(words))
        assert records is not None
        records.close()
    name = flags[0].removeprefix("--").removeprefix("no-").replace("-", "_")
    with pytest.raises(UsageError, match=rf"begun with other settings \({name};"):
        command._records(parse([*words, *flags]))
