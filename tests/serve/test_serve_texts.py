"""Chat and completions over HTTP: what becomes of each field, and that a stream says what the whole answer says."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fake_backend import EOS, REPLY, choice, tokenizer
from msgspec import structs

from ipex_assist.serve import streaming
from ipex_assist.speculative.options import GenerationOptions

pytestmark = pytest.mark.one_stack

HI = {"messages": [{"role": "user", "content": "Hi"}]}
TEXT = {"prompt": "Once", "max_tokens": 100}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def events(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, which ends as OpenAI's do."""
    answer = client.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    *found, last, empty = answer.text.split("\n\n")
    assert (last, empty) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in found if not event.startswith(":")]


def whole(client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_chat(client, backend):
    answer = whole(client, CHAT, HI)
    (each,) = answer["choices"]
    assert each["message"] == {"role": "assistant", "content": REPLY, "refusal": None}
    assert (each["finish_reason"], each["index"], each["logprobs"]) == ("stop", 0, None)
    prompt = tokenizer()("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
    assert backend.requests[0].tokens == prompt
    completion = len(tokenizer()(REPLY)["input_ids"]) + 1
    assert answer["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": completion,
        "total_tokens": len(prompt) + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert (answer["model"], answer["object"]) == ("tiny", "chat.completion")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, HI | {"max_tokens": 9, "n": 2, "logprobs": True, "top_logprobs": 2}),
        (CHAT, HI | {"stop": "foxes", "logprobs": True}),
        (COMPLETIONS, TEXT | {"prompt": ["a", "b"], "n": 2, "logprobs": 3}),
        (COMPLETIONS, TEXT | {"stop": [" jump", "é: 1"], "logprobs": 0}),
    ],
)
def test_streams_say_what_whole_answers_say(client, path, body):
    """Text, log-probabilities, reasons, usage and the draft's figures; would catch a part that is lost or doubled."""
    answer = whole(client, path, body)
    found = events(client, path, body | {"stream_options": {"include_usage": True}})
    last = found.pop()
    assert last["choices"] == []
    assert last["usage"] == answer["usage"]
    assert last["metrics"]["speculative_decoding"] == answer["metrics"]["speculative_decoding"]
    for each in answer["choices"]:
        chunks = [chunk["choices"][0] for chunk in found if chunk["choices"][0]["index"] == each["index"]]
        if path == CHAT:
            assert "".join(chunk["delta"].get("content", "") for chunk in chunks) == each["message"]["content"]
            listed = [entry for chunk in chunks for entry in (chunk["logprobs"] or {}).get("content", [])]
            assert listed == each["logprobs"]["content"]
            assert chunks[0]["delta"] == {"role": "assistant", "content": ""}
        else:
            assert "".join(chunk["text"] for chunk in chunks) == each["text"]
            for name, values in each["logprobs"].items():
                parts = [chunk["logprobs"][name] for chunk in chunks if chunk["logprobs"]]
                assert values is None or [value for part in parts for value in part] == values
        reasons = [chunk["finish_reason"] for chunk in chunks]
        assert reasons == [None] * (len(chunks) - 1) + [each["finish_reason"]]
    assert len({chunk["id"] for chunk in found}) == 1
    assert all(chunk["usage"] is None for chunk in found)
    assert not any("metrics" in chunk or "timings" in chunk for chunk in found)  # readers add up what stands twice


def test_without_usage_each_text_says_what_the_draft_did(client):
    found = events(client, COMPLETIONS, TEXT | {"prompt": ["a", "b"]})
    said = [chunk["choices"][0] for chunk in found if "metrics" in chunk]
    assert sorted(choice["index"] for choice in said) == [0, 1]
    assert all(choice["finish_reason"] for choice in said)


def test_fields_become_options(client, backend):
    body = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1.5,
        "repetition_penalty": 1.1, "logit_bias": {"5": -100}, "seed": 3, "stop": ["x", "y"], "ignore_eos": True,
        "num_assistant_tokens": 2, "max_completion_tokens": 4, "max_tokens": 9, "top_logprobs": 1, "logprobs": True,
    }  # fmt: skip
    whole(client, CHAT, HI | body | {"user": "somebody", "store": False, "nobody_knows": {"this": 1}})
    expected = GenerationOptions(
        do_sample=True, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, presence_penalty=1, frequency_penalty=-1.5,
        repetition_penalty=1.1, logit_bias={5: -100}, seed=3, stop=("x", "y"), ignore_eos=True,
        num_assistant_tokens=2, max_new_tokens=4, logprobs=1,
    )  # fmt: skip
    assert backend.requests[0].options == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": 16}),
        ({"temperature": 0}, {"do_sample": False}),
        ({"temperature": None, "stop": None, "seed": None}, {"do_sample": True, "temperature": 1.0, "stop": ()}),
        ({"assisted": False}, {"assisted": False}),
    ],
)
def test_defaults_are_openais(client, backend, body, expected):
    whole(client, COMPLETIONS, {"prompt": "Once", **body})
    options = backend.requests[0].options
    assert {name: getattr(options, name) for name in expected} == expected


