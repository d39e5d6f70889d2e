"""The queue of grammars: those that take their time stop no others for long, and wait within the server's limits."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="the extra serve brings it")

from ipex_assist.env.errors import UsageError
from ipex_assist.serve import service
from ipex_assist.serve.backend import Busy
from ipex_assist.serve.grammar_checker import GrammarChecker
from ipex_assist.speculative.choosing.grammar import GrammarSpec

pytestmark = pytest.mark.one_stack

# In place of grammar_trial: a regular expression `wait…` waits until the file FREE is there, `die` ends the process as
# long as the file DEAD is not there, and all are good.
PROGRAM = """
import json, os, sys, time
free, dead, tried = sys.argv[1:]
print("ready", flush=True)
for line in sys.stdin:
    value = json.loads(line)["value"]
    open(tried, "a").write(value + "\\n")
    while value.startswith("wait") and not os.path.exists(free):
        time.sleep(0.005)
    if value.startswith("die") and not os.path.exists(dead):
        open(dead, "w").close()
        os._exit(1)
    if value == "always die":
        os._exit(1)
    print(json.dumps({"reason": None}), flush=True)
"""
COMPLETIONS = "/v1/completions"


class Trials:
    """The files of PROGRAM."""

    def __init__(self, folder: Path) -> None:
        self.free, self.dead, self._tried = folder / "free", folder / "dead", folder / "tried"

    def program(self) -> list[str]:
        return [sys.executable, "-c", PROGRAM, str(self.free), str(self.dead), str(self._tried)]

    @property
    def tried(self) -> list[str]:
        return self._tried.read_text().split("\n")[:-1] if self._tried.exists() else []


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trials:
    """Of servers that are started after this."""
    found = Trials(tmp_path)
    monkeypatch.setattr(service, "GrammarChecker", partial(GrammarChecker, found.program))
    return found


def ask(client: httpx.Client, value: str) -> httpx.Response:
    with httpx.Client(base_url=client.base_url, timeout=20, verify=False) as own:
        return own.post(COMPLETIONS, json={"prompt": "a", "guided_regex": value, "max_tokens": 1})


def until(condition: Callable[[], Any]) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def test_one_that_takes_its_time_stops_no_others(serve, trials):
    client = serve()
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(ask, client, "wait")
        until(lambda: trials.tried == ["wait"])
        for value in ("a", "b", "c"):
            assert ask(client, value).status_code == 200
        assert not slow.done()
        trials.free.touch()
        assert slow.result().status_code == 200


def test_the_queue_is_bounded(serve, trials):
    """Two are tried, two wait, and a fifth is told to come again; those that are alike are one."""
    client = serve(max_queue=2)
    with ThreadPoolExecutor(8) as threads:
        slow = [threads.submit(ask, client, f"wait{number % 4}") for number in range(8)]
        until(lambda: len(trials.tried) == 2)
        until(lambda: ask(client, "other").status_code == 429)
        answer = ask(client, "other")
        assert answer.json()["error"]["code"] == "queue_full"
        assert "2 grammars wait" in answer.json()["error"]["message"]
        assert int(answer.headers["retry-after"]) >= 1
        counted = client.get("/metrics").text
        assert re.search(r"^ipex_assist:queue_full_total{.*} [1-9]", counted, re.MULTILINE), counted
        trials.free.touch()
        assert {each.result().status_code for each in slow} == {200}
    assert sorted(value for value in trials.tried if value != "other") == [f"wait{number}" for number in range(4)]
    assert ask(client, "other").status_code == 200


def test_waiting_counts_in_the_time_limit(serve, trials, backend):
    client = serve(timeout=0.5)
    answer = ask(client, "wait")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "timeout"
    assert not backend.requests
    trials.free.touch()
    assert ask(client, "a").status_code == 200
    assert backend.timeouts[0] < 0.5  # what is left of it


def test_a_checker_that_died_says_nothing_of_its_grammar(trials):
    """Others may have killed it: the grammar is tried once more."""
    checker = GrammarChecker(trials.program)
    try:
        checker.check(GrammarSpec("regex", "die"))
        assert trials.tried == ["die", "die"]
        with pytest.raises(UsageError, match="too much memory"):
            checker.check(GrammarSpec("regex", "always die"))
        assert trials.tried[2:] == ["always die"] * 2
        with pytest.raises(UsageError, match="too much memory"):
            checker.check(GrammarSpec("regex", "always die"))
        assert len(trials.tried) == 4
    finally:
        checker.close()


def test_who_no_longer_waits_takes_no_place(trials):
    """The grammar is tried all the same, and its verdict is there for the next one."""

    async def main() -> None:
        checker, slow = GrammarChecker(trials.program, processes=1, most=1), GrammarSpec("regex", "wait")
        try:
            for _ in range(2):
                with pytest.raises(TimeoutError, match="not checked in the time"):
                    await checker.checked(slow, 0.05)
            waiting = asyncio.ensure_future(checker.checked(GrammarSpec("regex", "a"), 20))
            await asyncio.sleep(0)
            with pytest.raises(Busy, match="1 grammars wait"):
                await checker.checked(GrammarSpec("regex", "b"), 20)
            trials.free.touch()
            assert await waiting == GrammarSpec("regex", "a")
            assert await checker.checked(slow, 0.05) == slow
            assert trials.tried == ["wait", "a"]
        finally:
            checker.close()

    asyncio.run(main())
