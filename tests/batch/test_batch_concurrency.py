"""How many prompts an instance takes at a time, and how it serves them."""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import checkpoint_files
import pytest
from batch_runs import write_prompts
from conftest import HAS_NATIVE

import ipex_assist
from ipex_assist.batch import command, concurrency, local_instances, progress, worker
from ipex_assist.batch.concurrency import InstanceNeed, check_memory_of_all, concurrency_of, fitting, longest_texts
from ipex_assist.batch.prompts import Defaults, Entry, PromptFile
from ipex_assist.batch.worker import Desk, WorkerSettings
from ipex_assist.commands.load import memory_need
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.memory import MemoryInfo
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.generation.text_model import TextModel
from ipex_assist.speculative.round import Round

GIB = 1 << 30
needs_native = pytest.mark.skipif(not HAS_NATIVE, reason="blocks are the native core's")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("many") / "tiny"
    return str(checkpoint_files.save(checkpoint_files.tiny_model("llama", eos_token_id=None), folder))


@pytest.fixture
def model(tiny: str) -> TextModel:
    return ipex_assist.load(tiny, None, precision="fp32", executor="torch")


def request(number: int, **fields: object) -> dict[str, Any]:
    return {"id": number, "prompt": "the fox", "messages": None, "chat": False, "options": {}} | fields