def test_texts_of_a_seed_have_seeds_of_their_own(client, backend):
    """Equal seeds would make n equal texts."""
    whole(client, COMPLETIONS, TEXT | {"n": 3, "seed": 2**63 - 2})
    assert sorted(request.options.seed for request in backend.requests) == [0, 2**63 - 2, 2**63 - 1]


def test_prompts_of_all_kinds(client, backend):
    ids = tokenizer()("Once")["input_ids"]
    for prompt, expected in (
        ("Once", [ids]),
        (["Once", "a"], [ids, tokenizer()("a")["input_ids"]]),
        (ids, [ids]),
        ([ids, [5]], [ids, [5]]),
    ):
        backend.requests.clear()
        answer = whole(client, COMPLETIONS, {"prompt": prompt})
        assert sorted(request.tokens for request in backend.requests) == sorted(expected)
        assert answer["usage"]["prompt_tokens"] == sum(map(len, expected))
        assert [each["index"] for each in answer["choices"]] == list(range(len(expected)))


def test_a_prompt_counts_once(client, backend):
    answer = whole(client, COMPLETIONS, TEXT | {"n": 4})
    assert answer["usage"]["prompt_tokens"] == len(backend.requests[0].tokens)


@pytest.mark.parametrize("stop", ["foxes", "café: 1", "s jump.", "zy do"])
def test_no_part_of_a_stop_text_leaks(client, stop):
    """Neither through text nor through log-probabilities, whose tokens are text as well."""
    found = events(client, CHAT, HI | {"stop": stop, "logprobs": True, "draft_details": True})
    before = REPLY[: REPLY.index(stop)]
    choices = [chunk["choices"][0] for chunk in found]
    assert "".join(each["delta"].get("content", "") for each in choices) == before
    tokens = [entry for each in choices for entry in (each["logprobs"] or {}).get("content", [])]
    assert bytes(byte for token in tokens for byte in token["bytes"]).decode() == before
    pieces = [piece for each in choices for piece in each.get("draft", {}).get("pieces", [])]
    assert "".join(text for text, _ in pieces) == before


def test_logprobs_are_of_the_texts_tokens(client):
    """The end-of-text token is none of them; bytes of half characters are given as such."""
    answer = whole(client, CHAT, HI | {"logprobs": True, "top_logprobs": 2})
    ids = tokenizer()(REPLY)["input_ids"]
    listed = answer["choices"][0]["logprobs"]["content"]
    assert len(listed) == len(ids)
    assert bytes(byte for entry in listed for byte in entry["bytes"]).decode() == REPLY
    for token, entry in zip(ids, listed, strict=True):
        expected = choice(token, 2)
        assert entry["logprob"] == expected.log_probability
        assert [each["logprob"] for each in entry["top_logprobs"]] == [value for _, value in expected.top]


def test_logprobs_only_where_they_are_wanted(client):
    """top_logprobs alone means them, and does not against an explicit no."""
    for body, wanted in (({}, False), ({"top_logprobs": 0}, True), ({"logprobs": False, "top_logprobs": 2}, False)):
        answer = whole(client, CHAT, HI | body)
        assert (answer["choices"][0]["logprobs"] is not None) == wanted


def test_text_offsets_point_into_the_text(client):
    answer = whole(client, COMPLETIONS, TEXT | {"logprobs": 1, "max_tokens": 5})
    text, listed = answer["choices"][0]["text"], answer["choices"][0]["logprobs"]
    for token, offset in zip(listed["tokens"], listed["text_offset"], strict=True):
        assert text[offset:].startswith(token)
    assert listed["top_logprobs"][0] == {listed["tokens"][0]: listed["token_logprobs"][0]}


def test_draft_details(client):
    """The page colours by them."""
    found = events(client, CHAT, HI | {"draft_details": True})
    pieces = [piece for chunk in found for piece in chunk["choices"][0].get("draft", {}).get("pieces", [])]
    assert "".join(text for text, _ in pieces) == REPLY
    assert {drafted for _, drafted in pieces} == {True, False}


def test_a_limit_ends_a_text(client):
    for body in ({"max_tokens": 3}, {"max_completion_tokens": 3}):
        answer = whole(client, CHAT, HI | body)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 3


def test_without_a_limit_the_context_is_one(client, backend):
    answer = whole(client, CHAT, HI | {"ignore_eos": True})
    assert answer["usage"]["total_tokens"] == 256
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(("options", "limit"), [({}, 4096), ({"max_new_tokens": 6}, 6)])
def test_the_servers_own_limit(serve, backend, options, limit):
    """Of a chat that says nothing, as the model list has it; of a text that says less or more it is none."""
    backend._facts = structs.replace(backend.facts, context_length=100_000)
    client = serve(**options)
    assert client.get("/v1/models").json()["data"][0]["default_max_tokens"] == limit
    client.post(CHAT, json=HI)
    client.post("/v1/responses", json={"input": "Hi"})
    client.post(CHAT, json=HI | {"max_tokens": 5000})
    assert [request.options.max_new_tokens for request in backend.requests] == [limit, limit, 5000]
    backend._facts = structs.replace(backend.facts, context_length=5)
    assert client.get("/v1/models/tiny").json()["default_max_tokens"] == 4


