"""Load generators of the field report the acceptance that we do: read by their rules, and by themselves where they are.

What they read is replayed from vLLM 0.32 (`vllm bench serve`: /metrics) and aiperf 0.13 (the answers). The tools
themselves run where they are installed and on PATH; they bring so many packages (aiperf a hundred, 670 MB) that CI has
none of them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_backend import FakeBackend, serving, tokenizer

pytestmark = [pytest.mark.outside, pytest.mark.one_stack]

INSTALL = {"vllm": "vllm", "guidellm": "guidellm", "aiperf": "aiperf"}  # commands, and packages that have them
PROMPT_TOKENS, NEW_TOKENS = 20, 16


@dataclass
class Acceptance:
    """Passes that verified drafts, drafted and accepted tokens; of these, how many at each position."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    at: tuple[int, ...] = ()

    def __sub__(self, before: Acceptance) -> Acceptance:
        earlier = [*before.at, *[0] * len(self.at)]
        at = tuple(now - then for now, then in zip(self.at, earlier, strict=False))
        return Acceptance(
            self.drafts - before.drafts, self.drafted - before.drafted, self.accepted - before.accepted, at
        )


def scraped(text: str) -> Acceptance:
    """What `vllm bench serve` makes of /metrics (fetch_spec_decode_metrics): by parts of names, without a parser."""
    found, at = Acceptance(), dict[int, int]()
    for line in text.split("\n"):
        if not line.startswith("vllm:spec_decode"):
            continue
        labelled, value = line.split(None, 1)
        name = labelled.split("{")[0]
        if not name.endswith("_total"):
            continue
        count = int(float(value))
        if "num_drafts" in name:
            found.drafts += count
        elif "num_draft_tokens" in name:
            found.drafted += count
        elif "num_accepted_tokens_per_pos" in name:
            place = re.search('position="([^"]*)"', line)
            assert place is not None
            at[int(place[1])] = at.get(int(place[1]), 0) + count
        elif "num_accepted_tokens" in name:
            found.accepted += count
    found.at = tuple(at[position] for position in sorted(at))
    return found


