"""One instance of multi_socket.py: loads the models, then answers requests, JSON lines in and JSON lines out.

A request has `at`, a time of the machine's monotonic clock: the instance waits for it, so that all instances that got
the same one begin together. Times in answers are of the same clock, in seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Iterable, Mapping
from typing import IO, TYPE_CHECKING, Any

from ipex_assist import launch
from ipex_assist.env.errors import IpexAssistError

if TYPE_CHECKING:
    from ipex_assist.executors.traffic import Traffic
    from ipex_assist.speculative.round import Round


def bytes_of(round_: Round, length: int, target: Traffic, assistant: Traffic | None) -> int:
    """Return the bytes that a round after `length` tokens reads: a pass of the target, one of the assistant a draft.

    Rounds of prompts count as nothing, since they compute.
    """
    if round_.prompt:
        return 0
    read = target.weight_bytes + length * target.kv_bytes_per_token
    if assistant is not None:
        read += round_.drafted * (assistant.weight_bytes + length * assistant.kv_bytes_per_token)
    return read


def memory_by_node(numa_maps: Iterable[str]) -> dict[int, int]:
    """NUMA node → resident bytes, from the lines of /proc/PID/numa_maps."""
    found: dict[int, int] = {}
    for line in numa_maps:
        fields = dict(field.split("=", 1) for field in line.split() if "=" in field)
        page = int(fields.get("kernelpagesize_kB", 4)) << 10
        for key, value in fields.items():
            if key[0] == "N" and key[1:].isdecimal():
                found[int(key[1:])] = found.get(int(key[1:]), 0) + int(value) * page
    return dict(sorted(found.items()))


class Instance:
    """The loaded models and the prompt, as token ids."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        import torch

        import ipex_assist
        from ipex_assist.executors.traffic import traffic_of
        from ipex_assist.speculative.sources.assistant_name import parse_assistant
        from ipex_assist.tokenization.tokenizer import encode_prompt

        started = time.monotonic()
        plan = launch.inherited_plan(os.environ)
        if plan is not None:
            torch.set_num_threads(plan.threads)
        self.model: Any = ipex_assist.load(
            settings["target"], settings["assistant"], calibrate=False, generation_config="none", **settings["load"]
        )
        self._measure_costs_with_the_others()
        self.deviations = launch.check_start(plan, torch.get_num_threads())
        if self.model.identity.executor == "native":
            torch.set_num_threads(1)  # the core has its own threads
        tokenizer = self.model.tokenizer
        tokens = encode_prompt(tokenizer, settings["prompt"], chat=bool(tokenizer.chat_template))
        if wanted := settings["prompt_tokens"]:
            # The end stays whole: it is where a chat template asks for the answer.
            tokens = (list(tokens) * (wanted // len(tokens) + 1))[-wanted:]
        self.prompt = list(tokens)
        names, models = self.model.identity, (getattr(self.model, key, None) for key in ("target", "assistant"))
        precisions = (names.precision, names.assistant_precision or names.precision)
        self.target, self.assistant = (
            None if model is None else traffic_of(model, precision)
            for model, precision in zip(models, precisions, strict=True)
        )
        # Of a drafted token nobody says whether it was looked up or came from the model.
        drafts = parse_assistant(settings["assistant"])
        self.counted = not (drafts.lookup and drafts.model)
        self.load_s = time.monotonic() - started

    def _measure_costs_with_the_others(self) -> None:
        """Measure what passes cost, which an adaptive draft length follows, while all warm up, as they will work.

        It is not kept: for a process alone on the same cores it is less.
        """
        from ipex_assist.speculative.costs import calibration

        drafting = getattr(self.model, "drafting", None)
        if drafting is not None:
            drafting.cache = None
            drafting.measure = lambda: calibration.calibrate(self.model.target, self.model.assistant)

    def facts(self) -> dict[str, Any]:
        """Return what was loaded, and what is not as it was planned."""
        from ipex_assist.native.library import instruction_set

        names = self.model.identity
        native = names.executor == "native"
        return {
            "executor": names.executor,
            "assistant_precision": names.assistant_precision,
            "instruction_set": instruction_set() if native else None,
            "prompt_tokens": len(self.prompt),
            "bytes_per_pass": self.target.weight_bytes if self.target else None,
            "assistant_bytes_per_pass": self.assistant.weight_bytes if self.assistant else None,
            "load_s": self.load_s,
            "deviations": self.deviations,
        }

    def read(self, size: int) -> dict[str, Any]:
        """The speed at which this instance's threads read `size` bytes of their memory, in GB/s."""
        from ipex_assist.executors.native.loading import planned_pool
        from ipex_assist.native.library import read_bandwidth, unavailable

        return {"GB_per_s": None if unavailable() else read_bandwidth(planned_pool(), size, repeats=3)}

    def generate(self, assisted: bool, options: Mapping[str, Any]) -> dict[str, Any]:
        """Run one greedy generation; return the times of its beginning, first token and end."""
        times, read, length = [time.monotonic()], 0, len(self.prompt)
        generation = self.model.stream(self.prompt, assisted=assisted, **options)
        for chunk in generation:
            times.append(time.monotonic())
            if self.target is not None:
                read += bytes_of(chunk.round, length, self.target, self.assistant)
            length += len(chunk.tokens)
        result = generation.result()
        if result.new_tokens < 2 or len(times) < 3:
            raise IpexAssistError(
                f"the text ended after {result.new_tokens} tokens, too soon to time decoding: name another --prompt"
            )
        return {
            "started": times[0],
            "first": times[1],
            "ended": times[-1],
            "prompt_tokens": result.prompt_tokens,
            "tokens": result.tokens,
            "bytes": read if self.target is not None and (self.counted or not assisted) else None,
            "drafted": result.draft.drafted,
            "accepted": result.draft.accepted,
        }

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Wait for the request's time, then do what it says."""
        time.sleep(max(0.0, request["at"] - time.monotonic()))
        if request["do"] == "facts":
            return self.facts()
        if request["do"] == "read":
            return self.read(request["size"])
        if request["do"] == "generate":
            return self.generate(request["assisted"], request["options"])
        try:
            with open("/proc/self/numa_maps") as maps:
                return {"memory_by_node": memory_by_node(maps)}
        except FileNotFoundError:  # a kernel without NUMA
            return {"memory_by_node": {}}


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """Load what the first line says, then answer until the requests end."""

    def send(reply: Mapping[str, Any]) -> None:
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()

    try:
        instance = Instance(json.loads(requests.readline()))
    except IpexAssistError as error:
        send({"type": "refused", "message": str(error), "exit_code": error.exit_code})
        return
    for line in requests:
        try:
            send({"type": "answer", "id": 0, "result": instance.answer(json.loads(line))})
        except (IpexAssistError, OSError, RuntimeError) as error:
            send({"type": "answer", "id": 0, "error": f"{type(error).__name__}: {error}"})


def main() -> None:
    """Serve standard input and output, which libraries that print cannot reach."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    warnings.filterwarnings("ignore")
    for name, value in (("TOKENIZERS_PARALLELISM", "false"), ("TRANSFORMERS_VERBOSITY", "error")):
        os.environ.setdefault(name, value)
    serve(requests, replies)


if __name__ == "__main__":
    main()
