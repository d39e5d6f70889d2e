"""Anthropic's own client, sync and async, against a server: answers, streams, tools, and errors as its exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from fake_backend import REPLY, FakeBackend, serving
from tool_calls import CALL, calling_backend

anthropic = pytest.importorskip("anthropic")
pytest.importorskip("llguidance")

pytestmark = [pytest.mark.outside, pytest.mark.one_stack]

HI = [{"role": "user", "content": "Hi"}]
WEATHER = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    return calling_backend(monkeypatch)


@pytest.fixture
def url(backend: FakeBackend) -> Iterator[str]:
    with serving(backend, api_key=("secret",)) as client:
        yield str(client.base_url).rstrip("/")


@pytest.fixture
def client(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="secret", max_retries=0, timeout=20) as made:
        yield made


def test_an_answer(client, backend):
    backend.reply = REPLY
    answer = client.messages.create(model="tiny", max_tokens=200, messages=HI, system="Be brief.")
    assert [(block.type, block.text) for block in answer.content] == [("text", REPLY)]
    assert answer.stop_reason == "end_turn"
    counted = client.messages.count_tokens(model="tiny", messages=HI, system="Be brief.")
    assert answer.usage.input_tokens == counted.input_tokens > 0


def test_the_clients_own_gathering_of_events(client):
    """The message it puts together from events is the whole answer's, calls as objects."""
    with client.messages.stream(model="tiny", max_tokens=200, messages=HI, tools=[WEATHER]) as stream:
        kinds = {each.type for each in stream}
        final = stream.get_final_message()
    assert {"message_start", "text", "input_json", "content_block_stop", "message_delta", "message_stop"} <= kinds
    assert [block.type for block in final.content] == ["text", "tool_use", "tool_use"]
    assert [block.input for block in final.content[1:]] == [{"city": "Rome"}] * 2
    assert final.stop_reason == "tool_use"
    assert final.usage.output_tokens > 0


def test_a_turn_of_an_agent(client, backend):
    """What the client gives back of an answer, and the tool's result, are taken as they are."""
    answer = client.messages.create(model="claude-haiku-4-5", max_tokens=200, messages=HI, tools=[WEATHER])
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "12 degrees"}
        for block in answer.content
        if block.type == "tool_use"
    ]
    turns = [*HI, {"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    backend.reply = REPLY
    last = client.messages.create(model="claude-haiku-4-5", max_tokens=200, messages=turns, tools=[WEATHER])
    assert last.content[0].text == REPLY


def test_async(url, backend):
    backend.reply = REPLY

    async def ask() -> str:
        async with (
            anthropic.AsyncAnthropic(base_url=url, auth_token="secret", timeout=20) as client,
            client.messages.stream(model="tiny", max_tokens=200, messages=HI) as stream,
        ):
            return "".join([text async for text in stream.text_stream])

    assert asyncio.run(ask()) == REPLY


def test_errors_are_its_exceptions(client, url):
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="other", max_tokens=5, messages=HI)
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(model="tiny", max_tokens=0, messages=HI)
    with (
        anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        stranger.messages.create(model="tiny", max_tokens=5, messages=HI)


def test_a_runner_of_tools_goes_on_without_a_thread(url: str, backend: FakeBackend) -> None:
    """It asks the server to keep the conversation, and sends all of it when it is told that this one does not."""
    if not hasattr(anthropic, "beta_tool"):
        pytest.skip("this client has no runner of tools")
    backend.reply = CALL
    seen: list[str] = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather."""
        seen.append(city)
        backend.reply = REPLY
        return "sunny"

    client = anthropic.Anthropic(base_url=url, api_key="secret", max_retries=0)
    runner = client.beta.messages.tool_runner(model="claude-x", max_tokens=200, tools=[get_weather], messages=HI)
    found = [block.type for message in runner for block in message.content]
    assert found == ["tool_use", "text"]
    assert seen == ["Rome"]
