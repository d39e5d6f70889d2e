"""The native model: a row's bits do not depend on what runs beside it, and drafting is decoding."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipex_assist.env.errors import UsageError
from ipex_assist.executors.choose import resolve_executor
from ipex_assist.executors.interface import Rows
from ipex_assist.executors.native import FEW_ROWS, NativeModel, NativeSequence
from ipex_assist.native.library import ISA_VARIABLE, PATH, Pool, instruction_set, read_bandwidth, unavailable

pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")

VARIANTS = ["llama", "opt-350m", "gpt-bigcode", "qwen3", "mistral-window"]
PRECISIONS = ["fp32", "bf16", "int8", "int4"]
# Sequences of the property test: all of them, or their windows, reach the end of a block of 256 positions on the way.
LENGTHS = (3, 247, 300, 509)
FOLLOWING = FEW_ROWS


def tokens(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(tiny_models.VOCAB, (count,), generator=generator).tolist()


@functools.cache
def pool(threads: int) -> Pool:
    """Threads that the kernel places: the machine may have fewer processors than that."""
    return Pool(threads)


@functools.cache
def folder(variant: str) -> Path:
    """A saved model with a context of 1024, for all tests of this file."""
    made = tempfile.TemporaryDirectory()
    _folders.append(made)  # it is removed with its owner
    longer = {"n_positions": 1024} if variant.startswith("gpt") else {"max_position_embeddings": 1024}
    tiny_models.save(Path(made.name), variant, **longer)
    return Path(made.name)


_folders: list[object] = []


@functools.cache
def loaded(variant: str, precision: str, threads: int = 1) -> NativeModel:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ipex_assist.executors.native_loading.planned_pool", lambda: pool(threads))
        made = tiny_models.model(folder(variant), "native", precision)
    assert isinstance(made, NativeModel)
    assert made.packed.pool.threads == threads
    return made


def text(variant: str, precision: str, threads: int = 1) -> tiny_models.Text:
    return tiny_models.Text(loaded(variant, precision, threads), 700)


@functools.cache
def sequences(variant: str, precision: str) -> tuple[list[NativeSequence], list[torch.Tensor]]:
    """One sequence of each of LENGTHS, and the logits of the rows that follow it, each alone in its pass."""
    model = loaded(variant, precision)
    made, alone = [], []
    for length in LENGTHS:
        sequence = model.new_sequence(length + FOLLOWING)
        for token in tokens(length):
            model.extend(sequence, [token])
        made.append(sequence)
        alone.append(torch.cat([model.extend(sequence, [token]) for token in tokens(FOLLOWING, length)]))
    return made, alone


# ---- bits


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("precision", PRECISIONS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_rows_have_the_bits_they_have_alone(variant: str, precision: str, data: st.DataObject) -> None:
    """Rows of up to four sequences in passes of any grouping: a sum whose order follows the rows beside it."""
    model = loaded(variant, precision)
    made, alone = sequences(variant, precision)
    for sequence, length in zip(made, LENGTHS, strict=True):
        sequence.length = length
    for _ in range(data.draw(st.integers(1, 4), label="passes")):
        rows, expected = [], []
        for index in data.draw(st.permutations(range(len(LENGTHS))), label="order"):
            done = made[index].length - LENGTHS[index]
            count = data.draw(st.integers(0, FOLLOWING - done), label="rows")
            last = data.draw(st.integers(0, count), label="wanted")
            following = tokens(FOLLOWING, LENGTHS[index])[done : done + count]
            if following:
                rows.append(Rows(made[index], following, last))
                expected.append(alone[index][done + count - last : done + count])
        if rows:
            assert torch.equal(model.forward(rows), torch.cat(expected))


@pytest.mark.parametrize("variant", ["llama", "gpt-bigcode", "opt-350m"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_any_number_of_threads_gives_the_same_bits(variant: str, precision: str) -> None:
    """The prompt's path and the steps' path; heads that threads share by blocks, and slices of unequal size."""
    prompt, following = tokens(270), tokens(FEW_ROWS, 1)
    first: list[torch.Tensor] = []
    for threads in (1, 2, 3, 4):
        model = text(variant, precision, threads)
        model.truncate(0)
        read = model.forward(prompt, last=40)
        step = model.forward(following[:1])
        together = model.forward(following[1:], last=FEW_ROWS - 1)
        results = [read, step, together]
        first = first or results
        for got, expected in zip(results, first, strict=True):
            assert torch.equal(got, expected), threads


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_prompt_is_its_rows(variant: str, precision: str) -> None:
    """A long prompt's own path against decoding it token by token: another order of sums, but the same mathematics."""
    model = text(variant, precision)
    prompt = tokens(300, 2)
    model.truncate(0)
    whole = model.forward(prompt, last=300)
    model.truncate(0)
    rows = torch.cat([model.forward([token]) for token in prompt])
    assert relative(whole, rows) < {"fp32": 1e-5, "bf16": 2e-2, "int8": 2e-2, "int4": 2e-2}[precision]


@pytest.mark.parametrize("variant", VARIANTS)
def test_fewer_bits_stay_near_fp32(variant: str) -> None:
    """A wrong scale, zero or group would be far off; the bounds are half as much again as what was measured."""
    prompt = tokens(40, 3)
    logits = {}
    for precision in PRECISIONS:
        model = text(variant, precision)
        model.truncate(0)
        logits[precision] = torch.cat((model.forward(prompt, last=40), model.forward(tokens(9, 4), last=9)))
    errors = {precision: relative(logits[precision], logits["fp32"]) for precision in PRECISIONS}
    print(variant, {precision: f"{error:.4f}" for precision, error in errors.items()})
    assert errors["bf16"] < 0.02
    assert errors["int8"] < 0.06
    assert errors["int4"] < 0.65
    assert errors["bf16"] < errors["int4"]
    assert errors["int8"] < errors["int4"]


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


