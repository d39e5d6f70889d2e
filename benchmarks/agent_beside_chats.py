"""First tokens of people who chat beside an agent that sends long prompts one after the other, through the server.

    python benchmarks/agent_beside_chats.py -m FOLDER [--prompt-tokens 7500] [--seconds 60]

Three measurements of one server: chats alone, one at a time; the agent alone; both. The 99th percentile of the chats'
first tokens should be at most three times that of an idle server, and the agent read nine tenths at least of what it
reads alone. Prompts are token ids at random, so that the prefix cache knows none of them.
"""

from __future__ import annotations

import argparse
import http.client
import json
import threading
import time
from collections.abc import Callable

import measure
import numpy as np
from http_load import TIMEOUT, Arrived, _events, body
from own_server import OwnServer

CHAT_TOKENS, CHAT_WORDS, AGENT_WORDS = 200, 40, 20
IDLE_CHATS = 12
VOCABULARY = 40_000  # ids below this are of every model that is measured


class Load:
    """Requests to one server. chance: of prompts and pauses."""

    def __init__(self, address: tuple[str, int], seed: int) -> None:
        self._address, self.chance = address, np.random.default_rng(seed)

    def ask(self, tokens: int, words: int) -> Arrived:
        """Send a prompt and take in its answer; times are absolute."""
        prompt = [int(token) for token in self.chance.integers(1000, VOCABULARY, tokens)]
        asked = body(prompt, {"max_tokens": words, "temperature": 0, "ignore_eos": True})
        arrived = Arrived(time.perf_counter())
        connection = http.client.HTTPConnection(*self._address, timeout=TIMEOUT)
        try:
            for event in _events(connection, asked):
                arrived.take(event, time.perf_counter())
        finally:
            connection.close()
        return arrived


def first_token_s(arrived: Arrived) -> float:
    """Seconds from the question to the first token."""
    return arrived.deliveries[0][0] - arrived.submitted_s


def agent(load: Load, tokens: int, until: float) -> list[Arrived]:
    """Ask again and again until then; the last answer comes later."""
    found = []
    while time.perf_counter() < until:
        found.append(load.ask(tokens, AGENT_WORDS))
    return found


def chat(load: Load, pause_s: float, until: float) -> list[Arrived]:
    """Ask after pauses at random, as long on average as `pause_s`."""
    found = []
    while True:
        time.sleep(load.chance.exponential(pause_s))
        if time.perf_counter() >= until:
            return found
        found.append(load.ask(CHAT_TOKENS, CHAT_WORDS))


def together(work: list[Callable[[], list[Arrived]]]) -> list[list[Arrived]]:
    """What each of these gives, run at the same time."""
    found: list[list[Arrived]] = [[] for _ in work]

    def run(place: int) -> None:
        found[place] = work[place]()

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def tokens_per_s(answers: list[Arrived]) -> float:
    """Prompt tokens that an agent had read in each second of its time."""
    seconds = answers[-1].deliveries[-1][0] - answers[0].submitted_s
    return sum(each.prompt_tokens for each in answers) / seconds


def main() -> None:
    """Measure, and print what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--prompt-tokens", type=int, default=7500)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--chats", type=int, default=10)
    parser.add_argument("--pause", type=float, default=60.0, help="seconds between an answer and the next question")
    arguments = parser.parse_args()
    server = ["-m", arguments.model, "--no-assisted", "--concurrency", "16"]
    with OwnServer(server) as own:
        load = Load(own.address, 0)
        load.ask(CHAT_TOKENS, CHAT_WORDS)  # warms up
        idle = [first_token_s(load.ask(CHAT_TOKENS, CHAT_WORDS)) for _ in range(IDLE_CHATS)]
        alone = agent(load, arguments.prompt_tokens, time.perf_counter() + arguments.seconds)
        until = time.perf_counter() + arguments.seconds
        people = [Load(own.address, 1 + number) for number in range(arguments.chats)]
        reading, *answers = together(
            [
                lambda: agent(load, arguments.prompt_tokens, until),
                *(lambda each=each: chat(each, arguments.pause, until) for each in people),  # type: ignore[misc]
            ]
        )
    waits = [first_token_s(each) for found in answers for each in found]
    figures = {
        "benchmark": "agent_beside_chats",
        "time": measure.now(),
        "machine": measure.machine(),
        "model": arguments.model,
        "agent_prompt_tokens": arguments.prompt_tokens,
        "chats": len(waits),
        "idle_first_token_s": {"median": float(np.median(idle)), "samples": idle},
        "first_token_s": {str(q): float(np.quantile(waits, q)) for q in (0.5, 0.9, 0.99, 1)},
        "first_token_over_idle": float(np.quantile(waits, 0.99) / np.median(idle)),
        "agent_tokens_per_s_alone": tokens_per_s(alone),
        "agent_tokens_per_s_beside": tokens_per_s(reading),
        "agent_beside_over_alone": tokens_per_s(reading) / tokens_per_s(alone),
        "samples": waits,
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
