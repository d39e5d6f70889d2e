"""`ipex-assist batch` with instances that need no model: what they do with a prompt is what the prompt says.

As a script it is such an instance (`batch_fake.py --instance`), else the command itself with such instances.

    words …            its words come back after SLEEP seconds (environment)
    die                kill -9 of itself
    die-first FILE     the same, unless FILE is there, which it makes
    hang, hang-first   likewise, sleeping instead, deaf to all signals but SIGKILL
    refuse             an error that no other instance can help with
    again, again-first an error that another instance may not have
    say TEXT           TEXT on standard error and on standard output
    big N              N characters of text

The model's name tells how loading goes: `refuses`, `refuses-usage`, `refuses-not-1` (all but instance 1), `dies`, or
anything else.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

SLEEP = float(os.environ.get("SLEEP", "0"))


def instance() -> None:
    """The protocol of batch/worker.py, spoken by hand."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    settings = json.loads(sys.stdin.readline())
    model = settings["load"]["target"]
    if model == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if model.startswith("refuses") and model != f"refuses-not-{os.environ.get('IPEX_INSTANCE')}":
        send({"refusal": f"there is no model {model}", "exit_code": 2 if model.endswith("usage") else 1})
        return
    send({"ready": {"target": model, "precision": "fp32", "executor": "fake", "load_s": 0.0}})
    for line in sys.stdin:
        send(answer(json.loads(line)))


def send(reply: dict[str, Any]) -> None:
    print(json.dumps(reply), flush=True)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Answer with what the prompt says."""
    text = request["prompt"]
    action, _, rest = text.partition(" ")
    name, once = action.removesuffix("-first"), action.endswith("-first")
    if once and Path(rest).exists():
        name = "words"
    elif once:
        Path(rest).touch()
    if name == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "hang":
        time.sleep(1000)
    if name == "refuse":
        return {"result": None, "error": "this prompt is no good"}
    if name == "again":
        return {"result": None, "error": "something broke", "again": True}
    if name == "say":
        print(rest, file=sys.stderr, flush=True)
    time.sleep(SLEEP)
    text = "x" * int(rest) if name == "big" else text
    return {
        "result": {
            "text": text,
            "new_tokens": len(text.split()),
            "target": "fake",
            "precision": "fp32",
            "options": request["options"],
            "cpus": sorted(os.sched_getaffinity(0)),
            "number": os.environ.get("IPEX_INSTANCE"),
            "pid": os.getpid(),
        }
    }


def main() -> int:
    """The real command, with its instances replaced."""
    from ipex_assist import cli
    from ipex_assist.batch import places

    places.worker_program = lambda: [sys.executable, __file__, "--instance"]
    return cli.main(["batch", *sys.argv[1:]])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--instance"]:
        instance()
    else:
        sys.exit(main())
