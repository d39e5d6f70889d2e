"""Tries untrusted grammars in a process that can be killed; those that take more than a second are rejected.

llguidance limits most costs of a grammar, but a single call cannot be interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import random
import re
import resource
import selectors
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psutil

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.speculative.grammar import GrammarSpec

if TYPE_CHECKING:
    from ipex_assist.speculative.llguidance_grammar import LlguidanceGrammar

SECONDS = 1.0  # of CPU time that a grammar may take
PATIENCE = 10.0  # seconds of wall-clock time
REMEMBERED = 256  # cached verdicts
MEMORY = 4 << 30  # bytes of address space of the process
WALKS, STEPS = 4, 48  # random outputs, and choices in each: a grammar may become expensive later on
LONGEST = 1000  # bytes of such an output, including forced ones
# Lark tokens that may contain < >: strings, comments, regular expressions, and special tokens themselves.
_LARK = re.compile(r'"(?:\\.|[^"\\\n])*"|(?://|#)[^\n]*|/(?:\\.|[^/\\\n])+/|(?P<special><[^<>\s]+>)')
_ANY_SPECIAL = "<[255]>"  # replaces each special token: a byte that never occurs in UTF-8


class GrammarChecker:
    """Decides whether a grammar may be given to an engine. Thread-safe; tries one grammar at a time.

    The process is started with the first grammar, and restarted if one has killed it.
    """

    def __init__(self, program: Callable[[], list[str]] | None = None) -> None:
        """program: returns the argv of the process."""
        self._program = program or (lambda: [sys.executable, "-m", "ipex_assist.serve.grammar_checker"])
        self._process: subprocess.Popen[bytes] | None = None
        self._known: OrderedDict[bytes, str | None] = OrderedDict()  # by digest: grammars may be megabytes long
        self._turn = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")

    async def checked(self, spec: GrammarSpec | None) -> GrammarSpec | None:
        """Run `check` outside the event loop; returns the grammar."""
        if spec is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self.check, spec)
        return spec

    def check(self, spec: GrammarSpec) -> None:
        """Raise UsageError (status 400) if the grammar cannot be used. Takes about a second at most."""
        name = hashlib.sha256(f"{spec.kind} {spec.value}".encode("utf-8", "surrogatepass")).digest()
        with self._turn:
            if name not in self._known:
                self._known[name] = self._try(spec)
                if len(self._known) > REMEMBERED:
                    self._known.popitem(last=False)
            reason = self._known[name]
        if reason is not None:
            raise UsageError(f"this grammar cannot be used: {reason}")

    def close(self) -> None:
        """End the process."""
        with self._turn:
            self._end()
        self._thread.shutdown(wait=False)

    def _try(self, spec: GrammarSpec) -> str | None:
        process = self._process
        if process is None or process.poll() is not None:  # not running, or ended on its own
            self._end()
            process = self._start()
        line = json.dumps({"kind": spec.kind, "value": spec.value}).encode() + b"\n"
        answer = self._ask(process, line, SECONDS)
        if answer is not None:
            reason = json.loads(answer)["reason"]
            return None if reason is None else str(reason)
        died = process.poll()
        self._end()
        if died is None:
            return f"it takes longer than {SECONDS:g} s to compile, or to begin a text; make it smaller"
        return "it takes too much memory to compile, or breaks the compiler; make it smaller"

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = process = subprocess.Popen(
            self._program(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        if self._ask(process, b"", PATIENCE) is None:
            self._end()
            raise IpexAssistError(
                "grammars cannot be checked, as the process for it does not start: pip install 'ipex-assist[serve]'"
            )
        return process

    @staticmethod
    def _ask(process: subprocess.Popen[bytes], line: bytes, seconds: float) -> bytes | None:
        """The next line of the process; None if it dies or takes too long."""
        assert process.stdin is not None
        assert process.stdout is not None
        before, until = _spent(process.pid), time.monotonic() + PATIENCE
        answer = b""
        with selectors.DefaultSelector() as selector, contextlib.suppress(BrokenPipeError):
            selector.register(process.stdout, selectors.EVENT_READ)
            process.stdin.write(line)
            process.stdin.flush()
            while not answer.endswith(b"\n"):
                if selector.select(0.02):
                    piece = os.read(process.stdout.fileno(), 65536)
                    if not piece:
                        process.wait()
                        return None
                    answer += piece
                elif _spent(process.pid) - before > seconds or time.monotonic() > until:
                    return None
            return answer
        process.wait()
        return None

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()  # type: ignore[union-attr]


def _spent(pid: int) -> float:
    """CPU seconds that a process has used."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


class _Bytes:
    """A vocabulary of single bytes in llguidance's interface; a grammar's cost shows with it, too."""

    is_tokenizer_wrapper = True
    eos_token_id, bos_token_id = 256, None
    special_token_ids = (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"<eos>")

    def __call__(self, text: str | bytes) -> list[int]:
        """The bytes."""
        return list(text.encode() if isinstance(text, str) else text)


def byte_tokenizer() -> Any:
    """llguidance's tokenizer in which every byte is a token, and 256 the end of the text."""
    from llguidance import LLTokenizer

    vocabulary: Any = _Bytes()
    return LLTokenizer(vocabulary, n_vocab=257, eos_token=[256])


def reason_against(spec: GrammarSpec, tokenizer: Any) -> str | None:
    """Return why a grammar cannot be used, or None. May take for ever.

    Compiles it and generates a few random outputs. Whether the model has its special tokens is not known here.
    """
    from ipex_assist.speculative.llguidance_grammar import LlguidanceGrammar, initial_matcher

    chance = random.Random(0)
    if spec.kind == "lark":  # the byte vocabulary has no special tokens
        spec = GrammarSpec(
            spec.kind, _LARK.sub(lambda found: _ANY_SPECIAL if found["special"] else found[0], spec.value)
        )
    try:
        start = LlguidanceGrammar(initial_matcher(spec, tokenizer), 257, frozenset([256]))
        for _ in range(WALKS):
            _walk(start.copy(), chance)
    except IpexAssistError as error:
        return str(error)
    return None


def _walk(state: LlguidanceGrammar, chance: random.Random) -> None:
    """Generate a random output until it ends or is long enough."""
    for _ in range(STEPS):
        for token in state.forced()[: LONGEST - len(state.tokens)]:
            state.advance(token)
        allowed = state.mask().nonzero()[0]
        state.advance(int(allowed[chance.randrange(len(allowed))]))
        if state.ended or len(state.tokens) >= LONGEST:
            return


def main() -> None:
    """Read JSON lines {"kind", "value"} from stdin and answer each with {"reason"} on stdout."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    tokenizer = byte_tokenizer()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(json.dumps({"reason": reason_against(GrammarSpec(**json.loads(line)), tokenizer)}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