# ---- memory


def test_a_new_sequence_has_the_memory_of_the_last_one() -> None:
    """Pages that are there already; what they hold has no part in the new text, and a sequence beside it has others."""
    model, prompt = tiny_models.model(folder("llama"), "native", "bf16"), tokens(40)
    assert isinstance(model, NativeModel)
    first = model.new_sequence(300)
    expected = model.extend(first, prompt)
    model.extend(first, tokens(200, 3))
    handle = first.handle
    del first
    second, third = model.new_sequence(200), model.new_sequence(200)
    assert second.handle == handle != third.handle
    assert torch.equal(model.extend(second, prompt), expected)
    assert torch.equal(model.extend(third, prompt), expected)
    del second
    assert model.new_sequence(301).handle is not None, "more than there was"
    larger = model.new_sequence(301)
    assert torch.equal(model.extend(larger, prompt), expected)
    assert larger.capacity == 301


def test_memory_of_many_sequences_is_not_kept() -> None:
    """Of those that are freed one at most: a burst of texts must not hold its memory for ever."""
    model = loaded("llama", "fp32")
    wide = [model.new_sequence(200_000)]
    before = mapped()
    wide.append(model.new_sequence(200_000))
    each = mapped() - before
    assert each > 100e6
    wide += [model.new_sequence(200_000) for _ in range(6)]
    before = mapped()
    wide.clear()
    assert before - mapped() > 6.5 * each
    assert len(model.spare._kept) == 1


def mapped() -> int:
    """Bytes of address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * 4096


# ---- drafting


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("precision", ["fp32", "int4"])
@pytest.mark.parametrize("length", [1, 16, 17, 250, 280])
def test_draft_is_greedy_decoding(variant: str, precision: str, length: int) -> None:
    """The tokens of single steps, their softmax, and a cache that goes on from there: after short and long prompts."""
    model, prompt, count = text(variant, precision), tokens(length, 5), 12
    model.truncate(0)
    if length > 1:
        model.forward(prompt[:-1])
    expected, certain, step = [], [], prompt[-1:]
    for _ in range(count):
        logits = model.forward(step)[0, :150]
        step = [int(logits.argmax())]
        expected += step
        certain.append(float(logits.softmax(-1).max()))
    following = model.forward(step)
    assert model.length == length + count

    model.truncate(0)
    drafted, probabilities = model.draft(prompt, count, vocabulary=150)
    assert drafted == expected
    assert probabilities == pytest.approx(certain, rel=1e-4)
    assert model.length == length + count - 1, "the last token is not in the cache"
    assert torch.equal(model.forward(step), following)


def test_draft_stops_behind_an_unlikely_token() -> None:
    """`min_confidence` saves passes over tokens nobody will accept; the token that fell below it is still given."""
    model, prompt = text("qwen3", "bf16"), tokens(30, 6)
    model.truncate(0)
    drafted, probabilities = model.draft(prompt, 16)
    assert len(drafted) == 16
    stops = 0
    for min_confidence in (0.0, *sorted(probabilities), 1.0):
        model.truncate(0)
        some, likely = model.draft(prompt, 16, min_confidence=min_confidence)
        unlikely = [index for index, probability in enumerate(probabilities) if probability < min_confidence]
        wanted = unlikely[0] + 1 if unlikely else 16
        assert (some, likely) == (drafted[:wanted], probabilities[:wanted])
        assert model.length == len(prompt) + wanted - 1
        stops += wanted < 16
    assert stops > 3, "the probabilities leave nothing to test"


def test_drafting_goes_on_after_a_rejection() -> None:
    """Rounds of drafting and rolling back leave the cache as plain decoding would have it."""
    model, written = text("llama", "int8"), tokens(20, 7)
    model.truncate(0)
    for accepted in (0, 3, 1, 4):
        drafted, _ = model.draft(written[model.length :], 4)
        written = [*written, *drafted[:accepted], 7]
        model.truncate(min(model.length, len(written) - 1))
    rest = written[model.length :]
    assert rest
    after = model.forward(rest)
    model.truncate(0)
    model.forward(written[:19])
    for start in range(19, len(written)):
        expected = model.forward(written[start : start + 1])
    assert torch.equal(after, expected)


# ---- what the process around it does


def generated(model: NativeModel, seed: int) -> tuple[torch.Tensor, list[int], list[float]]:
    """Logits of a prompt and what is drafted behind it, in a sequence of its own."""
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
import test_native_model as tests
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


# ---- instruction sets


@pytest.mark.parametrize("level", ["avx512", "avx512_vnni", "avx512_bf16"])
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
    names = "none, avx512, avx512_vnni, avx512_bf16, amx"
    assert f"IPEX_ASSIST_ISA=AMX is no instruction set: it may be {names}, or unset" in done.stderr
    assert "Traceback" not in done.stderr
    monkeypatch.setenv(ISA_VARIABLE, "")
    assert resolve_executor("native") == "native"


# ---- threads

_COUNTS_THREADS = """
import json, os, sys
from pathlib import Path
import torch
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.executors import native_loading
from ipex_assist.executors.load import load_model
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
model = load_model(open_checkpoint(sys.argv[1]), sys.argv[2], "native")
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
