"""What the draft did: llama.cpp's and vLLM's objects, Prometheus, and the bytes of tokens."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from fake_backend import ACCEPTED, DRAFTED, REPLY, tokenizer
from prometheus_client.parser import text_string_to_metric_families
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from ipex_assist.serve.backend import OutputChunk, ServerStatistics, TokenDelta
from ipex_assist.serve.draft_report import DraftCounts, report, speedup, timings
from ipex_assist.serve.token_bytes import TokenBytes

pytestmark = pytest.mark.one_stack

HI = {"messages": [{"role": "user", "content": "Hi"}]}
CHAT = "/v1/chat/completions"


@pytest.fixture
def client(serve):
    """Of a server that nobody has used."""
    return serve()


def samples(client) -> dict[tuple[str, str], float]:
    """Value by name and the labels besides the model's."""
    found = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "model_name"}
            found[sample.name, ",".join(labels.values())] = sample.value
    return found


def _part(drafted: int, accepted: int) -> OutputChunk:
    return OutputChunk([TokenDelta("a", 1, False)], None, drafted, accepted)


def test_counts_of_passes():
    """vLLM's own example: 43 steps of 3 drafted tokens, of which 10 were accepted."""
    counts = DraftCounts()
    for accepted, times in ((0, 39), (1, 1), (3, 3)):
        for _ in range(times):
            counts.count(_part(3, accepted))
    counts.count(_part(0, 0))  # nothing drafted: no step
    figures = report([], counts)["metrics"]["speculative_decoding"]
    assert figures["mean_acceptance_length"] == pytest.approx(1.2325581395348837)
    assert figures["draft_acceptance_rate"] == pytest.approx(0.07751937984496124)
    assert figures["acceptance_histogram"] == [39, 1, 0, 3]
    assert (figures["num_spec_steps"], figures["num_draft_tokens"]) == (43, 129)
    assert (figures["num_accepted_draft_tokens"], figures["num_spec_tokens"]) == (10, 3)
    twice = counts + DraftCounts(1, 4, 4, 4, [0, 0, 0, 0, 1])
    assert twice == DraftCounts(44, 133, 14, 4, [39, 1, 0, 3, 1])


def test_the_histogram_goes_to_the_longest_draft():
    """Load generators drop the figures of a text whose histogram has not num_spec_tokens + 1 entries."""
    counts = DraftCounts()
    counts.count(_part(5, 1))
    counts.count(_part(2, 2))
    figures = report([], counts)["metrics"]["speculative_decoding"]
    assert (figures["acceptance_histogram"], figures["num_spec_tokens"]) == ([0, 1, 1, 0, 0, 0], 5)


def test_timings():
    result = {"prompt_tokens": 14, "cached_tokens": 4, "new_tokens": 5, "ttft_s": 0.5, "decode_s": 2.0}
    found = timings([result], DraftCounts(2, 6, 3, 3, [1, 0, 0, 1]))
    assert found == {
        "cache_n": 4, "prompt_n": 10, "prompt_ms": 500, "prompt_per_token_ms": 50, "prompt_per_second": 20,
        "predicted_n": 5, "predicted_ms": 2000, "predicted_per_token_ms": 500, "predicted_per_second": 2,
        "draft_n": 6, "draft_n_accepted": 3,
    }  # fmt: skip
    one = timings(
        [{"prompt_tokens": 1, "cached_tokens": 0, "new_tokens": 1, "ttft_s": None, "decode_s": 0.0}], DraftCounts()
    )
    assert one["predicted_per_second"] is None
    assert "draft_n" not in one


def test_speedup_of_several_texts():
    """Weighted by their time; a text of which it is not known counts for neither side."""
    assert speedup([{"speedup": 2.0, "decode_s": 1.0}, {"speedup": 1.0, "decode_s": 3.0}]) == 1.25
    assert speedup([{"speedup": 2.0, "decode_s": 1.0}, {"speedup": None, "decode_s": 3.0}]) == 2.0
    assert speedup([{"speedup": None, "decode_s": 3.0}]) is None


