"""Images by HTTP, batch and the command: each way gives the text that Python gives."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import batch_runs
import httpx
import pytest
import seeing_models
from conftest import HAS_NATIVE, HAS_SERVE
from native_server import NativeServer
from seeing_models import content, data_url, picture

from ipex_assist.api import load

pytestmark = [pytest.mark.skipif(not (HAS_NATIVE and HAS_SERVE), reason="of a server"), pytest.mark.one_stack]
PAGE, OTHER = picture(24, 16, 3), picture(16, 24, 4)
ASKED = "What is on it?"
LENGTH = {"max_new_tokens": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seeing_models.talking(tmp_path_factory.mktemp("talking"))


@pytest.fixture(scope="module")
def texts(folder: Path) -> dict[str, Any]:
    """What Python gives."""
    both = [{"type": "image", "image": PAGE}, {"type": "text", "text": ASKED}, {"type": "image", "image": OTHER}]
    with load(folder, None, precision="fp32", executor="native", kv_memory="8M") as model:
        return {
            "page": model.generate(ASKED, chat=True, images=[PAGE], **LENGTH),
            "other": model.generate(ASKED, chat=True, images=[OTHER], **LENGTH),
            "both": model.generate([{"role": "user", "content": both}], **LENGTH),
            "none": model.generate(ASKED, chat=True, **LENGTH),
        }


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    server = NativeServer("-m", folder)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        while client.get("/ready").status_code != 200:
            time.sleep(0.05)
        yield client
    server.end()


def chat(client: httpx.Client, parts: Any, **more: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 12, "temperature": 0, **more}
    return client.post("/v1/chat/completions", json=body)


def test_texts_differ(texts: dict[str, Any]) -> None:
    """Else the tests below would show nothing."""
    assert len({result.text for result in texts.values()}) == 4


def test_chat_completions(client: httpx.Client, texts: dict[str, Any]) -> None:
    """One image and two, in the order of the parts; usage counts their rows."""
    image = {"type": "image_url", "image_url": {"url": data_url(PAGE), "detail": "high"}}
    other = {"type": "image_url", "image_url": data_url(OTHER)}
    text = {"type": "text", "text": ASKED}
    answer = chat(client, [image, text]).json()
    assert answer["choices"][0]["message"]["content"] == texts["page"].text
    assert answer["usage"]["prompt_tokens"] == texts["page"].prompt_tokens
    assert chat(client, [image, text, other]).json()["choices"][0]["message"]["content"] == texts["both"].text
    assert chat(client, ASKED).json()["choices"][0]["message"]["content"] == texts["none"].text
    again = chat(client, [image, text]).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_messages(client: httpx.Client, texts: dict[str, Any]) -> None:
    """Anthropic's blocks, and an image that came of a call."""
    source = {"type": "base64", "media_type": "image/jpeg", "data": data_url(OTHER).partition(",")[2]}
    block = {"type": "image", "source": source}
    asked = {"role": "user", "content": [block, {"type": "text", "text": ASKED}]}
    body = {"model": "claude-x", "max_tokens": 12, "temperature": 0, "messages": [asked]}
    answer = client.post("/v1/messages", json=body).json()
    assert answer["content"] == [{"type": "text", "text": texts["other"].text}]
    assert answer["usage"]["input_tokens"] + answer["usage"]["cache_read_input_tokens"] == texts["other"].prompt_tokens
    asked_only = {"model": "claude-x", "messages": [asked]}
    counted = client.post("/v1/messages/count_tokens", json=asked_only).json()
    assert counted == {"input_tokens": texts["other"].prompt_tokens}
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [block]}
    turns = [
        *({"role": "user", "content": "Look."}, {"role": "assistant", "content": [call]}),
        {"role": "user", "content": [result, {"type": "text", "text": ASKED}]},
    ]
    found = client.post("/v1/messages", json={**body, "messages": turns}).json()
    blind = [
        {**turns[0]},
        turns[1],
        {"role": "user", "content": [{**result, "content": "none"}, turns[2]["content"][1]]},
    ]
    without = client.post("/v1/messages", json={**body, "messages": blind}).json()
    rows = texts["other"].prompt_tokens - texts["none"].prompt_tokens
    seen, unseen = (
        each["usage"]["input_tokens"] + each["usage"]["cache_read_input_tokens"] for each in (found, without)
    )
    assert seen - unseen >= rows


