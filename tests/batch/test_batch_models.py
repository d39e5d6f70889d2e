"""Batches with real models: the same texts as one by one, and a thousand prompts through random kills."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import adapter_files
import checkpoint_files
import pytest
from batch_runs import REAL, answer, by_id, children, lines_in, records, run, start, wait_for, write_prompts
from transformers import AutoTokenizer

import ipex_assist
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.tokenization.tokenizer import encode_messages
from ipex_assist.workers.wire import TextRequest

MODEL = ["--executor", "torch", "--precision", "fp32", "--offline"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Llama with a chat template."""
    return str(checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path_factory.mktemp("batch") / "tiny"))


def request(**fields: Any) -> TextRequest:
    return TextRequest(1, options=GenerationOptions(max_new_tokens=8), **fields)


def test_answers_are_those_of_the_api(tiny: str) -> None:
    """Text, chat and conversation; a one-turn conversation is what --chat makes of the prompt."""
    model = ipex_assist.load(tiny, None, precision="fp32", executor="torch")
    plain = answer(model, request(prompt="the fox")).result
    assert plain["tokens"] == model.generate("the fox", max_new_tokens=8).tokens
    chat = answer(model, request(prompt="the fox", chat=True)).result
    turn = answer(model, request(messages=[{"role": "user", "content": "the fox"}])).result
    assert chat["tokens"] == turn["tokens"]
    assert chat["prompt_tokens"] == turn["prompt_tokens"] > plain["prompt_tokens"]
    longer = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]
    text = model.tokenizer.decode(encode_messages(model.tokenizer, longer))
    assert text.count("<|im_start|>") == 4  # the three, and the answer that is open
    json.dumps([plain, chat, turn])


def test_thoughts_are_apart_from_answers(tiny: str, tmp_path: Path) -> None:
    """In each record of a conversation, beside the whole text; a bare prompt has none."""
    folder = shutil.copytree(tiny, tmp_path / "thinks")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = f"{tokenizer.chat_template}<think>\n"
    tokenizer.save_pretrained(folder)
    lines = [{"prompt": "the fox", "chat": True}, {"messages": [{"role": "user", "content": "the fox"}]}]
    prompts = write_prompts(tmp_path / "p.jsonl", [*lines, {"prompt": "the fox", "chat": False}])
    code, err = run(REAL, prompts, "-o", tmp_path / "o", "-m", folder, *MODEL, "--max-new-tokens", 12)
    assert code == 0, err
    chat, turn, bare = (by_id(tmp_path / "o")[number] for number in (1, 2, 3))
    assert chat["text"] == turn["text"] != bare["text"]
    assert chat["reasoning"] == turn["reasoning"] == chat["text"].strip() != ""
    assert chat["answer"] == turn["answer"] == ""
    assert (bare["reasoning"], bare["answer"]) == (None, None)


def test_errors_of_a_prompt_stay_its_own(tiny: str) -> None:
    """Too long a prompt fails for good; a broken model may be another's luck; the next prompt runs."""
    model = ipex_assist.load(tiny, None, precision="fp32", executor="torch")
    long = answer(model, request(prompt="fox " * 500))
    assert (long.result, long.again) == (None, False)
    assert "shorten the prompt" in long.error
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "_rounds", lambda *_: 1 / 0)
        assert answer(model, request(prompt="fox")).again
    for template, message in ((None, "no chat template"), ("{{ raise_exception('odd roles') }}", "odd roles")):
        model.tokenizer.chat_template = template
        refused = answer(model, request(messages=[{"role": "user", "content": "a"}]))
        assert message in refused.error
        assert not refused.again
        # What a chat prompt of one turn is told, a conversation is told, too.
        assert answer(model, request(prompt="a", chat=True)) == refused
    assert answer(model, request(prompt="fox")).result["new_tokens"] == 8


