"""The native core in its process: threads, forks, floating-point modes, instruction sets."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from native_models import PRECISIONS, folder, loaded, relative, text, tokens

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import UsageError
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.executors.select_executor import resolve_executor
from ipex_assist.native import library
from ipex_assist.native.library import ISA_VARIABLE, PATH, Pool, instruction_set, peak, read_bandwidth, unavailable
from ipex_assist.native.model import PackedModel

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")]


def generated(model: NativeModel, seed: int) -> tuple[torch.Tensor, list[int], list[float]]:
    """Logits of a prompt, and the tokens drafted after it, in a sequence of its own."""
    own = tiny_models.Text(model, 250)
    logits = own.forward(tokens(40 + 40 * seed, seed), last=40)
    return logits, *own.draft(tokens(3, seed), 8)


@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_threads_that_share_a_model(precision: str) -> None:
    """Passes of one model share its buffers, and Python lets other threads run meanwhile."""
    model = loaded("llama", precision, 2)
    alone = [generated(model, seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as callers:
        for _ in range(5):
            for seed, (logits, *drafted) in enumerate(callers.map(generated, [model] * 4, range(4))):
                assert torch.equal(logits, alone[seed][0])
                assert drafted == list(alone[seed][1:])


def huge_pages() -> int:
    """Bytes of this process that lie in some."""
    found = re.search(r"AnonHugePages:\s+(\d+)", Path("/proc/self/smaps_rollup").read_text())
    return int(found[1]) << 10 if found else 0


def test_small_pages_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches weights that lie in small pages for ever because no huge one was free while they were loaded."""
    sizes = {"hidden_size": 512, "intermediate_size": 1536, "vocab_size": 4000}
    tiny_models.save(tmp_path, "llama", **sizes)
    really, disable = PackedModel.join_pages, 41  # PR_SET_THP_DISABLE
    prctl = ctypes.CDLL(None).prctl
    seen: list[tuple[bool, int]] = []

    def join(model: PackedModel, seconds: float) -> bool:
        prctl(disable, 0, 0, 0, 0)
        before = huge_pages()
        seen.append((really(model, seconds + 5), huge_pages() - before))
        return seen[-1][0]

    monkeypatch.setattr(PackedModel, "join_pages", join)
    for later in (None, []):  # the second as for a single text
        prctl(disable, 1, 0, 0, 0)
        try:
            model = load_model(LoadRequest(open_checkpoint(str(tmp_path)), "fp32", "native", later=later))
        finally:
            prctl(disable, 0, 0, 0, 0)
        assert isinstance(model, NativeModel)
    ((all_of_them, bytes_),) = seen
    assert not all_of_them or bytes_ > 0.5 * model.packed.nbytes > 1 << 22


def test_a_caller_that_flushes_denormals() -> None:
    """torch.set_flush_denormal holds for the calling thread, and so for a part of the columns only."""
    model = tiny_models.model(folder("llama"), "native", "fp32")
    assert isinstance(model, NativeModel)
    model.packed.pack("final_norm.weight", torch.full((model.spec.hidden_size,), 1e-39))
    expected = tiny_models.Text(model).forward(tokens(20), last=20)
    assert 0 < expected.abs().max() < 1e-37
    own = tiny_models.Text(model)
    torch.set_flush_denormal(True)
    try:
        flushed = own.forward(tokens(20), last=20)
        assert torch.tensor(1e-39) * 1.0 == 0, "the caller keeps its own"
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(flushed, expected)


FORKED = """
import multiprocessing, os, signal, sys
sys.path[:0] = {paths!r}
signal.alarm(100)
import test_native_process as tests
model = tests.loaded("llama", "int4", 2)
expected = tests.generated(model, 1)[1:]

def child():
    sys.exit(0 if tests.generated(model, 1)[1:] == expected else 3)

def wait(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

if {way!r} == "fork":
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        try:
            child()
        finally:
            os._exit(sys.exc_info()[1].code or 0)
    status = wait(pid)
else:
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    status = process.exitcode
assert status == 0, status
assert tests.generated(model, 1)[1:] == expected
"""


