"""`ipex-assist serve` as a process, with small models on the native core."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

from batch_runs import children

from ipex_assist.env.memory import resident_bytes

KV_MEMORY = 8 << 20
SERVE = [
    *(sys.executable, "-m", "ipex_assist", "serve", "--no-launch", "--offline", "--port", "0", "--threads", "1"),
    *("--precision", "fp32", "--executor", "native", "--no-cache-packed", "--kv-memory", str(KV_MEMORY)),
    *("--no-assisted", "--concurrency", "4"),
]


class NativeServer:
    """A server that is ready, or loads models when they are asked for."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [*SERVE, *map(str, arguments)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        self.said: list[str] = []
        for line in self.process.stderr:
            self.said.append(line)
            if (found := re.search(r"http://127\.0\.0\.1:\d+", line)) is not None:
                self.url = found[0]
                return
        raise AssertionError(f"it has ended: {self.said}")

    def resident(self) -> int:
        """Bytes of the server and of its engines."""
        return sum(resident_bytes(process=pid) for pid in (self.process.pid, *children(self.process.pid)))

    def end(self) -> str:
        """Ask it to end, and return what it said since it was ready."""
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, said
        assert "Traceback" not in said, said
        return said
