"""How a machine is divided among engines: one over all nodes, or one for each socket or node. Never imports torch.

One engine reads its weights with the bandwidth of all nodes, so that a request has its tokens soonest; several wait
less for each other, and each prepares its own rows in Python. Which makes more tokens depends on how many requests
there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from ipex_assist.env.machine import Core, Machine
from ipex_assist.executors.traffic import expert_bytes, linear_bytes
from ipex_assist.quantization.precision import FORMATS
from ipex_assist.speculative.costs.by_rows import seconds_of_many

if TYPE_CHECKING:
    from ipex_assist.models.spec import DecoderSpec

Division = Literal[1, "per-socket", "per-node"]
Seconds = Callable[[float], float]  # of a pass, by its rows

# Until passes of a model were measured here. GB/s of the memory for a core of a full socket, on Xeons of the last four
# generations (benchmarks/sockets.py has them by socket), and the rows whose arithmetic takes as long as reading the
# weights once: with AMX on paper; without it by the products that a core of this machine adds up, of which passes of
# many rows reach so much (70 to 85 % in int4 and int8, 85 in bf16: measured with VNNI).
CORE_BYTES_PER_SECOND = 4e9
BALANCE_AMX = {"int4": 49.0, "int8": 112.0, "bf16": 192.0}
REACHED = 0.7
# Seconds that the core waits for Python for each request in a pass (benchmarks/streams.py: 0.3 ms of 64); and of a
# cache line to another core, between two cores that read the same, and to another socket (benchmarks/barriers.py).
PYTHON_SECONDS = 5e-6
LINE_SECONDS, SPREAD_SECONDS, SOCKET_SECONDS = 70e-9, 15e-9, 150e-9
CORES_AT_A_LINE = 8  # of a barrier
BARRIERS, BARRIERS_MIXTURE = 5, 6  # of a layer: 162 a pass of Llama 3.1 8B, 290 of Qwen3 30B-A3B
# More engines must make this many times the tokens, unless all are full: a request alone is slower on each.
GAIN = 1.05
MOST_BALANCE = 1024.0  # where arithmetic was not seen to take any time
# Rows of a pass, and so requests, that an engine takes at a time, and how many times as long twice the rows may take:
# with more, 2n requests that share passes end later on average (each after s(2n) a token) than if n of them waited for
# the others (the first half after s(n), the second after twice that: 1.5 s(n)). Of a dense model the border is where
# arithmetic takes as long as reading; of a mixture, whose first rows read more experts each, it is far behind that.
LEAST_ROWS, MOST_ROWS = 16, 256
TWO_TURNS = 1.5


@dataclass(frozen=True)
class CoreSpeed:
    """What each core does while all cores of its socket work.

    bytes_per_second: of weights that it reads. balance: rows whose arithmetic takes as long as reading the weights of
    one row. source: how that is known, as the end of a sentence.
    """

    bytes_per_second: float
    balance: float
    source: str


def arithmetic_of(precision: str) -> str:
    """Int4, int8 or bf16: what weights of a precision are multiplied like."""
    stored = FORMATS[precision]
    return "int4" if stored.weight_bytes < 0.8 else "int8" if stored.row_bytes == 1 else "bf16"


def estimated_speed(precision: str, products: float | None = None) -> CoreSpeed:
    """By the precision of weights, for a model that has not been measured here.

    products: those that a core without AMX adds up in a second, with nothing to read; None: it has AMX.
    """
    kind = arithmetic_of(precision)
    if products is None:
        return CoreSpeed(CORE_BYTES_PER_SECOND, BALANCE_AMX[kind], f"estimated for {kind} with AMX")
    balance = REACHED * products * FORMATS[precision].weight_bytes / CORE_BYTES_PER_SECOND
    return CoreSpeed(CORE_BYTES_PER_SECOND, balance, f"estimated for {kind} by a core's products")


@dataclass(frozen=True)
class PassWork:
    """What an engine does in a pass.

    shared: bytes of weights that every pass reads; experts: of all experts, of which a row reads `per_token` of
    `count`. barriers: at which its threads wait for each other. memory: bytes that an engine fills, 0 where not known.
    """

    shared: float
    experts: float = 0.0
    per_token: int = 1
    count: int = 1
    barriers: int = 200
    memory: int = 0

    def read(self, rows: float) -> float:
        """Bytes that a pass of `rows` reads: of experts those that rows which choose independently meet."""
        return self.shared + self.experts * (1 - (1 - self.per_token / self.count) ** rows)

    def seconds(self, rows: float, cores: int, sockets: int, speed: CoreSpeed) -> float:
        """Of a pass of an engine with `cores` cores on each of `sockets` sockets, as modelled."""
        together = cores * sockets * speed.bytes_per_second
        row = self.read(1) / together / speed.balance
        return self.read(rows) / together + rows * row + self.barriers * barrier_seconds(cores, sockets)

    def measured_speed(self, passes: Sequence[float], cores: int, sockets: int) -> CoreSpeed:
        """What a core does by the measured seconds of passes of 1, 2, … rows: the inverse of `seconds`.

        Seconds without waiting are read(rows) ÷ speed + rows × (those of a row's arithmetic), with two unknowns that
        the first and the last pass tell.
        """
        waiting, most = min(self.barriers * barrier_seconds(cores, sockets), 0.75 * passes[0]), len(passes)
        first, last = passes[0] - waiting, passes[-1] - waiting
        once = self.read(1)
        reading = first  # seconds of the first pass in which weights are read
        if most > 1:  # no less than half of it, however more rows were disturbed
            reading = once * (most * first - last) / (most * once - self.read(most))
            reading = min(first, max(reading, first / 2))
        row = first - reading
        balance = reading / row if row * MOST_BALANCE > reading else MOST_BALANCE
        speed = once / reading / cores / sockets
        return CoreSpeed(speed, balance, f"by passes measured on {cores * sockets} cores")


def work_of(spec: DecoderSpec, weights: int, memory: int) -> PassWork:
    """What an engine of a model does in a pass. weights: bytes of all that it has; memory: of all that it fills."""
    everything, experts = linear_bytes(spec, "bf16"), expert_bytes(spec, "bf16")
    share = experts / everything if everything else 0.0
    first = spec.experts
    barriers = sum(BARRIERS_MIXTURE if layer.experts is not None else BARRIERS for layer in spec.layers)
    return PassWork(
        shared=weights * (1 - share),
        experts=weights * share,
        per_token=1 if first is None else first.per_token,
        count=1 if first is None else first.count,
        barriers=barriers,
        memory=memory,
    )


def barrier_seconds(cores: int, sockets: int) -> float:
    """Of a barrier to which all threads come at once, as benchmarks/sockets_model.py has it."""
    groups = -(-cores // CORES_AT_A_LINE)
    counting = (-(-cores // groups) + (groups if groups > 1 else 0)) * LINE_SECONDS
    crossing = (2 * sockets - 1) * SOCKET_SECONDS if sockets > 1 else 0.0
    return counting + crossing + LINE_SECONDS + (cores - 1) * SPREAD_SECONDS


def rows_at_a_time(seconds: Seconds) -> int:
    """How many requests share passes well: see LEAST_ROWS."""
    every = range(LEAST_ROWS, MOST_ROWS + 1)
    return max((rows for rows in every if seconds(2 * rows) <= TWO_TURNS * seconds(rows)), default=LEAST_ROWS)


@dataclass(frozen=True)
class DivisionChoice:
    """A division, and tokens a second of each that fits the memory, with how they are known."""

    division: Division
    rates: Mapping[Division, float]
    sources: Mapping[Division, str]

    def describe(self, requests: int) -> str:
        """Why it was chosen, as a sentence."""
        names = {1: "one engine on all nodes", "per-socket": "one a socket", "per-node": "one a node"}
        many = f"{requests} request{'s' * (requests != 1)} at a time"
        if len(self.rates) == 1:
            return f"{names[self.division]}: smaller ones would not fit the memory of their nodes"
        others = ", ".join(f"{names[each]} {rate:,.0f}" for each, rate in self.rates.items() if each != self.division)
        how = " and ".join(dict.fromkeys(self.sources.values()))
        best = f"{names[self.division]}: of {many} it makes {self.rates[self.division]:,.0f} tokens/s"
        return f"{best}, {others} ({how})"


def ways(machine: Machine, cores: Sequence[Core]) -> dict[Division, list[tuple[Core, ...]]]:
    """The cores of each engine by division; one that gives the same engines as another before it is left out."""
    every: list[tuple[Division, list[tuple[Core, ...]]]] = [
        (1, [tuple(cores)]),
        ("per-socket", machine.by_socket(cores)),
        ("per-node", machine.by_node(cores)),
    ]
    return {each: groups for at, (each, groups) in enumerate(every) if groups not in [other for _, other in every[:at]]}


def choose_division(
    work: PassWork,
    requests: int,
    machine: Machine,
    cores: Sequence[Core],
    speed: CoreSpeed,
    *,
    measured: Mapping[Division, Sequence[float]] | None = None,
    at_a_time: int | None = None,
) -> DivisionChoice:
    """How `cores` are divided so that most tokens a second are made of `requests` that come at once.

    speed: of cores where nothing is measured. measured: seconds of passes of 1, 2, … rows of an engine of a division;
    others follow from them. at_a_time: the most requests of an engine; the others wait. A division whose engines do
    not fit their nodes' memory is none.
    """
    known, possible = measured or {}, ways(machine, cores)
    for division, passes in known.items():
        if division in possible:
            speed = work.measured_speed(passes, *_shape(possible[division][0]))
            break
    best: Division = 1
    rates: dict[Division, float] = {}
    for division, groups in possible.items():
        if division != 1 and not all(_fits(work.memory, group, machine) for group in groups):
            continue
        seconds = partial(seconds_of_many, known[division]) if division in known else _modelled(work, groups[0], speed)
        most = rows_at_a_time(seconds) if at_a_time is None else at_a_time
        rates[division] = _tokens_per_second(seconds, requests, len(groups), most)
        if rates[division] > rates[best] * (1 if requests >= most * len(groups) else GAIN):
            best = division
    return DivisionChoice(best, rates, {each: "measured" if each in known else speed.source for each in rates})


def _shape(group: Sequence[Core]) -> tuple[int, int]:
    """Cores on each socket of an engine, and its sockets."""
    sockets = len({core.socket for core in group})
    return max(1, len(group) // sockets), sockets


def _modelled(work: PassWork, group: Sequence[Core], speed: CoreSpeed) -> Seconds:
    cores, sockets = _shape(group)
    return lambda rows: work.seconds(rows, cores, sockets, speed)


def _tokens_per_second(seconds: Seconds, requests: int, count: int, most: int) -> float:
    """Of `count` engines with such passes, among which requests are dealt out evenly, at most so many at a time."""
    engines = min(requests, count)
    rows = min(requests / engines, most)
    return engines * rows / (seconds(rows) + rows * PYTHON_SECONDS)


def _fits(memory: int, group: Sequence[Core], machine: Machine) -> bool:
    cpus = {cpu for core in group for cpu in core.cpus}
    near = [n for n in machine.nodes if n.id in machine.allowed_nodes and n.has_memory and not cpus.isdisjoint(n.cpus)]
    if not near:
        return False
    free = [node.memory_bytes if node.free_bytes is None else node.free_bytes for node in near]
    return memory <= sum(size or 0 for size in free) or None in free
