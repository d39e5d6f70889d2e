"""What serve_overhead.py sends to a server and makes of the answers; the whole run needs models, and is not here."""

from __future__ import annotations

import http_load
import pytest
import serve_overhead as overhead
from fake_backend import ACCEPTED, DRAFTED, EOS, REPLY, FakeBackend, serving, tokenizer

from ipex_assist.bench.throughput import LoadSample
from ipex_assist.env.errors import IpexAssistError

pytestmark = pytest.mark.one_stack


def address(client: object) -> tuple[str, int]:
    url = client.base_url  # type: ignore[attr-defined]
    return url.host, url.port


def test_texts_over_http_with_the_times_of_their_tokens() -> None:
    """Each event's tokens are counted, also those of an event of several; no more requests are in flight than asked."""
    backend = FakeBackend()
    backend.pace = 0.003
    bodies = [http_load.body([7, 8, number], {"max_tokens": 9, "ignore_eos": True}) for number in range(5)]
    with serving(backend) as client:
        found = http_load.load(address(client), bodies, 2)
    assert backend.most_running == 2
    assert sorted(request.tokens[-1] for request in backend.requests) == [0, 1, 2, 3, 4]
    tokens = [*tokenizer()(REPLY)["input_ids"], EOS]
    for arrived in found:
        assert [count for _, count in arrived.deliveries] == [1, 1, 4, 2, 1]  # the target's own, and ACCEPTED
        assert arrived.new_tokens == 9
        assert arrived.text == tokenizer().decode(tokens[:9], skip_special_tokens=True)
        assert (arrived.prompt_tokens, arrived.drafted) == (3, 4 * DRAFTED)
        assert arrived.accepted == sum(ACCEPTED)
        times = [arrived.submitted_s, *(at for at, _ in arrived.deliveries)]
        assert times == sorted(times)
        served = overhead.served(arrived)
        assert (served.first_tokens, served.new_tokens, served.rounds) == (1, 9, 5)
        assert served.token_s == pytest.approx((times[-1] - times[1]) / 8)


@pytest.mark.parametrize("at", [0, 2])
def test_a_text_that_fails_is_an_error(at: int) -> None:
    """Before the stream has begun it has a status, and in it an event."""
    backend = FakeBackend()
    backend.error, backend.error_at = lambda: ValueError("broken"), at
    with serving(backend) as client, pytest.raises(IpexAssistError, match=r"the server (answers with status 500|says)"):
        http_load.load(address(client), [http_load.body([7], {"max_tokens": 9})], 1)


def test_nobody_answers() -> None:
    with pytest.raises(IpexAssistError, match="the server does not answer"):
        http_load.load(("127.0.0.1", 9), [http_load.body([7], {})], 1)


def test_seconds_between_tokens_are_shared_by_those_of_a_delivery() -> None:
    """Not by those of the first one, before which there is none."""
    assert overhead.between([[(1.0, 3), (1.2, 2), (1.3, 1)], [(5.0, 1)], []]) == pytest.approx((0.1, 0.1, 0.1))


def test_the_ratio_is_of_the_same_turn_and_texts_are_compared() -> None:
    def turn(total_s: float, text: str) -> overhead.Turn:
        served = overhead.Served(3, 0.0, 0.1, total_s, 1, 10, 5, 0, 0)
        return overhead.Turn(LoadSample(total_s, 9, (served,)), (0.1,), (text,), dict.fromkeys(USED, 0.0))

    turns = {"engine": [turn(1.0, "a"), turn(4.0, "b")], "HTTP": [turn(2.0, "a"), turn(5.0, "b")]}
    measured = overhead.Measured(1, turns)
    assert measured.ratios == pytest.approx([0.5, 0.8])
    assert measured.equal
    assert measured.cells("HTTP")["÷ engine"] == "0.650"
    turns["HTTP"][1] = turn(5.0, "c")
    assert not measured.equal
    assert measured.cells("HTTP")["equal texts"] == "NO"


USED = ("here", "front", "engines")


def test_flags_of_the_pair_go_to_both_sides() -> None:
    args, asked, pair = overhead.read_flags(
        ["-m", "folder", "--precision", "int8", "--concurrency", "1,8", "--repeats=2", "--no-assisted"]
    )
    assert (args.concurrency, args.repeats, args.requests) == ([1, 8], 2, None)
    assert (asked.task, asked.model, asked.precision, asked.assisted) == ("throughput", "folder", ["int8"], False)
    assert pair == ["-m", "folder", "--precision", "int8", "--no-assisted"]