def test_hostile_messages_cost_one_prompt(tiny: str) -> None:
    """Half a character, as JSON can say it, was tried again by another instance; a template without an end hung."""
    model = ipex_assist.load(tiny, None, precision="fp32", executor="torch")
    refused = answer(model, request(messages=[{"role": "user", "content": "a\ud83d"}]))
    assert "not UTF-8 text" in refused.error
    assert not refused.again
    model.tokenizer.chat_template = "{% for i in range(99999) %}" * 9 + "{% endfor %}" * 9
    refused = answer(model, request(messages=[{"role": "user", "content": "a"}]))
    assert "refuses this prompt: it takes longer than 1 s" in refused.error


def test_a_batch_gives_what_single_runs_give(tiny: str, tmp_path: Path) -> None:
    """Through files, placement and pipes, with an assistant and without: greedy texts are equal to the API's."""
    model = ipex_assist.load(tiny, None, precision="fp32", executor="torch")
    texts = [f"the quick brown fox number {i}" for i in range(6)]
    prompts = write_prompts(
        tmp_path / "p.jsonl", [{"prompt": text, "assisted": i % 2 == 0} for i, text in enumerate(texts)]
    )
    # A fixed number, because with an assistant of the target's size the adaptive one is, rightly, none.
    drafting = ["--assistant-model", tiny, "--num-assistant-tokens", 3]
    code, err = run(REAL, prompts, "-o", tmp_path / "o", "-m", tiny, *drafting, *MODEL, "--max-new-tokens", 12)
    assert code == 0, err
    found = by_id(tmp_path / "o")
    for number, text in enumerate(texts, start=1):
        record = found[number]
        assert record["tokens"] == model.generate(text, max_new_tokens=12).tokens
        assert record["assisted"] == (number % 2 == 1)
        assert record["target"] == tiny
    assert found[1]["draft"]["accepted"] > 0


def test_lines_name_adapters_as_their_model(tiny: str, tmp_path: Path) -> None:
    """Through files, pipes and passes that all share: an adapter for the wrong line, and a wrong name that costs the
    run or is answered by the base.
    """
    reference = checkpoint_files.tiny_model("llama")
    folders = {name: adapter_files.save_adapter(tmp_path / name, reference, seed=i) for i, name in enumerate("ab", 1)}
    names = ("a", "b", Path(tiny).name, None, "c")
    lines = [{"prompt": f"the fox {i}", "model": names[i % 5]} for i in range(10)]
    prompts = write_prompts(tmp_path / "p.jsonl", lines)
    loras = [word for name, folder in folders.items() for word in ("--lora", f"{name}={folder}")]
    options = [*MODEL, "-m", tiny, "--assistant-model", "none", "--max-new-tokens", 8, "--instances", 1, *loras]
    code, err = run(REAL, prompts, "-o", tmp_path / "o", *options)
    assert code == 1, err
    found = by_id(tmp_path / "o")
    model = ipex_assist.load(tiny, None, precision="fp32", executor="torch", lora=folders)
    for number, line in enumerate(lines, start=1):
        name = line["model"]
        if name == "c":
            assert found[number]["error"] == f"there is no model 'c' here; there is {Path(tiny).name}, a, b"
            assert "text" not in found[number]
            continue
        lora = {"a": "a", "b": "b", None: "b"}.get(name, "none")  # a line without a model has the last of --lora
        assert found[number]["tokens"] == model.generate(line["prompt"], max_new_tokens=8, lora=lora).tokens
    texts = [model.generate("the fox 0", max_new_tokens=8, lora=lora).tokens for lora in ("a", "b", "none")]
    assert len(set(map(tuple, texts))) == 3, "else the texts above say nothing"


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    """One message, once, exit code 1, and no file of results that would have to be removed."""
    prompts = write_prompts(tmp_path / "p.jsonl", ["a", "b"])
    code, err = run(REAL, prompts, "-o", tmp_path / "o", "-m", "nobody/no-such-model", *MODEL, "--instances", 1)
    assert code == 1
    assert "error: " in err
    assert "nobody/no-such-model" in err
    assert not (tmp_path / "o").exists() or not records(tmp_path / "o")


