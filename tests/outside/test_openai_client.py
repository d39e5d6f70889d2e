"""OpenAI's own client, sync and async, against a server: every field of its types that we fill, and every error."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from fake_backend import REPLY, FakeBackend, choice, serving, tokenizer

openai = pytest.importorskip("openai")

pytestmark = [pytest.mark.outside, pytest.mark.one_stack]

HI = [{"role": "user", "content": "Hi"}]
TOKENS = len(tokenizer()(REPLY)["input_ids"]) + 1


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def url(backend: FakeBackend) -> Iterator[str]:
    with serving(backend, api_key=("secret",)) as client:
        yield str(client.base_url).rstrip("/") + "/v1"


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="secret", max_retries=0, timeout=20) as made:
        yield made


def test_chat(client):
    answer = client.chat.completions.create(model="tiny", messages=HI, n=2, seed=1, logprobs=True, top_logprobs=3)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint.startswith("fp_")
    for index, each in enumerate(answer.choices):
        assert (each.index, each.message.role, each.message.content) == (index, "assistant", REPLY)
        assert (each.finish_reason, each.message.refusal, each.message.tool_calls) == ("stop", None, None)
        first = each.logprobs.content[0]
        expected = choice(tokenizer()(REPLY)["input_ids"][0], 3)
        assert (first.token, first.bytes, first.logprob) == ("The", [84, 104, 101], expected.log_probability)
        assert [top.logprob for top in first.top_logprobs] == [value for _, value in expected.top]
    usage = answer.usage
    assert (usage.completion_tokens, usage.total_tokens) == (2 * TOKENS, usage.prompt_tokens + 2 * TOKENS)
    assert answer.timings["draft_n"] == answer.metrics["speculative_decoding"]["num_draft_tokens"] > 0
    assert answer._request_id


def test_chat_stream(client):
    """The client's own gathering of chunks gives the whole answer."""
    options = {"include_usage": True}
    with client.chat.completions.stream(model="tiny", messages=HI, logprobs=True, stream_options=options) as stream:
        seen = [event.type for event in stream]
        answer = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta", "logprobs.content.done"} <= set(seen)
    assert answer.choices[0].message.content == REPLY
    assert answer.choices[0].finish_reason == "stop"
    assert "".join(entry.token for entry in answer.choices[0].logprobs.content[:6]) == REPLY[:11]
    assert answer.usage.completion_tokens == TOKENS


def test_a_stream_that_is_left(client, backend):
    backend.pace = 0.01
    stream = client.chat.completions.create(model="tiny", messages=HI, stream=True, extra_body={"ignore_eos": True})
    for _, chunk in zip(range(3), stream, strict=False):
        assert chunk.object == "chat.completion.chunk"
    stream.close()
    assert client.chat.completions.create(model="tiny", messages=HI, max_tokens=2).usage.completion_tokens == 2
    assert backend.running == 0
    assert backend.cancelled == 1