def test_an_answer_and_prometheus_agree(client):
    """Load generators read the one, front ends the other."""
    before = samples(client)
    answer = client.post(CHAT, json=HI | {"n": 2}).json()
    figures = answer["metrics"]["speculative_decoding"]
    found = samples(client)
    name = "vllm:spec_decode_num_{}_total".format
    assert before[name("drafts"), ""] == 0
    assert found[name("drafts"), ""] == figures["num_spec_steps"]
    assert found[name("draft_tokens"), ""] == figures["num_draft_tokens"] == answer["timings"]["draft_n"]
    assert found[name("accepted_tokens"), ""] == figures["num_accepted_draft_tokens"]
    at = [found[name("accepted_tokens_per_pos"), str(position)] for position in range(DRAFTED)]
    assert at == [sum(figures["acceptance_histogram"][position + 1 :]) for position in range(DRAFTED)]
    assert len(figures["acceptance_histogram"]) == max(ACCEPTED) + 1
    usage = answer["usage"]
    assert found["vllm:generation_tokens_total", ""] == usage["completion_tokens"]
    assert found["vllm:prompt_tokens_total", ""] == 2 * usage["prompt_tokens"]
    assert found["vllm:time_to_first_token_seconds_count", ""] == 2
    assert found["vllm:inter_token_latency_seconds_count", ""] == usage["completion_tokens"] - 2
    assert found["vllm:request_success_total", "stop"] == 2


def test_nothing_drafted_nothing_said(client):
    answer = client.post(CHAT, json=HI | {"assisted": False}).json()
    assert answer["metrics"] == {"speculative_decoding": None, "draft": None, "speedup": None}
    assert "draft_n" not in answer["timings"]


def test_no_dates_among_the_counts(client):
    """vllm bench serve adds up every line that begins with a counter's name."""
    client.post(CHAT, json=HI)
    assert "_created" not in client.get("/metrics").text


def test_figures_of_the_engines(client, backend):
    engine = {
        "prompt_tokens": 30, "prefix_tokens": 10, "preempted": 2, "draft_s": 0.5, "target_s": 1.5, "choose_s": 0.1,
        "passes_by_rows": {"1": 4, "9": 1, "16": 2, "17": 5}, "seconds_by_rows": {"1": 0.4, "9": 0.1, "16": 0.5},
    }  # fmt: skip
    backend.figures = ServerStatistics(5, 3, engine, 20, 80, 15, slots=2, alive=1, restarts=4)
    found = samples(client)
    expected = {
        "vllm:num_requests_waiting": 5, "vllm:num_requests_running": 3, "vllm:kv_cache_usage_perc": 0.25,
        "ipex_assist:kv_blocks_used": 20, "ipex_assist:kv_blocks_total": 80, "ipex_assist:places": 2,
        "ipex_assist:kv_blocks_cached": 15,
        "ipex_assist:places_alive": 1, "ipex_assist:restarts_total": 4, "vllm:prefix_cache_queries_total": 40,
        "vllm:prefix_cache_hits_total": 10, "vllm:num_preemptions_total": 2, "ipex_assist:target_seconds_total": 1.5,
    }  # fmt: skip
    assert {name: found[name, ""] for name in expected} == expected
    passes = {rows: found["ipex_assist:passes_total", rows] for rows in ("1", "16", "32")}
    assert passes == {"1": 4, "16": 3, "32": 5}
    assert found["ipex_assist:pass_seconds_total", "16"] == pytest.approx(0.6)


def test_memory_limits_a_text(client, backend):
    """A chat says nothing of its length; what can never be held must not be asked of an engine."""
    backend._facts = msgspec.structs.replace(backend.facts, context_length=100_000)
    backend.figures = ServerStatistics(blocks_used=0, blocks_total=7, blocks_least=2, slots=2, alive=2)
    client.post(CHAT, json=HI)
    request = backend.requests[0]
    assert len(request.tokens) + request.options.max_new_tokens == 512
    answer = client.post("/v1/completions", json={"prompt": [5] * 512})
    assert answer.status_code == 400
    assert "this server's memory" in answer.json()["error"]["message"]


