"""How a worker serves several requests at a time."""

from __future__ import annotations

import itertools
import json
import threading
import time
from dataclasses import asdict
from typing import Any

import pytest
from conftest import HAS_NATIVE

import ipex_assist
from ipex_assist.executors.interface import Meanwhile
from ipex_assist.generation.stream import OwnRounds, RoundStream
from ipex_assist.generation.text_model import TextModel
from ipex_assist.native.library import library
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.round import Round
from ipex_assist.workers import request_loop
from ipex_assist.workers.request_loop import RequestLoop
from ipex_assist.workers.wire import Answered, Cancel, Pause, Resume, Streamed, TextRequest, ToWorker

needs_native = pytest.mark.skipif(not HAS_NATIVE, reason="blocks are the native core's")


def request(number: int, prompt: str = "the fox", stream: bool = False, **options: Any) -> TextRequest:
    return TextRequest(number, prompt, options=GenerationOptions(**options), stream=stream)


def served(model: TextModel, *requests: ToWorker | None) -> list[Any]:
    """What the loop replies to requests that came at once, in its order."""
    replies: list[Any] = []
    loop = RequestLoop(model, replies.append)
    for each in (*requests, None):
        loop.inbox.put(each)
    worker = threading.Thread(target=loop.run, daemon=True)
    worker.start()
    worker.join(60)
    assert not worker.is_alive()
    return replies


def test_texts_are_those_that_each_has_alone(endless_model: TextModel) -> None:
    """Sixteen under way at a time; the short ones are done before the long ones that came before them."""
    lengths = [3 + 9 * (number % 4 == 0) for number in range(16)]
    requests = [
        request(number, prompt=f"the fox number {number}", max_new_tokens=length)
        for number, length in enumerate(lengths)
    ]
    replies = served(endless_model, *requests)
    assert sorted(reply.id for reply in replies) == list(range(16))
    assert [reply.id % 4 == 0 for reply in replies] == [False] * 12 + [True] * 4
    for reply in replies:
        number = reply.id
        alone = endless_model.generate(f"the fox number {number}", max_new_tokens=lengths[number])
        assert reply.result["tokens"] == alone.tokens


def test_a_stream_brings_the_text_piece_by_piece(endless_model: TextModel) -> None:
    """A part for each pass, before the result; who asked for no stream gets the result alone."""
    options = {"max_new_tokens": 12, "logprobs": 2}
    replies = served(endless_model, request(1, stream=True, **options), request(2, **options))
    streamed = [reply for reply in replies if isinstance(reply, Streamed)]
    chunks = [reply.chunk for reply in streamed]
    answers = {reply.id: reply for reply in replies if isinstance(reply, Answered)}
    results = {number: reply.result for number, reply in answers.items()}
    assert replies.index(answers[1]) > replies.index(streamed[-1])
    assert {reply.id for reply in streamed} == {1}
    assert len(chunks) == 12
    deltas = [delta for chunk in chunks for delta in chunk.token_deltas]
    assert [delta.token for delta in deltas] == results[1]["tokens"] == results[2]["tokens"]
    assert "".join(delta.text for delta in deltas) == results[1]["text"]
    listed = [each for chunk in chunks for each in chunk.logprobs or []]
    assert [asdict(each) for each in listed] == results[1]["logprobs"]


def test_an_outbox_says_what_was_done_before_the_last_answer_is_read(endless_model: TextModel) -> None:
    """In one write, so that whoever has the answer finds it counted; and nothing where nothing has changed."""
    writes: list[list[dict[str, Any]]] = []
    outbox = request_loop.Outbox(
        endless_model, lambda lines: writes.append([json.loads(line) for line in lines.splitlines()])
    )
    loop = RequestLoop(endless_model, outbox.put, outbox.flush)
    for each in (request(1, max_new_tokens=3), None):
        loop.inbox.put(each)
    loop.run()
    *_, answer, counts = writes[-1]
    assert answer["id"] == 1
    assert (counts["engine"]["new_tokens"], counts["engine"]["finished"]) == (3, 1)
    assert sum(counts["engine"]["passes_by_rows"].values()) == 3
    count = len(writes)
    outbox.flush(True)
    assert len(writes) == count