def test_tokenize(client: httpx.Client, texts: dict[str, Any]) -> None:
    """The ids of the prompt as it is read, with a placeholder for each row."""
    parts = [{"type": "image_url", "image_url": {"url": data_url(PAGE)}}, {"type": "text", "text": ASKED}]
    found = client.post("/tokenize", json={"messages": [{"role": "user", "content": parts}]}).json()
    assert found["count"] == len(found["tokens"]) == texts["page"].prompt_tokens
    place = max(found["tokens"], key=found["tokens"].count)
    assert found["tokens"].count(place) == 6
    parts[0]["image_url"] = {"url": "data:image/png;base64,AAAA"}
    refused = client.post("/tokenize", json={"messages": [{"role": "user", "content": parts}]})
    assert refused.status_code == 400
    assert "no image" in refused.json()["error"]["message"]


def test_responses(client: httpx.Client, texts: dict[str, Any]) -> None:
    """OpenAI's newer form, and an answer that follows it."""
    parts = [{"type": "input_image", "image_url": data_url(PAGE)}, {"type": "input_text", "text": ASKED}]
    body = {"input": [{"role": "user", "content": parts}], "max_output_tokens": 12, "temperature": 0}
    answer = client.post("/v1/responses", json=body).json()
    assert answer["output"][0]["content"][0]["text"] == texts["page"].text
    follows = {"input": "And?", "previous_response_id": answer["id"], "max_output_tokens": 4}
    assert client.post("/v1/responses", json=follows).json()["usage"]["input_tokens"] > texts["page"].prompt_tokens


def test_wrong_images_are_refused_and_nobody_waits(client: httpx.Client, texts: dict[str, Any]) -> None:
    """In a sentence each, with status 400; the next request is answered."""
    truncated = content(PAGE)[:60]
    for url, says in (
        ("https://example.com/a.png", "nothing is fetched"),
        ("file:///etc/passwd", "nothing is fetched"),
        ("data:image/png;base64,@@@@", "base64 of an image is damaged"),
        ("data:image/png,abc", "base64"),
        ("data:image/png;base64,AAAA", "no image"),
        (f"data:image/png;base64,{seeing_models.base64.b64encode(truncated).decode()}", "damaged|no image"),
    ):
        refused = chat(client, [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": ASKED}])
        assert refused.status_code == 400, refused.text
        assert re.search(says, refused.json()["error"]["message"]), refused.text
    named = {"type": "image_url", "image_url": data_url(PAGE)}
    assistant = [{"role": "assistant", "content": [named]}, {"role": "user", "content": ASKED}]
    assert client.post("/v1/chat/completions", json={"messages": assistant}).status_code == 400
    assert chat(client, ASKED).json()["choices"][0]["message"]["content"] == texts["none"].text


def test_batch(folder: Path, texts: dict[str, Any], tmp_path: Path) -> None:
    """Files below the folder of the prompts, and no others."""
    scans = tmp_path / "run" / "scans"
    scans.mkdir(parents=True)
    (scans / "page.png").write_bytes(content(PAGE))
    (tmp_path / "secret.png").write_bytes(content(OTHER))
    parts = [{"type": "image", "image": "scans/page.png"}, {"type": "text", "text": ASKED}]
    parts.append({"type": "image_url", "image_url": {"url": data_url(OTHER)}})
    prompts = batch_runs.write_prompts(
        tmp_path / "run" / "prompts.jsonl",
        [
            {"id": "page", "prompt": ASKED, "images": ["scans/page.png"]},
            {"id": "both", "messages": [{"role": "user", "content": parts}]},
            {"id": "none", "prompt": ASKED, "chat": True},
            {"id": "outside", "prompt": ASKED, "images": ["../secret.png"]},
            {"id": "missing", "prompt": ASKED, "images": ["scans/none.png"]},
        ],
    )
    out = tmp_path / "results.jsonl"
    flags = [
        "--no-launch",
        "--offline",
        "--threads",
        1,
        "--precision",
        "fp32",
        "--executor",
        "native",
        "--kv-memory",
        "8M",
    ]
    more = ["--no-assisted", "--no-cache-packed", "--max-new-tokens", 12]
    batch_runs.run(batch_runs.REAL, prompts, "-o", out, "-m", folder, *flags, *more)
    found = batch_runs.by_id(out)
    for name in ("page", "both", "none"):
        assert found[name]["text"] == texts[name].text
    assert "is not below" in found["outside"]["error"]
    assert "cannot be read" in found["missing"]["error"]


def test_command(folder: Path, texts: dict[str, Any], tmp_path: Path) -> None:
    """--image, before the prompt."""
    file = tmp_path / "page.png"
    file.write_bytes(content(PAGE))
    command = [sys.executable, "-m", "ipex_assist", "-m", folder, "--image", file, ASKED, "--no-launch", "--offline"]
    command += ["--precision", "fp32", "--executor", "native", "--no-assisted", "--json", "--max-new-tokens", "12"]
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["text"] == texts["page"].text