@pytest.mark.parametrize("way", ["fork", "multiprocessing"])
def test_a_child_of_fork_generates(way: str) -> None:
    """It has none of the pool's threads, and would wait for them for ever."""
    paths = [str(Path(__file__).parent), str(Path(tiny_models.__file__).parent)]
    done = subprocess.run(
        [sys.executable, "-c", FORKED.format(paths=paths, way=way)], capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("level", ["avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16"])
def test_lower_levels_compute_the_same(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cascade Lake and Ice Lake run the code that this machine would not: here they are made to."""
    prompt = tokens(60, 8)
    decode = {}
    for limit in ("", level):
        monkeypatch.setenv(ISA_VARIABLE, limit)
        if limit and instruction_set() != level:
            pytest.skip(f"this processor has no {level}")
        for precision in PRECISIONS:
            model = tiny_models.text(folder("llama"), "native", precision, tokens=100)
            decode[limit, precision] = torch.cat((model.forward(prompt), model.forward(tokens(5, 9), last=5)))
    for precision in PRECISIONS:
        bound = 1e-5 if precision == "fp32" else 0.02
        assert relative(decode[level, precision], decode["", precision]) < bound, precision


@pytest.mark.parametrize("executor", ["auto", "native"])
def test_a_level_that_does_not_exist(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slip in IPEX_ASSIST_ISA means neither the best instructions nor another executor, but an error."""
    monkeypatch.setenv(ISA_VARIABLE, "AMX")
    with pytest.raises(UsageError, match="IPEX_ASSIST_ISA=AMX is no instruction set"):
        unavailable()
    command = ["-m", str(folder("llama")), "-p", "x", "--executor", executor, "--no-launch"]
    done = subprocess.run(
        [sys.executable, "-m", "ipex_assist", *command],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    names = "none, avx2, avx2_vnni, avx512, avx512_vnni, avx512_bf16, amx"
    assert f"IPEX_ASSIST_ISA=AMX is no instruction set: it may be {names}, or unset" in done.stderr
    assert "Traceback" not in done.stderr
    monkeypatch.setenv(ISA_VARIABLE, "")
    assert resolve_executor("native") == "native"


_COUNTS_THREADS = """
import json, os, sys
from pathlib import Path
import torch
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.executors.native import loading as native_loading
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.native.library import shared_pool

def threads():
    masks = {}
    for task in Path("/proc/self/task").iterdir():
        status = dict(line.split(":\\t", 1) for line in (task / "status").read_text().splitlines() if ":\\t" in line)
        masks[int(task.name)] = status["Cpus_allowed_list"]
    return masks

torch.set_num_threads(1)
torch.ones(8, 8) @ torch.ones(8, 8)
mask, before = sorted(os.sched_getaffinity(0)), threads()
cpus = (mask * 2)[:2]
native_loading.planned_pool = lambda: shared_pool(2, cpus)
model = load_model(LoadRequest(open_checkpoint(sys.argv[1]), sys.argv[2], "native"))
sequence = model.new_sequence(100)
unbound = True
for step in range(8):
    model.extend(sequence, [3] * 40 if step == 0 else [step])
    unbound &= sorted(os.sched_getaffinity(0)) == mask
model.draft(sequence, [5], 8)
added = {task: mask for task, mask in threads().items() if task not in before}
print(json.dumps({"added": list(added.values()), "cpus": [str(cpu) for cpu in cpus], "unbound": unbound,
                  "after": sorted(os.sched_getaffinity(0)) == mask}))
"""


@pytest.mark.parametrize("precision", ["bf16", "int4"])
def test_one_pool_and_no_other(precision: str) -> None:
    """Loading and generating start the core's threads and not torch's as well; the main thread stays free to move."""
    done = subprocess.run(
        [sys.executable, "-c", _COUNTS_THREADS, str(folder("llama")), precision],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["added"] == found["cpus"][1:], "each of the pool's threads on its processor, and no further thread"
    assert found["unbound"], "a pass left the main thread bound to one processor"
    assert found["after"], "drafting left the main thread bound to one processor"


def test_threads_that_load_at_once_share_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches two pools on the same processors, which would take them from each other in every pass."""
    made = []

    class Slow:
        def __init__(self, threads: int, cpus: object) -> None:
            time.sleep(0.1)
            made.append(self)

    monkeypatch.setattr(library, "Pool", Slow)
    monkeypatch.setattr(library, "_pools", {})
    with ThreadPoolExecutor(4) as threads:
        pools = list(threads.map(lambda _: library.shared_pool(2, None), range(4)))
    assert len(made) == 1
    assert all(pool is made[0] for pool in pools)


def test_the_core_has_no_openmp() -> None:
    """A second OpenMP runtime in the process would spin against torch's."""
    content = PATH.read_bytes()
    for name in (b"libgomp", b"libiomp", b"libomp", b"GOMP_parallel", b"__kmpc_fork"):
        assert name not in content


def test_a_pool_without_work_sleeps() -> None:
    """Between passes its threads give their processors back: torch, the tokenizer and other processes need them."""
    model = text("llama", "bf16", 4)
    model.truncate(0)
    model.forward([1, 2, 3])
    time.sleep(0.05)
    started = time.process_time()
    time.sleep(0.4)
    assert time.process_time() - started < 0.1


@pytest.fixture
def small_pool() -> Iterator[Pool]:
    made = Pool(2)
    yield made
    made.close()


def test_bandwidth_is_one_a_machine_can_have(small_pool: Pool) -> None:
    """Units: bytes for gigabytes, or a loop that the compiler removed, would be off by orders of magnitude."""
    assert 0.1 < read_bandwidth(small_pool, size=64 << 20, repeats=2) < 2000


def test_peak_is_one_a_machine_can_have(small_pool: Pool) -> None:
    """Instructions that the compiler removed are beyond two 512-bit ones a cycle, or a tile's in 16 cycles."""
    tiles = instruction_set() == "amx"
    most = {"fp32": 5e11, "bf16": 1e13 if tiles else 1e12, "int8": 2e13 if tiles else 2e12}
    for precision, limit in most.items():
        assert 1e8 < peak(small_pool, precision, seconds=0.01) < limit