def test_completions(client):
    answer = client.completions.create(
        model="tiny", prompt=["a", "b"], n=2, max_tokens=4, logprobs=2, stop=["never"], seed=3, temperature=0.5,
        top_p=0.9, presence_penalty=1, frequency_penalty=1, logit_bias={"5": 1}, echo=False, suffix=None, user="x",
    )  # fmt: skip
    assert [each.index for each in answer.choices] == [0, 1, 2, 3]
    for each in answer.choices:
        assert REPLY.startswith(each.text)
        assert each.finish_reason == "length"
        assert len(each.logprobs.tokens) == len(each.logprobs.token_logprobs) == 4
        assert len(each.logprobs.top_logprobs[0]) == 2
    chunks = list(client.completions.create(model="tiny", prompt=tokenizer()("a")["input_ids"], stream=True))
    text = "".join(chunk.choices[0].text for chunk in chunks)
    assert text
    assert REPLY.startswith(text)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_responses(client):
    first = client.responses.create(model="tiny", input="Hi", instructions="be kind", metadata={"a": "b"})
    assert (first.output_text, first.status, first.error) == (REPLY, "completed", None)
    assert (first.metadata, first.instructions) == ({"a": "b"}, "be kind")
    second = client.responses.create(model="tiny", input=HI, previous_response_id=first.id, max_output_tokens=3)
    assert (second.status, second.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert second.usage.input_tokens > first.usage.input_tokens
    assert second.usage.output_tokens == 3
    assert client.responses.retrieve(first.id).output_text == REPLY
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_responses_stream(client):
    with client.responses.stream(model="tiny", input="Hi") as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        answer = stream.get_final_response()
    assert "".join(deltas) == answer.output_text == REPLY


def test_structured_output(client, backend):
    """The reply is not made by the grammar here; what the client sends of a type becomes one."""
    pydantic = pytest.importorskip("pydantic")

    class City(pydantic.BaseModel):
        name: str
        inhabitants: int

    backend.reply = json.dumps({"name": "Bonn", "inhabitants": 3})
    answer = client.chat.completions.parse(model="tiny", messages=HI, response_format=City)
    assert answer.choices[0].message.parsed == City(name="Bonn", inhabitants=3)
    assert backend.requests[0].grammar.kind == "json_schema"
    assert client.responses.parse(model="tiny", input="Hi", text_format=City).output_parsed.name == "Bonn"


def test_responses_tools(client, backend, monkeypatch):
    """A call, what came of it given back, and the same streamed: by the client's own gathering of events."""
    template = (
        "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    monkeypatch.setattr(tokenizer(), "chat_template", template)
    backend.reply = 'Hm.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
    backend._facts = msgspec.structs.replace(backend.facts, context_length=4096)
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [{"type": "function", "name": "weather", "parameters": parameters, "strict": True}]
    first = client.responses.create(model="tiny", input="Hi", tools=tools)
    text, call = first.output
    assert (first.output_text, text.type, call.type, call.name) == ("Hm.", "message", "function_call", "weather")
    assert json.loads(call.arguments) == {"city": "Köln"}
    assert backend.requests[0].grammar.kind == "lark"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    with client.responses.stream(
        model="tiny", input=[result], previous_response_id=first.id, tools=tools, tool_choice="auto"
    ) as stream:
        found = list(stream)
        answer = stream.get_final_response()
    deltas = [event.delta for event in found if event.type == "response.function_call_arguments.delta"]
    (done,) = [event for event in found if event.type == "response.function_call_arguments.done"]
    assert "".join(deltas) == done.arguments == answer.output[1].arguments == call.arguments
    assert answer.output_text == "Hm."
    # A template that leaves calls out gets them in the content.
    called = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
    assert tokenizer().decode(backend.requests[1].tokens).endswith(f"HiHm.{called}rain")
    assert client.responses.retrieve(first.id).output[1].call_id == call.call_id
    forced = {"type": "function", "name": "weather"}
    assert (
        client.responses.create(model="tiny", input="Hi", tools=tools, tool_choice=forced).tool_choice.name == "weather"
    )


def test_models(client):
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by, model.created) == ("tiny", "model", "ipex-assist", 1000)
    assert client.models.retrieve("tiny") == model


def test_errors_are_the_clients_own(client, url, backend):
    ask = client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as bad:
        ask(model="tiny", messages=HI, temperature=-1)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as missing:
        ask(model="other", messages=HI)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=url, api_key="wrong", max_retries=0).models.list()
    with pytest.raises(openai.APIStatusError) as long:
        client.completions.create(model="tiny", prompt=[5] * 1000)
    assert (long.value.status_code, long.value.code) == (400, "context_length_exceeded")
    backend.room = 0
    with pytest.raises(openai.RateLimitError) as full:
        ask(model="tiny", messages=HI)
    assert full.value.response.headers["retry-after"] == "1"
    backend.room, backend.error, backend.error_at = 9, lambda: RuntimeError("secret"), 3
    with pytest.raises(openai.InternalServerError):
        ask(model="tiny", messages=HI)
    with pytest.raises(openai.APIError) as broken:
        list(ask(model="tiny", messages=HI, stream=True))
    assert "secret" not in str(broken.value)


def test_a_full_queue_is_tried_again(url, backend):
    """The client waits as Retry-After says, and gets its text."""
    backend.room = 1
    backend.pace = 0.02

    async def both() -> list[str]:
        async with openai.AsyncOpenAI(base_url=url, api_key="secret", max_retries=3) as client:
            asked = [client.chat.completions.create(model="tiny", messages=HI) for _ in range(2)]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*asked)]

    assert asyncio.run(both()) == [REPLY, REPLY]


def test_async_streams_beside_each_other(url, backend):
    backend.pace = 0.005

    async def one(client: openai.AsyncOpenAI, number: int) -> str:
        text = ""
        stream = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": str(number)}], stream=True, max_tokens=5 + number
        )
        async for chunk in stream:
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        return text

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=url, api_key="secret", max_retries=0) as client:
            return await asyncio.gather(*(one(client, number) for number in range(8)))

    texts = asyncio.run(all_of_them())
    assert all(REPLY.startswith(text.rstrip("\ufffd")) for text in texts)  # é is of two tokens
    assert [len(text) for text in texts] == sorted(len(text) for text in texts)
    assert backend.most_running == 8


def test_tools(client, backend, monkeypatch):
    template = (
        "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    monkeypatch.setattr(tokenizer(), "chat_template", template)
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
    backend.reply = call + "\n" + call.replace("Köln", "Bonn")
    backend._facts = msgspec.structs.replace(backend.facts, context_length=4096)
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
    answer = client.chat.completions.create(model="tiny", messages=HI, tools=tools)
    assert answer.choices[0].finish_reason == "tool_calls"
    assert [json.loads(each.function.arguments)["city"] for each in answer.choices[0].message.tool_calls] == [
        "Köln",
        "Bonn",
    ]
    with client.chat.completions.stream(model="tiny", messages=HI, tools=tools) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        gathered = stream.get_final_completion().choices[0].message
    assert [event.name for event in done] == ["weather", "weather"]
    assert [json.loads(each.function.arguments)["city"] for each in gathered.tool_calls] == ["Köln", "Bonn"]
    client.chat.completions.create(model="tiny", messages=HI, tools=tools, tool_choice="required")
    assert backend.requests[-1].grammar.kind == "lark"


def test_the_example_of_the_documentation(backend, capsys):
    """docs/api.md, as it is written but for the port."""
    (code,) = re.findall(r"```py\n(.*?)```", (Path(__file__).parents[2] / "docs/api.md").read_text("utf-8"), re.DOTALL)
    with serving(backend) as client:
        assert "http://127.0.0.1:8000" in code
        exec(code.replace("http://127.0.0.1:8000", str(client.base_url).rstrip("/")), {})
    assert capsys.readouterr().out.startswith(f"{REPLY} {{'cache_n': 0, 'prompt_n': ")