def adapted(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What aiperf makes of an answer's events (VLLMSpecDecodeAdapter): all must fit, else it has nothing."""
    said = [event["metrics"]["speculative_decoding"] for event in events if isinstance(event.get("metrics"), dict)]
    said = [figures for figures in said if figures]
    if not said:
        return None
    assert len(said) == 1, "it drops texts whose figures come twice"
    (figures,) = said
    histogram = figures["acceptance_histogram"]
    assert all(type(count) is int for count in histogram)
    assert len(histogram) == figures["num_spec_tokens"] + 1
    assert sum(histogram) == figures["num_spec_steps"]
    assert sum(number * count for number, count in enumerate(histogram)) == figures["num_accepted_draft_tokens"]
    assert figures["num_accepted_draft_tokens"] <= figures["num_draft_tokens"]
    for name in ("mean_acceptance_length", "draft_acceptance_rate"):
        assert isinstance(figures[name], float)
    return figures


def summed(answers: list[dict[str, Any] | None]) -> Acceptance:
    """Several answers' figures together."""
    said = [figures for figures in answers if figures]
    longest = max((len(figures["acceptance_histogram"]) for figures in said), default=1)
    total = [
        sum(figures["acceptance_histogram"][n] for figures in said if n < len(figures["acceptance_histogram"]))
        for n in range(longest)
    ]
    at = [sum(total[position + 1 :]) for position in range(longest - 1)]
    return Acceptance(
        sum(figures["num_spec_steps"] for figures in said),
        sum(figures["num_draft_tokens"] for figures in said),
        sum(figures["num_accepted_draft_tokens"] for figures in said),
        tuple(count for count in at if count),
    )


@pytest.mark.parametrize("clients", [1, 8, 32])
def test_what_is_scraped_equals_the_sum_of_the_answers(clients: int) -> None:
    """Texts of all lengths, whole and streamed, by both paths; some decoded plainly, or too short for drafts."""

    def ask(client: httpx.Client, number: int) -> dict[str, Any] | None:
        body = {"max_tokens": 1 + number % 12, "ignore_eos": True, "assisted": number % 7 != 6, "prompt": "Once"}
        path = "/v1/completions"
        if number % 3 == 0:
            body["messages"], path = [{"role": "user", "content": "Hi"}], "/v1/chat/completions"
        if number % 5 == 4:
            return adapted([client.post(path, json=body).json()])
        options = {"include_usage": number % 4 != 3, "continuous_usage_stats": number % 2 == 0}
        text = client.post(path, json={**body, "stream": True, "stream_options": options}).text
        events = [event.removeprefix("data: ") for event in text.split("\n\n") if event.startswith("data: {")]
        return adapted([json.loads(event) for event in events])

    with serving(FakeBackend()) as client:
        assert scraped(client.get("/metrics").text) == Acceptance()  # there, and nothing: else it reports no drafts
        assert "vllm:spec_decode_num_drafts_total{" in client.get("/metrics").text
        with ThreadPoolExecutor(clients) as pool:
            answers = list(pool.map(lambda number: ask(client, number), range(max(24, 2 * clients))))
        found = scraped(client.get("/metrics").text)
    assert found == summed(answers)
    assert found.drafts > 24
    assert None in answers


# The tools themselves.


@dataclass
class Run:
    """A server under load. report: what the tool writes, or the folder of it."""

    url: str
    tokenizer: Path
    clients: int
    requests: int
    report: Path


def by_vllm(run: Run) -> tuple[list[str], Callable[[], Acceptance]]:
    """It scrapes /metrics."""
    argv = ["vllm", "bench", "serve", "--backend", "openai", "--endpoint", "/v1/completions", "--base-url", run.url]
    argv += ["--model", "tiny", "--tokenizer", str(run.tokenizer), "--dataset-name", "random", "--temperature", "0"]
    argv += ["--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(NEW_TOKENS), "--disable-tqdm"]
    argv += ["--num-prompts", str(run.requests), "--max-concurrency", str(run.clients)]
    argv += ["--save-result", "--result-dir", str(run.report), "--result-filename", "report.json"]

    def read() -> Acceptance:
        found = json.loads((run.report / "report.json").read_text())
        assert (found["completed"], found["total_output_tokens"]) == (run.requests, run.requests * NEW_TOKENS)
        drafts, drafted = found["spec_decode_num_drafts"], found["spec_decode_draft_tokens"]
        accepted = found["spec_decode_accepted_tokens"]
        assert found["spec_decode_acceptance_rate"] == pytest.approx(100 * accepted / drafted)
        assert found["spec_decode_acceptance_length"] == pytest.approx(1 + accepted / drafts)
        rates = found["spec_decode_per_position_acceptance_rates"]
        return Acceptance(drafts, drafted, accepted, tuple(round(rate * drafts) for rate in rates))

    return argv, read


def by_guidellm(run: Run) -> tuple[list[str], Callable[[], Acceptance]]:
    """It keeps each answer's metrics."""
    report = run.report / "report.json"
    argv = ["guidellm", "run", "--disable-console", "--profile", f"kind=concurrent,streams={run.clients}"]
    argv += ["--backend", f"kind=openai_http,target={run.url},request_format=/v1/completions"]
    argv += ["--constraint", f"kind=max_requests,count={run.requests}"]
    argv += ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={NEW_TOKENS}"]
    argv += ["--tokenizer", f"kind=huggingface_auto,model={run.tokenizer}", "--output", f"kind=json,path={report}"]

    def read() -> Acceptance:
        (benchmark,) = json.loads(report.read_text())["benchmarks"]
        requests = benchmark["requests"]["successful"]
        assert len(requests) == run.requests
        return summed([request["response_metrics"]["speculative_decoding"] for request in requests])

    return argv, read


def by_aiperf(run: Run) -> tuple[list[str], Callable[[], Acceptance]]:
    """It checks each answer's metrics, and adds them up."""
    argv = ["aiperf", "profile", "--model", "tiny", "--url", run.url, "--endpoint-type", "completions", "--streaming"]
    argv += ["--tokenizer", str(run.tokenizer), "--concurrency", str(run.clients), "--request-count", str(run.requests)]
    argv += ["--isl", str(PROMPT_TOKENS), "--osl", str(NEW_TOKENS), "--extra-inputs", "ignore_eos:true"]
    argv += ["--ui", "none", "--no-gpu-telemetry", "--artifact-dir", str(run.report)]

    def read() -> Acceptance:
        found = json.loads((run.report / "profile_export_aiperf.json").read_text())
        histogram = {int(at): count for at, count in found["pooled_spec_decode_acceptance_histogram"].items()}
        drafts, drafted, accepted = (
            int(found[f"total_{name}"]["avg"])
            for name in ("spec_decode_steps", "draft_tokens", "accepted_draft_tokens")
        )
        assert found["spec_decode_overall_draft_acceptance_rate"]["avg"] == pytest.approx(100 * accepted / drafted)
        at = [sum(count for taken, count in histogram.items() if taken > place) for place in range(max(histogram))]
        return Acceptance(drafts, drafted, accepted, tuple(at))

    return argv, read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of the tokenizer."""
    tokenizer().save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


@pytest.mark.parametrize("clients", [1, 32])
@pytest.mark.parametrize("tool", [by_vllm, by_guidellm, by_aiperf])
def test_a_tool_reports_what_we_do(
    tool: Callable[[Run], tuple[list[str], Callable[[], Acceptance]]], clients: int, folder: Path, tmp_path: Path
) -> None:
    name = tool.__name__.removeprefix("by_")
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed, or not on PATH (pip install {INSTALL[name]}, best somewhere of its own)")
    report = tmp_path / "report"
    report.mkdir()
    with serving(FakeBackend()) as client:
        run = Run(str(client.base_url).rstrip("/"), folder, clients, 2 * clients, report)
        argv, read = tool(run)
        before = scraped(client.get("/metrics").text)
        environ = {**os.environ, "HF_HOME": str(tmp_path)}
        environ.pop("HF_HUB_OFFLINE", None)  # by which aiperf takes the folder's path for a name on the hub
        done = subprocess.run(argv, cwd=report, env=environ, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        ours = scraped(client.get("/metrics").text) - before
    assert read() == ours
    assert ours.drafts > 0
