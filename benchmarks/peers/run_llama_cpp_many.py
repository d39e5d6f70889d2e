"""One turn of llama.cpp with many prompts at once: its server, a slot for each of them; or llama-batched-bench.

The server is asked for whole answers, which costs it and the asking process the least; it times prompts and tokens
itself. llama-batched-bench has neither a server nor sampling, and reads prompts of one length, here of the mean: what
passes alone would give.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import turn

START_S = 300.0
BLOCK = 256  # to multiples of which llama.cpp rounds a sequence's context


def server_command(settings: Mapping[str, Any], port: int) -> list[str]:
    """Return the server and its arguments: nothing is kept of a prompt, since the warm-up has the same ones."""
    prompts, threads = settings["prompts"], str(settings["threads"])
    context = max(map(len, prompts)) + settings["new_tokens"] + 64
    argv = [
        *(str(Path(settings["programs"]) / "llama-server"), "-m", settings["target"]),
        *("--host", "127.0.0.1", "--port", str(port), "-t", threads, "-tb", threads),
        *("--threads-http", str(len(prompts) + 2)),  # each answer occupies one until its end
        *("-np", str(len(prompts)), "-c", str(context * len(prompts)), "--no-cache-prompt", "--cache-ram", "0"),
    ]
    if settings["assistant"]:
        argv += ["-md", settings["assistant"], "--spec-type", "draft-simple", "-td", threads, "-tbd", threads]
        argv += ["--spec-draft-n-max", str(settings["num_assistant_tokens"])]
    return argv


def ask(port: int, path: str, body: Mapping[str, Any] | None = None, timeout: float = 3600) -> tuple[int, Any]:
    """Return the status and the content of the server's answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    with contextlib.closing(connection):
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")


@contextlib.contextmanager
def server(settings: Mapping[str, Any]) -> Iterator[int]:
    """A server that has loaded its models; yields its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(server_command(settings, port), stdin=subprocess.DEVNULL, stdout=sys.stderr)
    try:
        deadline = time.monotonic() + START_S
        while True:
            if process.poll() is not None:
                raise SystemExit(f"llama-server ended with {process.returncode}")
            with contextlib.suppress(OSError):
                if ask(port, "/health", timeout=5)[0] == 200:
                    break
            if time.monotonic() > deadline:
                raise SystemExit(f"llama-server was not ready within {START_S:g} s")
            time.sleep(0.2)
        yield port
    finally:
        process.kill()
        process.wait()


def complete(port: int, prompt: list[int], new_tokens: int) -> dict[str, Any]:
    """Return the server's answer to one prompt, with the seconds that it took.

    Raises ValueError where it is not what was asked for.
    """
    body = {
        "prompt": prompt,
        "n_predict": new_tokens,
        "samplers": ["top_k"],  # the likeliest token, by the cheapest chain that takes it
        "top_k": 1,
        "ignore_eos": True,
        "cache_prompt": False,
        "return_tokens": True,
    }
    started = time.perf_counter()
    status, answer = ask(port, "/completion", body)
    seconds = time.perf_counter() - started
    if status != 200:
        raise ValueError(f"llama-server answered {status}: {answer}")
    times = answer["timings"]
    if (times["prompt_n"], times["predicted_n"]) != (len(prompt), new_tokens):
        raise ValueError(
            f"llama-server read {times['prompt_n']} tokens and wrote {times['predicted_n']}, and was asked for "
            f"{len(prompt)} and {new_tokens}"
        )
    return {**answer, "seconds": seconds}


def figures(answers: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Return what a turn came to; its passes are the server's own business.

    It times a prompt from when it begins to read it. The waiting for the prompts before it belongs to the first token,
    which so is all of an answer's time but that of the tokens behind.
    """
    times = [answer["timings"] for answer in answers]
    firsts = [answer["seconds"] - answer["timings"]["predicted_ms"] / 1000 for answer in answers]
    tokens = sum(each["predicted_n"] for each in times)
    return {
        "requests": len(answers),
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
        "first_token_s": turn.percentiles(firsts),
        "token_s": turn.percentiles([each["predicted_per_token_ms"] / 1000 for each in times]),
        "passes": None,
        "accepted": sum(each.get("draft_n_accepted", 0) for each in times),
        "drafted": sum(each.get("draft_n", 0) for each in times),
        "outputs": [turn.digest(answer["tokens"]) for answer in answers],
    }


def serve_all(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Ask for all texts at once, after a short turn that warms up."""
    prompts = settings["prompts"]
    with server(settings) as port, ThreadPoolExecutor(len(prompts)) as pool:
        for new_tokens in (settings["warm_up_tokens"], settings["new_tokens"]):
            started = time.perf_counter()
            answers = list(pool.map(lambda prompt: complete(port, prompt, new_tokens), prompts))  # noqa: B023
            seconds = time.perf_counter() - started
    return figures(answers, seconds)


def bench_command(settings: Mapping[str, Any]) -> list[str]:
    """Return llama-batched-bench and its arguments."""
    prompts = settings["prompts"]
    mean = round(sum(map(len, prompts)) / len(prompts))
    # Each sequence has keys and values of its own, as in the server: in a unified cache it would attend to all of them.
    context = len(prompts) * -(-(mean + settings["new_tokens"]) // BLOCK) * BLOCK
    return [
        *(str(Path(settings["programs"]) / "llama-batched-bench"), "-m", settings["target"]),
        *("-t", str(settings["threads"]), "-tb", str(settings["threads"]), "-c", str(context)),
        *("-npp", str(mean), "-ntg", str(settings["new_tokens"]), "-npl", str(len(prompts))),
        *("--output-format", "jsonl"),
    ]


def bench_figures(said: str) -> dict[str, Any]:
    """Return what llama-batched-bench reported. Raises ValueError where there is nothing."""
    lines = [line for line in said.splitlines() if line.lstrip().startswith("{")]
    if not lines:
        raise ValueError("no line of JSON in what llama-batched-bench printed")
    found = json.loads(lines[-1])
    tokens = found["pl"] * found["tg"]
    token_s = found["t_tg"] / found["tg"]
    return {
        "requests": found["pl"],
        "tokens": tokens,
        "seconds": found["t"],
        "tokens_per_s": tokens / found["t"],
        "first_token_s": {"p50": found["t_pp"], "p99": found["t_pp"]},
        "token_s": {"p50": token_s, "p99": token_s},
        "passes": None,
        "outputs": None,
    }


def bench(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run llama-batched-bench."""
    done = subprocess.run(
        bench_command(settings), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    print(done.stdout, done.stderr)
    if done.returncode:
        raise SystemExit(f"llama-batched-bench ended with {done.returncode}")
    return bench_figures(done.stdout + done.stderr)


def main() -> None:
    settings, answer = turn.settings_and_answer()
    found = bench(settings) if settings["program"] == "batched-bench" else serve_all(settings)
    answer({**found, "versions": settings["versions"]})


if __name__ == "__main__":
    main()