def test_dry_run(tiny: str, tmp_path: Path) -> None:
    """Instances, places and variables; no file of results, no torch."""
    prompts = write_prompts(tmp_path / "p.jsonl", ["a", "b"])
    done = subprocess.run(
        [*REAL, str(prompts), "-o", str(tmp_path / "o"), "-m", tiny, "--dry-run", "--instances", "1"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# 2 prompts")
    assert "OMP_NUM_THREADS" in done.stdout
    assert not (tmp_path / "o").exists()


def test_help_is_quick_and_without_torch() -> None:
    """The subcommand's own help; `ipex-assist --help` names it."""
    code = "import sys, ipex_assist.cli as c; c.main(sys.argv[1:]); print('torch' in sys.modules)"
    for arguments, word in ((["batch", "--help"], "--retry-failed"), (["--help"], "ipex-assist batch")):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
        assert word in done.stdout
        assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.one_stack  # what it kills is ours; that texts are the API's is asked of both stacks above
@pytest.mark.parametrize(
    ("concurrency", "prompts", "kills"),
    [(16, 400, 3), *(pytest.param(*each, marks=pytest.mark.full) for each in ((1, 400, 3), (16, 1000, 6)))],
)
def test_prompts_through_random_kills(concurrency: int, prompts: int, kills: int, tiny: str, tmp_path: Path) -> None:
    """kill -9 of real instances at random moments, while they generate and while they load: all results, each once,
    and each the text that an undisturbed run gives."""
    seed = int.from_bytes(os.urandom(4), "big")
    print("seed", seed)  # shown by pytest if it fails
    dice = random.Random(seed)
    out = tmp_path / "o"
    texts = [f"the fox {i}" for i in range(prompts)]
    options = [*MODEL, "-m", tiny, "--assistant-model", "none", "--max-new-tokens", 8, "--instances", 2]
    options += ["--concurrency", concurrency]
    process = start(REAL, write_prompts(tmp_path / "p.jsonl", texts), "-o", out, *options)
    # Some prompts apart, so that none is killed twice, which it would not survive, and the last well before the end.
    for kill_at in (50 + 90 * number + dice.randrange(60) for number in range(kills)):
        wait_for(lambda at=kill_at: lines_in(out) >= at or process.poll() is not None, 300)
        pids = instances(process.pid)
        # Mostly the one that wrote last, which is generating; now and then any, which may be loading.
        busy = last_record(out)["instance"]
        chosen = busy if dice.random() < 0.7 and busy in pids else dice.choice(list(pids))
        os.kill(pids[chosen], signal.SIGKILL)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    found = by_id(out)
    assert len(found) == prompts
    assert err.count("was killed by SIGKILL") == kills
    retried = [number for number in range(prompts) if found[f"p{number}"]["tries"] > 1]
    assert kills * concurrency >= len(retried) > (0 if concurrency == 1 else kills)
    model = ipex_assist.load(tiny, None, precision="fp32", executor="torch")
    for number in (*retried[:40], *dice.sample(range(prompts), 40)):
        assert found[f"p{number}"]["tokens"] == model.generate(texts[number], max_new_tokens=8).tokens


def instances(coordinator: int) -> dict[int, int]:
    """The running processes by the number of their instance."""
    found = {}
    for pid in children(coordinator):
        with suppress(OSError):
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            found.update({int(entry[14:]): pid for entry in environ if entry.startswith(b"IPEX_INSTANCE=")})
    return found


def last_record(path: Path) -> dict[str, Any]:
    """The last whole line, while somebody writes."""
    return json.loads(path.read_bytes().rpartition(b"\n")[0].splitlines()[-1])