def served(model: TextModel, *requests: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """What a desk replies to requests that came at once, in its order."""
    replies: list[dict[str, Any]] = []
    desk = Desk(model, replies.append)
    for each in (*requests, None):
        desk.inbox.put(each)
    worker = threading.Thread(target=desk.work, daemon=True)
    worker.start()
    worker.join(60)
    assert not worker.is_alive()
    return replies


def test_texts_are_those_that_each_has_alone(model: TextModel) -> None:
    """Sixteen under way at a time; the short ones are done before the long ones that came before them."""
    lengths = [3 + 9 * (number % 4 == 0) for number in range(16)]
    requests = [
        request(number, prompt=f"the fox number {number}", options={"max_new_tokens": length})
        for number, length in enumerate(lengths)
    ]
    replies = served(model, *requests)
    assert sorted(reply["id"] for reply in replies) == list(range(16))
    assert [reply["id"] % 4 == 0 for reply in replies] == [False] * 12 + [True] * 4
    for reply in replies:
        number = reply["id"]
        alone = model.generate(f"the fox number {number}", max_new_tokens=lengths[number])
        assert reply["result"]["tokens"] == alone.tokens


def test_a_stream_brings_the_text_piece_by_piece(model: TextModel) -> None:
    """A part for each pass, before the result; who asked for no stream gets the result alone."""
    options = {"max_new_tokens": 12, "logprobs": 2}
    replies = served(model, request(1, options=options, stream=True), request(2, options=options))
    chunks = [reply["chunk"] for reply in replies if "chunk" in reply]
    results = {reply["id"]: reply["result"] for reply in replies if "result" in reply}
    assert replies.index({"id": 1, "result": results[1]}) > replies.index({"id": 1, "chunk": chunks[-1]})
    assert {reply["id"] for reply in replies if "chunk" in reply} == {1}
    assert len(chunks) == 12
    pieces = [piece for chunk in chunks for piece in chunk["pieces"]]
    assert [token for _, token, _ in pieces] == results[1]["tokens"] == results[2]["tokens"]
    assert "".join(text for text, _, _ in pieces) == results[1]["text"]
    assert json.loads(json.dumps([each for chunk in chunks for each in chunk["logprobs"]])) == json.loads(
        json.dumps(results[1]["logprobs"])
    )


def test_an_outbox_says_what_was_done_before_the_last_answer_is_read(model: TextModel) -> None:
    """In one write, so that whoever has the answer finds it counted; and nothing where nothing has changed."""
    writes: list[list[dict[str, Any]]] = []
    outbox = worker.Outbox(model, lambda lines: writes.append([json.loads(line) for line in lines.splitlines()]))
    desk = Desk(model, outbox.put, outbox.empty)
    for each in (request(1, options={"max_new_tokens": 3}), None):
        desk.inbox.put(each)
    desk.work()
    last = {name: value for line in writes[-1] for name, value in line.items()}
    assert last["id"] == 1
    assert (last["stats"]["engine"]["new_tokens"], last["stats"]["engine"]["finished"]) == (3, 1)
    assert sum(last["stats"]["engine"]["passes_by_rows"].values()) == 3
    count = len(writes)
    outbox.empty(True)
    assert len(writes) == count


def test_a_request_that_fails_or_is_cancelled_leaves_the_others_alone(
    model: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error at once, an error in the midst of a text, and a text that goes on until it is cancelled."""
    rounds = model._rounds

    def broken(tokens: list[int], limit: int, *more: Any) -> tuple[Iterator[Round], bool]:
        found, drafting = rounds(tokens, limit, *more)
        if limit == 7:
            found = itertools.chain(itertools.islice(found, 2), (1 / 0 for _ in "x"))  # type: ignore[misc]
        return found, drafting

    monkeypatch.setattr(model, "_rounds", broken)
    replies = served(
        model,
        request(1, options={"max_new_tokens": 5}),
        request(2, prompt="fox " * 500),
        request(3, options={"max_new_tokens": 7}),
        request(4, options={"max_new_tokens": 100}),
        {"cancel": 4},
        {"cancel": 99},
    )
    found = {reply["id"]: reply for reply in replies}
    assert len(replies) == len(found) == 4
    assert found[1]["result"]["new_tokens"] == 5
    assert "shorten the prompt" in found[2]["error"]
    assert "again" not in found[2]
    assert found[3]["again"]
    assert "ZeroDivisionError" in found[3]["error"]
    assert (found[4]["result"], found[4]["error"]) == (None, "cancelled")


def test_a_cancelled_text_makes_room_at_once(model: TextModel) -> None:
    """Its rounds are closed between two of others; a later request is served."""
    replies: list[dict[str, Any]] = []
    desk = Desk(model, replies.append)
    desk.inbox.put(request(1, options={"max_new_tokens": 120}))
    rounds = 0
    real = model.target.forward

    def forward(*arguments: Any) -> Any:
        nonlocal rounds
        rounds += 1
        if rounds == 3:
            desk.inbox.put({"cancel": 1})
            desk.inbox.put(request(2, options={"max_new_tokens": 2}))
            desk.inbox.put(None)
        return real(*arguments)

    model.target.forward = forward  # type: ignore[method-assign]
    desk.work()
    assert [reply["id"] for reply in replies] == [1, 2]
    assert rounds <= 6


def test_a_text_that_waits_for_others_holds_up_nobody(model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an engine whose memory is full: the ones that run are answered, and one that waits can be cancelled."""
    rounds = model._rounds
    passes = 0

    others: list[Any] = []

    class Waiting:
        """Rounds that never come."""

        def ready(self) -> bool:
            nonlocal passes
            passes += 1
            if passes == 50:
                desk.inbox.put({"cancel": 1})
                desk.inbox.put(None)
            others[0].ready()  # the pass that it asks for is one of the texts that run
            return False

        def in_hand(self) -> bool:
            return False

        def __next__(self) -> Round:
            raise AssertionError("nobody may wait for it")

        def close(self) -> None:
            pass

    def some_wait(tokens: list[int], limit: int, *more: Any) -> tuple[Iterator[Round], bool]:
        if limit == 7:
            return Waiting(), False  # type: ignore[return-value]
        found, drafting = rounds(tokens, limit, *more)
        others.append(found)
        return found, drafting

    monkeypatch.setattr(model, "_rounds", some_wait)
    replies: list[dict[str, Any]] = []
    desk = Desk(model, replies.append)
    desk.inbox.put(request(1, options={"max_new_tokens": 7}))
    desk.inbox.put(request(2, options={"max_new_tokens": 5}))
    desk.work()
    assert [(reply["id"], reply.get("error")) for reply in replies] == [(2, None), (1, "cancelled")]
    assert passes == 50


def test_no_pass_is_run_while_a_round_waits(model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of prompts that are read one after the other, the first texts are sent while the last are being read."""
    passes = 0
    texts: list[Text] = []
    late: list[int] = []  # passes between a round and its way out
    taken: list[int] = []

    class Text:
        """Has a round of every pass from its first on, five of them."""

        def __init__(self, first: int) -> None:
            self.first, self.rounds, self.left = first, list[int](), 5
            texts.append(self)

        def in_hand(self) -> bool:
            return bool(self.rounds) or not self.left

        def ready(self) -> bool:
            nonlocal passes
            if not self.in_hand():
                passes += 1
                for text in texts:
                    if text.left and passes >= text.first:
                        text.left -= 1
                        text.rounds.append(passes)
            return self.in_hand()

        def __next__(self) -> None:
            if not self.rounds:
                raise StopIteration
            taken.append(self.rounds.pop(0))

        def result(self) -> Any:
            return self

        def as_dict(self) -> dict[str, Any]:
            return {}

    def turn_over(idle: bool) -> None:
        late.extend(passes - round_ for round_ in taken)
        taken.clear()

    monkeypatch.setattr(worker, "begin", lambda model, request: Text(request["id"]))
    replies: list[dict[str, Any]] = []
    desk = Desk(model, replies.append, turn_over)
    for number in range(1, 9):
        desk.inbox.put(request(number))
    desk.inbox.put(None)
    desk.work()
    assert sorted(reply["id"] for reply in replies) == list(range(1, 9))
    assert late == [0] * 40


def test_lengths_of_texts(tmp_path: Path) -> None:
    """The longest first, with what may be generated, in blocks of keys and values."""
    prompts = write_prompts(
        tmp_path / "p.jsonl",
        ["short", {"prompt": "x" * 3000}, {"prompt": "a", "max_new_tokens": 5000}, *["word"] * 30],
    )
    entries = PromptFile(str(prompts), Defaults()).entries
    texts = longest_texts(entries)
    assert len(texts) == 16
    assert texts[:3] == (5120, 1280, 256)
    assert longest_texts(entries, 1) == (5120,)
    assert longest_texts([Entry(1, 1, 0, 9, "")]) == (256,)


def test_what_fits_together() -> None:
    assert [fitting((5, 3, 2), room) for room in (0, 4, 5, 8, 10, 99)] == [0, 0, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("need", "instances", "available", "message"),
    [
        (InstanceNeed(6 * GIB, (GIB,) * 4), 2, 20 * GIB, None),
        (InstanceNeed(6 * GIB, (GIB,) * 4), 2, 19 * GIB, "2 instances need 10.0 GiB each, 20.0 GiB in all"),
        (InstanceNeed(6 * GIB, (GIB,) * 4), 2, 19 * GIB, "Use --concurrency 3 or --instances 1"),
        (InstanceNeed(6 * GIB, (GIB,) * 4), 1, 9 * GIB, "4 prompts at a time, and 9.0 GiB are available. Use --conc"),
        (InstanceNeed(6 * GIB, (GIB,)), 3, 15 * GIB, "Use --instances 2"),
        (InstanceNeed(6 * GIB, (GIB,) * 4), 1, 5 * GIB, "a smaller --precision or model or --concurrency"),
        (InstanceNeed(6 * GIB, (GIB,)), 1, 5 * GIB, None),  # the instance says it, and what is needed for what
        (InstanceNeed(6 * GIB, (GIB,) * 16, kv_limit=2 * GIB), 2, 16 * GIB, None),
        (InstanceNeed(None, (GIB,) * 4), 2, GIB, None),
        (InstanceNeed(6 * GIB, (GIB,) * 4), 2, None, None),
    ],
)
def test_memory_of_all(need: InstanceNeed, instances: int, available: int | None, message: str | None) -> None:
    """The weights and the keys and values of all prompts in flight, in all instances, with what would fit."""
    if message is None:
        check_memory_of_all(need, instances, available)
        return
    with pytest.raises(IpexAssistError) as caught:
        check_memory_of_all(need, instances, available)
    assert message in str(caught.value)


def test_too_many_for_the_memory_are_refused_before_anything_starts(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By --concurrency alone: one at a time, the same model fits."""
    memory = MemoryInfo(2 * GIB, 800 << 20)
    monkeypatch.setattr(local_instances, "read_memory", lambda: memory)
    started: list[object] = []
    monkeypatch.setattr(local_instances, "LocalPool", lambda *arguments: started.append(arguments) or 1 / 0)
    prompts = write_prompts(tmp_path / "p.jsonl", [f"word {i}" for i in range(4000)])
    arguments = [str(prompts), "-o", str(tmp_path / "o"), "-m", tiny, "--offline", "--no-launch", "--no-assisted"]
    arguments += ["--executor", "torch", "--precision", "fp32"]
    with pytest.raises(IpexAssistError, match=r"prompts at a time, and 0\.8 GiB are available\. Use --concurrency \d"):
        command.main([*arguments, "--concurrency", "4000"])
    assert not started
    with pytest.raises(ZeroDivisionError):
        command.main([*arguments, "--concurrency", "4", "--resume"])
    (_, settings), *_ = started
    assert settings["texts"] == (256,) * 4


@needs_native
def test_keys_and_values_are_kv_memory_where_that_is_given(tiny: str) -> None:
    """An instance with a pool of blocks does not refuse to begin for texts that would wait for each other in it."""
    load = LoadOptions(target=tiny, assistant="none", precision="fp32", executor="native", offline=True)
    limited = replace(load, kv_memory=1 << 20)
    texts = (256,) * 4000
    whole = memory_need(load, 20, texts=texts)
    assert whole.kv == 4000 * memory_need(load, 20, texts=(1,)).kv > 1 << 20
    assert memory_need(limited, 20, texts=texts).kv == 1 << 20
    assert memory_need(replace(load, kv_precision="int8"), 20, texts=texts).kv < whole.kv / 3
    assert InstanceNeed.of(load, 20, texts).total == whole.total
    assert InstanceNeed.of(limited, 20, texts).total == memory_need(limited, 20, texts=texts).total
    on_torch = replace(load, executor="torch")
    fewer_bits = memory_need(replace(on_torch, kv_precision="int8"), 20, texts=texts)
    # Of fp32 and heads of 16: a byte of four for each element, and four for each head.
    assert fewer_bits.kv == memory_need(on_torch, 20, texts=texts).kv * (16 + 4) // (16 * 4)
    on_torch = replace(limited, executor="torch")
    assert memory_need(on_torch, 20, texts=texts).kv > 1 << 20, "which has no pool"
    assert InstanceNeed.of(on_torch, 20, texts).total == memory_need(on_torch, 20, texts=texts).total


@needs_native
def test_the_pool_says_how_many_texts_fit(tiny: str, caplog: pytest.LogCaptureFixture) -> None:
    """Blocks of the longest texts: 2, 1, 1, … into a pool of five."""
    load = LoadOptions(target=tiny, assistant="none", precision="fp32", executor="native", offline=True)
    model = ipex_assist.load(tiny, None, precision="fp32", executor="native", kv_memory=5 * memory_need(load, 1).kv)
    settings = WorkerSettings(load, 20, texts=(257, 256, 256, 3, 3, 3))
    with caplog.at_level(logging.INFO, "ipex_assist"):
        assert concurrency_of(model, settings) == 4
    assert "prompts in flight: 4 (5 of 5 blocks of 256 tokens" in caplog.text


def test_an_instance_leaves_memory_to_its_neighbours(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without a launcher, whose plan would say so; memory that was given by number stays that."""
    asked: list[LoadOptions] = []
    monkeypatch.setattr("ipex_assist.commands.load.load_models", lambda load, *_, **__: (asked.append(load), []))
    load = LoadOptions(target=tiny, offline=True)
    for settings in (
        WorkerSettings(load, 20, neighbours=4),
        WorkerSettings(load, 20),
        WorkerSettings(replace(load, kv_memory=1 << 30), 20, neighbours=4),
    ):
        worker._load(settings)
    assert [each.kv_share for each in asked] == [0.25, None, None]


@pytest.mark.parametrize(
    ("asked", "available", "neighbours", "wanted"),
    [
        (None, 8 * GIB, 1, 16),
        (None, 0, 1, 16),  # nobody knows how much there is
        (40, 8 * GIB, 1, 40),
        (None, 10, 1, 5),
        (None, 10, 2, 2),
        (None, 1, 1, 1),
    ],
)
def test_the_default_is_what_memory_holds(
    asked: int | None,
    available: int,
    neighbours: int,
    wanted: int,
    model: TextModel,
    tiny: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the instance, by what its weights left. `available` below 100 counts half texts."""
    load = LoadOptions(target=tiny, assistant="none", precision="fp32", executor="torch", offline=True)
    settings = WorkerSettings(load, 20, concurrency=asked, texts=(64,) * 16, neighbours=neighbours)
    text = InstanceNeed.of(load, 20, (64,)).texts[0]
    room = available * text // 2 if available < 100 else available
    monkeypatch.setattr(concurrency, "read_memory", lambda: MemoryInfo(room, room))
    assert concurrency_of(model, settings) == wanted


def test_through_transformers_it_is_one(model: TextModel, caplog: pytest.LogCaptureFixture, tiny: str) -> None:
    """Whatever was asked for; said where somebody listens."""
    from ipex_assist.generation.transformers_model import TransformersModel

    assert TransformersModel.one_at_a_time
    model.one_at_a_time = True
    with caplog.at_level(logging.INFO, "ipex_assist"):
        assert concurrency_of(model, WorkerSettings(LoadOptions(target=tiny), 20, concurrency=16)) == 1
    assert "one prompt at a time" in caplog.text


def test_speeds_of_the_last_minute_and_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that began slowly shows what it does now, and what it did in all."""
    now = 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    shown = progress.Progress(100, 0)
    shown.begin()
    now += 20
    shown.count(600)
    assert shown.summary() == "1 prompts done in 20.0 s (0.05 prompts/s, 30.0 tokens/s), 0 failed"
    now += 180
    for _ in range(4):
        shown.count(900)
    shown.count(None)
    now += 10
    rates = "0.03 prompts/s, 20.0 tokens/s, 60.0 over the last 60 s"
    assert shown.summary() == f"5 prompts done in 210.0 s ({rates}), 1 failed"
