"""`ipex-assist batch` with instances that need no model: what they do with a prompt is what the prompt says.

As a script it is such an instance (`batch_fake.py --instance`), else the command itself with such instances.

    words …            its words come back after SLEEP seconds (environment), some sooner with JITTER (any number)
    die                kill -9 of itself
    die-first FILE     the same, unless FILE is there, which it makes
    hang, hang-first   likewise, sleeping instead, deaf to all signals but SIGKILL and to cancelling
    endless            goes on until it is cancelled
    refuse             an error that no other instance can help with
    again, again-first an error that another instance may not have
    say TEXT           TEXT on standard error and on standard output
    big N              N characters of text

Prompts that are in flight together are answered by a thread each, in whatever order these end.

The model's name tells how loading goes: `refuses`, `refuses-usage`, `refuses-not-1` (all but instance 1), `dies`,
`chats` (it has a chat template), or anything else; `loads` reports a phase, and waits for the file GO (environment).
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

SLEEP, JITTER = float(os.environ.get("SLEEP", "0")), float(os.environ.get("JITTER", "0"))
lock = threading.Lock()
cancelled: dict[int, threading.Event] = {}  # by the request that is under way


def instance() -> None:
    """The protocol of workers/worker.py, spoken by hand."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    settings = json.loads(sys.stdin.readline())
    model = settings["load"]["target"]
    if model == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if model.startswith("refuses") and model != f"refuses-not-{os.environ.get('IPEX_INSTANCE')}":
        send(
            {
                "type": "refused",
                "message": f"there is no model {model}",
                "exit_code": 2 if model.endswith("usage") else 1,
            }
        )
        return
    if model == "loads":
        send({"type": "phase", "name": "packing weights", "share": 0.43, "seconds": 2.5})
        while not os.path.exists(os.environ["GO"]):
            time.sleep(0.01)
    about = {"target": model, "precision": "fp32", "executor": "fake"}
    send({"type": "ready", "model": about, "load_s": 0.0, "chat_template": model == "chats"})
    for line in sys.stdin:
        request = json.loads(line)
        if request["type"] == "cancel":
            if request["id"] in cancelled:
                cancelled[request["id"]].set()
            continue
        with lock:
            cancelled[request["id"]] = threading.Event()
            company = len(cancelled)
        threading.Thread(target=serve, args=(request, company), daemon=True).start()
    while cancelled:  # nobody asks any more, and what was asked is still answered
        time.sleep(0.01)


def serve(request: dict[str, Any], company: int) -> None:
    """Answer one request, of so many that are in flight."""
    reply = {"type": "answer", "id": request["id"], **answer(request, company)}
    with lock:
        del cancelled[request["id"]]
        send(reply)


def send(reply: dict[str, Any]) -> None:
    print(json.dumps(reply), flush=True)


def answer(request: dict[str, Any], company: int) -> dict[str, Any]:
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
    if name == "endless":
        cancelled[request["id"]].wait()
        return {"result": None, "error": "cancelled"}
    if name == "refuse":
        return {"result": None, "error": "this prompt is no good"}
    if name == "again":
        return {"result": None, "error": "something broke", "again": True}
    if name == "say":
        print(rest, file=sys.stderr, flush=True)
    time.sleep(SLEEP * (random.random() if JITTER else 1.0))
    text = "x" * int(rest) if name == "big" else text
    return {
        "result": {
            "text": text,
            "new_tokens": len(text.split()),
            "target": "fake",
            "precision": "fp32",
            "options": request["options"],
            "company": company,
            "cpus": sorted(os.sched_getaffinity(0)),
            "number": os.environ.get("IPEX_INSTANCE"),
            "pid": os.getpid(),
        }
    }


def main() -> int:
    """The real command, with its instances replaced."""
    from ipex_assist import cli
    from ipex_assist.workers import placement

    placement.worker_program = lambda: [sys.executable, __file__, "--instance"]
    return cli.main(["batch", *sys.argv[1:]])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--instance"]:
        instance()
    else:
        sys.exit(main())
