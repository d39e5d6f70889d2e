"""What test_emulated_machine.py runs inside: a model of the native core, placed, and where its threads and memory are.

python emulated_checks.py start REQUEST COMMAND…    becomes COMMAND, placed as a JSON PlacementRequest asks
python emulated_checks.py below REQUEST COMMAND…    the same, but stays as its parent
python emulated_checks.py report                    prints the machine
python emulated_checks.py text MODEL                prints a greedy text, threads' CPUs and nodes of memory, as JSON
python emulated_checks.py fill MODEL                plans keys and values by default, and writes all of them
python emulated_checks.py touch MODEL               writes keys and values in one thread, and prints their nodes
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PAGE = 4096
MOVE_PAGES = 279  # a system call, which tells where pages are


def start(request: str, *command: str) -> None:
    """Become `command`."""
    from ipex_assist import launch

    launch.run(launch.prepare(launch.PlacementRequest(**json.loads(request)), command))


def below(request: str, *command: str) -> None:
    """Run `command` as a child, and exit with its code."""
    from ipex_assist import launch

    sys.exit(launch.run_below(launch.prepare(launch.PlacementRequest(**json.loads(request)), command), "ipex-assist"))


def report() -> dict[str, Any]:
    """What `env --json` has but for the processor, of which it would be measured for minutes."""
    from ipex_assist.env.report import describe_environment

    return describe_environment()


def text(folder: str) -> dict[str, Any]:
    """Of 300 tokens and 24 more, with two blocks of keys and values."""
    from ipex_assist import launch
    from ipex_assist.env.memory import huge_pages
    from ipex_assist.env.tree import Tree
    from ipex_assist.executors.interface import Rows

    model = _loaded(folder, 24 << 20)  # unlike the stack of a thread
    plan = launch.inherited_plan(os.environ)
    launch.keep_to_spare_cpu(plan)  # as a worker does
    sequence = model.new_sequence(400)
    tokens = list(range(3, 303))
    made: list[int] = []
    while len(made) < 24:
        made.append(model.choose([Rows(sequence, tokens, 1)])[0].token)
        tokens = [made[-1]]
    return {
        "huge_pages": huge_pages(Tree("/")),
        "tokens": made,
        "cpus": sorted(_thread_cpus()),
        "own_cpus": sorted(os.sched_getaffinity(0)),
        "warnings": launch.check_start(plan),
        "image": _image_nodes(model.packed),
        "anonymous": dict(_anonymous()),
        "blocks": _block_nodes(model),
    }


def _image_nodes(packed: Any) -> list[int]:
    """The node of each page of the weights, in order of addresses."""
    buffer = (ctypes.c_uint8 * 1)()
    places = (
        packed.library.ia_model_image(packed.handle, offset, 1, buffer) for offset in range(0, packed.nbytes, PAGE)
    )
    found = _nodes(sorted({place // PAGE * PAGE for place in places}))
    return [node for node in found if node >= 0]


def _block_nodes(model: Any) -> list[int]:
    """The node of each page of keys and values, in order of addresses, when all blocks are full of one byte.

    By that byte, since the kernel joins neighbouring mappings into one.
    """
    first, length = _mapping(model.memory.count * model.memory.bytes_each)
    mark = b"\x5a" * 64
    for block in range(model.memory.count):
        model.memory.write(block, bytearray(mark * (model.memory.bytes_each // 64)))
    found = []
    pages = range(first, first + length, PAGE)
    for place, node in zip(pages, _nodes(pages), strict=True):
        if node >= 0 and ctypes.string_at(place, 64) == mark:
            found.append(node)
    return found


def touch(folder: str) -> dict[str, Any]:
    """The nodes of keys and values that one thread has written first, whose own node is that of a part only."""
    model = _loaded(folder, 24 << 20)
    assert model.blocks is not None
    first, length = _mapping(model.memory.count * model.memory.bytes_each)
    ctypes.memset(first, 1, length)
    return {"nodes": _nodes_of(first, length)}


def fill(folder: str) -> dict[str, Any]:
    """Memory by default, and every byte of it written."""
    from ipex_assist.env.memory import read_memory

    available = read_memory().available
    model = _loaded(folder, None)
    assert model.blocks is not None
    content = bytearray(b"\1" * model.memory.bytes_each)
    for block in range(model.memory.count):
        model.memory.write(block, content)
    return {
        "available": available,
        "planned": model.memory.count * model.memory.bytes_each,
        "nodes": dict(_anonymous()),
    }


def _loaded(folder: str, kv_memory: int | None) -> Any:
    from ipex_assist.checkpoints.open import open_checkpoint
    from ipex_assist.executors.kv_memory import KvMemory
    from ipex_assist.executors.load import load_model
    from ipex_assist.executors.load_request import LoadRequest

    return load_model(LoadRequest(open_checkpoint(folder), "int8", "native", kv_memory=KvMemory(kv_memory)))


def _thread_cpus() -> list[str]:
    """The CPUs of each thread, as the kernel writes them."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        status = (task / "status").read_text()
        found.append(re.search(r"Cpus_allowed_list:\s*(\S+)", status)[1])  # type: ignore[index]
    return found


def _mapping(size: int) -> tuple[int, int]:
    """The anonymous memory that holds `size` bytes: the smallest run of mappings side by side that is large enough.

    A mapping ends where another node is preferred.
    """
    runs: list[list[tuple[int, int]]] = [[]]
    for line in Path("/proc/self/maps").read_text().splitlines():
        words = line.split()
        first, last = (int(word, 16) for word in words[0].split("-"))
        if len(words) != 5 or words[1] != "rw-p":  # a file, or the guard of a stack
            runs.append([])
            continue
        if runs[-1] and runs[-1][-1][1] != first:
            runs.append([])
        runs[-1].append((first, last))
    pieces = [(run[j][1] - run[i][0], run[i][0]) for run in runs for i in range(len(run)) for j in range(i, len(run))]
    length, first = min(piece for piece in pieces if piece[0] >= size)
    return first, length


def _nodes_of(first: int, length: int) -> list[int]:
    """The node of each page that is there, in order of addresses."""
    return [node for node in _nodes(range(first, first + length, PAGE)) if node >= 0]


def _nodes(places: Sequence[int]) -> list[int]:
    """The node of each page; below 0 where there is none."""
    count = len(places)
    pages = (ctypes.c_void_p * count)(*places)
    status = (ctypes.c_int * count)()
    failed = ctypes.CDLL(None).syscall(MOVE_PAGES, 0, ctypes.c_ulong(count), pages, None, status, 0)
    assert not failed
    return list(status)


def _anonymous() -> Counter[str]:
    """Pages of all anonymous mappings by node."""
    found: Counter[str] = Counter()
    for line in Path("/proc/self/numa_maps").read_text().splitlines():
        if "anon=" in line and "file=" not in line:
            size = int((re.search(r"kernelpagesize_kB=(\d+)", line) or [0, 4])[1])
            for node, pages in re.findall(r"N(\d+)=(\d+)", line):
                found[node] += int(pages) * size // 4
    return found


def main() -> None:
    command, *arguments = sys.argv[1:]
    os.environ["IPEX_ASSIST_PACKED"] = "no"
    result = {each.__name__: each for each in (start, below, report, text, touch, fill)}[command](*arguments)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