def test_a_request_that_fails_or_is_cancelled_leaves_the_others_alone(
    endless_model: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error at once, an error in the midst of a text, and a text that goes on until it is cancelled."""
    rounds = endless_model._rounds

    def broken(tokens: list[int], limit: int, *more: Any) -> tuple[RoundStream, bool]:
        found, drafting = rounds(tokens, limit, *more)
        if limit == 7:
            real = found
            twice = (next(real) for _ in range(2))
            found = OwnRounds(itertools.chain(twice, (1 / 0 for _ in "x")))  # type: ignore[misc]
        return found, drafting

    monkeypatch.setattr(endless_model, "_rounds", broken)
    replies = served(
        endless_model,
        request(1, max_new_tokens=5),
        request(2, prompt="fox " * 500),
        request(3, max_new_tokens=7),
        request(4, max_new_tokens=100),
        Cancel(4),
        Cancel(99),
    )
    found = {reply.id: reply for reply in replies}
    assert len(replies) == len(found) == 4
    assert found[1].result["new_tokens"] == 5
    assert "shorten the prompt" in found[2].error
    assert not found[2].again
    assert found[3].again
    assert "ZeroDivisionError" in found[3].error
    assert (found[4].result, found[4].error) == (None, "cancelled")


def test_a_cancelled_text_makes_room_at_once(endless_model: TextModel) -> None:
    """Its rounds are closed between two of others; a later request is served."""
    replies: list[Any] = []
    loop = RequestLoop(endless_model, replies.append)
    loop.inbox.put(request(1, max_new_tokens=120))
    rounds = 0
    real = endless_model.target.forward

    def forward(*arguments: Any) -> Any:
        nonlocal rounds
        rounds += 1
        if rounds == 3:
            loop.inbox.put(Cancel(1))
            loop.inbox.put(request(2, max_new_tokens=2))
            loop.inbox.put(None)
        return real(*arguments)

    endless_model.target.forward = forward  # type: ignore[method-assign]
    loop.run()
    assert [reply.id for reply in replies] == [1, 2]
    assert rounds <= 6


@needs_native
def test_replies_are_made_while_the_next_pass_runs(endless_folder: str) -> None:
    """All but those of the last pass. Texts are as alone, also one that ends by a stop string, found a pass later."""
    model: Any = ipex_assist.load(endless_folder, None, precision="fp32", executor="native")
    alone = [model.generate(f"the fox {number}", max_new_tokens=30) for number in range(3)]
    stop = alone[1].text[9:12]
    packed, inside, sent = model.target.packed, [False], []

    class Core:
        """The core, of which it is known whether it works beside its caller."""

        def __getattr__(self, name: str) -> Any:
            function = getattr(library(), name)

            def call(*given: Any) -> Any:
                inside[0] = name == "ia_begin_sample" or (inside[0] and name != "ia_end_sample")
                # Never done before its caller has no more to do.
                return 0 if name == "ia_sample_is_done" else function(*given)

            return call

    packed.library = Core()
    replies: list[Any] = []

    def send(reply: Any) -> None:
        replies.append(reply)
        sent.append(inside[0])

    loop = RequestLoop(model, send)
    for number in range(3):
        options = {"stop": (stop,)} if number == 1 else {}
        loop.inbox.put(request(number, f"the fox {number}", stream=True, max_new_tokens=30, **options))
    loop.inbox.put(None)
    loop.run()
    results = {reply.id: reply.result for reply in replies if isinstance(reply, Answered)}
    assert [results[number]["tokens"] for number in (0, 2)] == [alone[0].tokens, alone[2].tokens]
    assert results[1]["stop_reason"] == "stop"
    assert alone[1].text.startswith(results[1]["text"])
    assert results[1]["text"] == alone[1].text[: alone[1].text.index(stop)]
    assert sent.count(False) <= 4, "the last round of two texts, and their results"


@needs_native
def test_a_paused_text(endless_folder: str) -> None:
    """Nothing is sent of it until it is resumed; then the rest is, or its cancellation is confirmed."""
    model = ipex_assist.load(endless_folder, None, precision="fp32", executor="native")
    assert model.pauses
    replies: list[Any] = []
    loop = RequestLoop(model, replies.append)
    options = {"max_new_tokens": 20}
    for number in (1, 2, 3):
        loop.inbox.put(request(number, **options))
    loop.inbox.put(Pause(1))
    loop.inbox.put(Pause(2))
    loop.inbox.put(Pause(99))  # answered long ago
    worker = threading.Thread(target=loop.run, daemon=True)
    worker.start()
    while not replies:
        time.sleep(0.001)
    assert [reply.id for reply in replies] == [3]
    loop.inbox.put(Cancel(2))
    for each in (Resume(1), Resume(2), None):
        loop.inbox.put(each)
    worker.join(60)
    assert not worker.is_alive()
    assert [reply.id for reply in replies] == [3, 2, 1]
    assert replies[1].error == "cancelled"
    assert replies[2].result["tokens"] == replies[0].result["tokens"]


def test_a_text_that_waits_for_others_holds_up_nobody(
    endless_model: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an engine whose memory is full: the ones that run are answered, and one that waits can be cancelled."""
    rounds, run_pass = endless_model._rounds, endless_model.step
    passes = 0

    class Waiting:
        """Rounds that never come."""

        def in_hand(self) -> bool:
            return False

        def __next__(self) -> Round:
            raise AssertionError("nobody may wait for it")

        def close(self) -> None:
            pass

    def some_wait(tokens: list[int], limit: int, *more: Any) -> tuple[RoundStream, bool]:
        if limit == 7:
            return Waiting(), False
        return rounds(tokens, limit, *more)

    def step(meanwhile: Meanwhile | None = None) -> bool:
        nonlocal passes
        passes += 1
        if passes == 50:
            loop.inbox.put(Cancel(1))
            loop.inbox.put(None)
        return run_pass(meanwhile)

    monkeypatch.setattr(endless_model, "_rounds", some_wait)
    monkeypatch.setattr(endless_model, "step", step)
    replies: list[Any] = []
    loop = RequestLoop(endless_model, replies.append)
    loop.inbox.put(request(1, max_new_tokens=7))
    loop.inbox.put(request(2, max_new_tokens=5))
    loop.run()
    assert [(reply.id, reply.error) for reply in replies] == [(2, None), (1, "cancelled")]
    assert passes == 50


def test_a_round_goes_out_before_the_next_pass_ends(endless_model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of prompts that are read one after the other, the first texts are sent while the last are being read."""
    passes = 0
    texts: list[Text] = []
    late: list[int] = []  # passes between a round and its way out
    taken: list[int] = []

    class Text:
        """Has a round of every pass from its first on, five of them."""

        shares_passes = True

        def __init__(self, first: int) -> None:
            self.first, self.rounds, self.left = first, list[int](), 5
            texts.append(self)

        def in_hand(self) -> bool:
            return bool(self.rounds) or not self.left

        def __next__(self) -> None:
            if not self.rounds:
                raise StopIteration
            taken.append(self.rounds.pop(0))

        def result(self) -> Any:
            return self

        def as_dict(self) -> dict[str, Any]:
            return {}

    def step(meanwhile: Meanwhile | None = None) -> bool:
        nonlocal passes
        while meanwhile is not None and meanwhile():
            pass
        passes += 1
        for text in texts:
            if text.left and passes >= text.first:
                text.left -= 1
                text.rounds.append(passes)
        return True

    monkeypatch.setattr(endless_model, "step", step)

    def after_step(idle: bool) -> None:
        late.extend(passes - round_ for round_ in taken)
        taken.clear()

    monkeypatch.setattr(request_loop, "begin", lambda model, request, _prompt: Text(request.id))
    replies: list[Any] = []
    loop = RequestLoop(endless_model, replies.append, after_step)
    for number in range(1, 9):
        loop.inbox.put(request(number))
    loop.inbox.put(None)
    loop.run()
    assert sorted(reply.id for reply in replies) == list(range(1, 9))
    assert late == [0] * 40


def test_a_step_that_fails_ends_all_that_run(endless_model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails beside the requests is nobody's fault: each is told so, and the worker goes on."""
    run_pass, fails = endless_model.step, [True]

    def step(meanwhile: Meanwhile | None = None) -> bool:
        if fails.pop() if fails else False:
            loop.inbox.put(request(3, max_new_tokens=2))
            loop.inbox.put(None)
            raise RuntimeError("not of a request")
        return run_pass(meanwhile)

    monkeypatch.setattr(endless_model, "step", step)
    replies: list[Any] = []
    loop = RequestLoop(endless_model, replies.append)
    loop.inbox.put(request(1, max_new_tokens=5))
    loop.inbox.put(request(2, max_new_tokens=5))
    loop.run()
    assert [(reply.id, reply.error is None, reply.again) for reply in replies] == [
        (1, False, True),
        (2, False, True),
        (3, True, False),
    ]
    assert "not of a request" in replies[0].error