def test_bytes_of_byte_level_tokens():
    texts = TokenBytes(tokenizer())
    ids = tokenizer()("café 日本 <|im_end|>")["input_ids"]
    assert b"".join(texts.bytes_of(token) for token in ids).decode() == "café 日本 <|im_end|>"
    assert len(ids) > len(set("café 日本"))  # some characters are of several tokens
    assert texts.text_of(tokenizer()("日")["input_ids"][0]) == "\\xe6"
    assert texts.bytes_of(10_000) == b""


def test_bytes_of_sentencepiece_tokens():
    """Also of a vocabulary with the letter that stands for a space in a byte-level one, as Llama 2's has it."""
    vocabulary = {"<s>": 0, "▁Hi": 1, "▁": 2, "<0xC3>": 3, "<0xA9>": 4, "o": 5, "Ġ": 6, "é": 7}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")
    texts = TokenBytes(wrapped)
    found = [texts.bytes_of(token) for token in range(8)]
    assert found == [b"<s>", b" Hi", b" ", b"\xc3", b"\xa9", b"o", "Ġ".encode(), "é".encode()]


def test_bytes_are_what_the_decoder_writes():
    """Of tokens that were added, which it writes as all others; without byte fallback; and between words."""
    vocabulary = {"<s>": 0, "▁Hi": 1, "▁": 2, "<0x41>": 3, "o": 4}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.add_tokens(["<0x42>", "a▁b"])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    texts = TokenBytes(PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>"))
    assert [texts.bytes_of(token) for token in (3, 5, 6)] == [b"A", b"B", b"a b"]
    backend.decoder = decoders.Sequence([decoders.Metaspace()])
    texts = TokenBytes(PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>"))
    assert [texts.bytes_of(token) for token in (1, 3)] == [b" Hi", b"<0x41>"]
    words = Tokenizer(models.WordLevel({"<unk>": 0, "Hi": 1, "you": 2}, unk_token="<unk>"))
    texts = TokenBytes(PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>"))
    assert [texts.bytes_of(token) for token in (0, 1, 2)] == [b"<unk>", b" Hi", b" you"]


def test_openapi_says_what_is_true(serve, client, backend):
    document = client.get("/openapi.json").json()
    body = json.dumps(document)
    assert "422" not in document["paths"][CHAT]["post"]["responses"]
    assert "securitySchemes" not in document["components"]
    assert "x-token-id" not in body
    ids = document["components"]["schemas"]["DetokenizeRequest"]["properties"]["tokens"]["items"]
    assert ids["maximum"] == backend.facts.vocab_size - 1
    temperature = document["components"]["schemas"]["ChatRequest"]["properties"]["temperature"]["anyOf"][0]["anyOf"]
    assert temperature == [{"const": 0}, {"type": "number", "minimum": 0.001, "maximum": 2}]
    closed = serve(api_key=("a",)).get("/openapi.json").json()
    assert closed["paths"][CHAT]["post"]["security"] == [{"key": []}]
    assert "security" not in closed["paths"]["/health"]["get"]
    assert REPLY not in body


def test_the_dashboard_asks_for_what_there_is(client, backend):
    """docs/grafana.json names no metric that the server does not have, and leaves none of the draft's out."""
    engine = {"passes_by_rows": {"1": 1}, "seconds_by_rows": {"1": 1.0}}
    backend.figures = ServerStatistics(engine=engine, blocks_used=1, blocks_total=4, slots=1, alive=1)
    client.post(CHAT, json=HI)
    backend.room = 0
    client.post(CHAT, json=HI)
    known = {name for name, _ in samples(client)}
    dashboard = json.loads((Path(__file__).parents[2] / "docs" / "grafana.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"(?:vllm|ipex_assist):\w+", target["expr"])
    }
    assert asked <= known
    assert {name for name in known if "spec_decode" in name} <= asked
