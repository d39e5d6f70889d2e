"""An engine process without a model: it does with a request what the first of its token ids says.

    1 N        N parts of one token each, the words w0, w1, …, then the result
    2          a part each millisecond until it is cancelled
    3          nothing until it is cancelled
    4          kill -9 of itself
    5          the same, but only if it is the first to be asked so (by a file)
    6          one part, then kill -9 of itself
    7          one part, then deaf to all but SIGKILL
    8, 9, 12   an error, one that another try may not have, or one that is the request's own
    10 N       as 1, but the first process to be asked so kills itself behind two parts (by a file)
    11 N       likewise, and the next one has other tokens

The settings' target says how loading goes: `refuses`, `refuses-usage`, `dies`, `waits` (for the file), `loads` (says
so) or anything else;
concurrency is what they say, or 4. The file of both is FIRST, of the environment.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipex_assist.workers.local_pool import LocalPool

PLAY, ENDLESS, SILENT, DIE, DIE_FIRST, PART_AND_DIE, DEAF, WRONG, AGAIN, BREAKS, TURNS, REFUSED = range(1, 13)


def pool_of(count: int, concurrency: int = 4, target: str = "fake", first: Path | None = None) -> LocalPool:
    """A pool of such engines."""
    from ipex_assist.launch import LaunchCommand, Placement
    from ipex_assist.workers.local_pool import LocalPool

    argv = (sys.executable, __file__)
    settings = {"load": {"target": target}, "concurrency": concurrency}
    environ = {**os.environ, "FIRST": str(first)}
    places = [Placement((0,), 1, index=index, count=count) for index in range(count)]
    return LocalPool([LaunchCommand(argv, environ, {}, {}, place, argv) for place in places], settings)


def say(kind: str, **reply: Any) -> None:
    print(json.dumps({"type": kind, **reply}), flush=True)


def part(number: int, index: int) -> None:
    deltas = [[f"w{index} ", index, bool(index % 2)]]
    chunk = {"token_deltas": deltas, "logprobs": None, "drafted": 1, "accepted": index % 2}
    say("chunk", id=number, chunk=chunk)


class Fake:
    """One thread, which looks at what it is asked and plays a turn of what is under way."""

    def __init__(self, first: Path) -> None:
        self.first, self.done = first, 0
        self.running: dict[int, list[int]] = {}
        self.paused: dict[int, list[int]] = {}
        self.turn: dict[int, int] = {}

    def take(self, request: dict[str, Any]) -> None:
        kind, number = request["type"], request["id"]
        if kind == "cancel":
            if self.running.pop(number, None) or self.paused.pop(number, None):
                say("answer", id=number, error="cancelled")
        elif kind == "pause":
            if number in self.running:
                self.paused[number] = self.running.pop(number)
        elif kind == "resume":
            self.running[number] = self.paused.pop(number)
        else:
            self.running[number] = request["prompt"]
            self.turn[number] = 0

    def play(self) -> None:
        for number, prompt in list(self.running.items()):
            self.go_on(number, *prompt[:2])
            self.turn[number] += 1
        if self.running:
            time.sleep(0.001)

    def go_on(self, number: int, action: int, count: int = 0) -> None:
        turn = self.turn[number]
        again = self.first.exists()
        if action in (BREAKS, TURNS) and turn == 2 and not again:
            action = DIE_FIRST
        elif action == TURNS and again:
            part(number, turn + 1)
        elif action in (BREAKS, TURNS) or (action == DIE_FIRST and again):
            action = PLAY
        if action in (PLAY, ENDLESS) and (action == ENDLESS or turn < count):
            part(number, turn)
        elif action == PLAY:
            tokens = list(range(count))
            self.done += 1
            say("counts", engine={"finished": self.done, "rows": {"1": count}}, blocks={"used": 1, "total": 8})
            text = "".join(f"w{i} " for i in tokens)
            counts = {
                "prompt_tokens": 2,
                "new_tokens": count,
                "cached_tokens": 0,
                "stop_text": None,
                "ttft_s": 0.0,
                "decode_s": 0.0,
                "speedup": None,
                "times": {"assistant": {"later_tokens": None, "later_s": None}},
                "draft": {"drafted_by_position": None, "accepted_by_position": None},
                "draft_head": None,
            }
            ends = {"stop_reason": "length", "prompt_logprobs": None, "pid": os.getpid()}
            self.end(number, result={"text": text, "tokens": tokens, **counts, **ends})
        elif action in (DIE, DIE_FIRST):
            self.first.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        elif action in (PART_AND_DIE, DEAF):
            part(number, turn)
            time.sleep(0.05 if action == PART_AND_DIE else 1000)
            os.kill(os.getpid(), signal.SIGKILL)
        elif action in (WRONG, AGAIN, REFUSED):
            error = "this request is no good"
            self.end(number, result=None, error=error, again=action == AGAIN, refused=action == REFUSED)

    def end(self, number: int, **reply: Any) -> None:
        del self.running[number]
        say("answer", id=number, **reply)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    settings, first = json.loads(sys.stdin.readline()), Path(os.environ["FIRST"])
    target, concurrency = settings["load"]["target"], settings["concurrency"] or 4
    if target == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if target.startswith("refuses"):
        say("refused", message="there is no such model", exit_code=2 if target.endswith("usage") else 1)
        return
    while target == "waits" and not first.exists():
        time.sleep(0.01)
    if target == "loads":
        say("phase", name="packing weights", share=0.43, seconds=2.0)
    print("tokens are odd", file=sys.stderr, flush=True)
    about = {"target": "fake", "precision": "fp32", "executor": "fake", "context_length": 128, "vocab_size": 320}
    say("ready", model=about, load_s=0.0, concurrency=concurrency, pauses=True)
    fake, rest = Fake(first), b""
    while True:
        if select.select([0], [], [], 0 if fake.running else None)[0]:
            data = os.read(0, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                fake.take(json.loads(line))
        fake.play()


if __name__ == "__main__":
    main()