def test_usage_in_every_chunk(client):
    found = events(client, CHAT, HI | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    counts = [chunk["usage"]["completion_tokens"] for chunk in found]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == len(tokenizer()(REPLY)["input_ids"]) + 1


def test_no_usage_unless_wanted(client):
    assert all("usage" not in chunk for chunk in events(client, CHAT, HI))


def test_messages_of_parts(client, backend):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "be kind"}, {"role": "user", "content": parts}]
    whole(client, CHAT, {"messages": messages})
    text = tokenizer().decode(backend.requests[0].tokens)
    assert text == "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n"


def test_line_ends_of_other_alphabets_break_no_event(client, backend):
    """JSON may have them raw, and readers that split lines by Unicode's rules would cut the event in two."""
    backend.reply = "a\u2028b\x85c\u2029d"
    answer = client.post(CHAT, json=HI | {"stream": True}).text
    found = [json.loads(line.removeprefix("data: ")) for line in answer.splitlines() if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in found) == backend.reply


def test_silence_is_filled_by_comments(client, backend, monkeypatch):
    """A proxy ends a connection on which nothing comes while a long prompt is read."""
    monkeypatch.setattr(streaming, "KEEP_ALIVE_SECONDS", 0.05)
    backend.pace = 0.12
    answer = client.post(CHAT, json=HI | {"stream": True, "max_tokens": 4}).text
    assert answer.startswith("data: {")
    assert answer.count("keep-alive") >= 4


def test_tokenize(client):
    ids = tokenizer()("Once <|im_end|>")["input_ids"]
    answer = whole(client, "/tokenize", {"prompt": "Once <|im_end|>", "return_token_strs": True})
    assert (answer["tokens"], answer["count"], answer["max_model_len"]) == (ids, len(ids), 256)
    assert "".join(answer["token_strs"]) == "Once <|im_end|>"
    chat = whole(client, "/tokenize", HI)["tokens"]
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert whole(client, "/detokenize", {"tokens": chat}) == {"prompt": text}
    assert EOS in chat


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


NAMED = {"name": "a", "schema": SCHEMA}


@pytest.mark.parametrize(
    ("body", "kind", "value"),
    [
        ({"response_format": {"type": "text"}}, None, None),
        ({"response_format": {"type": "json_object"}}, "json_object", ""),
        (
            {"response_format": {"type": "json_schema", "json_schema": NAMED}},
            "json_schema",
            "a",
        ),
        ({"guided_json": SCHEMA}, "json_schema", "a"),
        ({"guided_regex": "[a-c]+"}, "regex", "[a-c]+"),
        ({"guided_choice": ["yes", "no"]}, "choice", "yes"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "choice", "yes"),
    ],
)
def test_structured_output_reaches_the_engine(client, backend, body, kind, value):
    for path, more in ((CHAT, HI), (COMPLETIONS, TEXT)):
        whole(client, path, more | body)
        grammar = backend.requests.pop().grammar
        assert (grammar is None) == (kind is None)
        assert grammar is None or (grammar.kind == kind and value in grammar.value)


def test_echo_lists_the_prompt(client, backend):
    """As lm-eval reads it: an entry for each token of the prompt, the first without, then those of the text."""
    ids = tokenizer()("Once upon")["input_ids"]
    for prompt in ("Once upon", ids):
        body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
        (each,) = whole(client, COMPLETIONS, body)["choices"]
        assert each["text"] == "Once uponThe"
        listed = each["logprobs"]
        assert "".join(listed["tokens"]) == each["text"]
        assert listed["token_logprobs"] == [None, *(-token / 100 for token in [*ids[1:], 273])]
        assert listed["top_logprobs"][0] is None
        assert [each["text"][at:][: len(t)] for at, t in zip(listed["text_offset"], listed["tokens"], strict=True)] == (
            listed["tokens"]
        )
    assert backend.requests[0].options.prompt_logprobs == 1
    answer = whole(client, COMPLETIONS, {"prompt": [ids[:1], ids], "echo": True, "n": 2})
    assert [each["text"][:9] for each in answer["choices"]] == ["OThe lazy"] * 2 + ["Once upon"] * 2
    found = events(client, COMPLETIONS, {"prompt": "Once", "echo": True})
    assert "".join(chunk["choices"][0]["text"] for chunk in found).startswith("OnceThe lazy")
    assert backend.requests[-1].options.prompt_logprobs is None


def test_completions_list_the_end_of_text_token(client):
    """A harness that cuts off the last entry, as it asked for one token, must not lose one of the prompt's."""
    (each,) = whole(client, COMPLETIONS, TEXT | {"logprobs": 0})["choices"]
    assert each["finish_reason"] == "stop"
    assert len(each["logprobs"]["tokens"]) == len(tokenizer()(REPLY)["input_ids"]) + 1
    assert each["logprobs"]["tokens"][-1] == "<|im_end|>"
