"""How a machine is divided among engines: one over all nodes, or one for each socket or node. Never imports torch.

One engine reads its weights with the bandwidth of all nodes, so that a request has its tokens soonest; several wait
less for each other, and each prepares its own rows in Python. Which makes more tokens depends on how many requests
there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ipex_assist.env.machine import Core, Machine
from ipex_assist.executors.traffic import expert_bytes, linear_bytes

if TYPE_CHECKING:
    from ipex_assist.models.spec import DecoderSpec

Division = Literal[1, "per-socket", "per-node"]

# What nobody has measured before a model is loaded. GB/s of the memory for a core of a full socket, on Xeons of the
# last four generations (benchmarks/sockets.py has them by socket); rows at which a pass with AMX, and without, takes as
# long to multiply as to read int4 weights; seconds of Python for each request in a pass; and of a cache line to another
# core, between two cores that read the same, and to another socket (benchmarks/barriers.py).
CORE_BYTES_PER_SECOND = 4e9
BALANCE_AMX, BALANCE = 49, 12
PYTHON_SECONDS = 50e-6
LINE_SECONDS, SPREAD_SECONDS, SOCKET_SECONDS = 70e-9, 15e-9, 150e-9
CORES_AT_A_LINE = 8  # of a barrier
BARRIERS, BARRIERS_MIXTURE = 5, 6  # of a layer: 162 a pass of Llama 3.1 8B, 290 of Qwen3 30B-A3B
GAIN = 1.05  # more engines must make this many times the tokens: a request alone is slower on each


@dataclass(frozen=True)
class PassWork:
    """What an engine does in a pass.

    shared: bytes of weights that every pass reads; experts: of all experts, of which a row reads `per_token` of
    `count`. barriers: at which its threads wait for each other. memory: bytes that an engine fills, 0 where not known.
    balance: rows whose arithmetic takes as long as reading the weights of one.
    """

    shared: float
    experts: float = 0.0
    per_token: int = 1
    count: int = 1
    barriers: int = 200
    memory: int = 0
    balance: float = BALANCE

    def read(self, rows: float) -> float:
        """Bytes that a pass of `rows` reads: of experts those that rows which choose independently meet."""
        return self.shared + self.experts * (1 - (1 - self.per_token / self.count) ** rows)

    def seconds(self, rows: float, cores: int, sockets: int) -> float:
        """Of a pass of an engine with `cores` cores on each of `sockets` sockets."""
        speed = cores * sockets * CORE_BYTES_PER_SECOND
        row = self.read(1) / speed / self.balance
        return self.read(rows) / speed + rows * (row + PYTHON_SECONDS) + self.barriers * barrier_seconds(cores, sockets)


def work_of(spec: DecoderSpec, weights: int, memory: int, *, amx: bool) -> PassWork:
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
        balance=BALANCE_AMX if amx else BALANCE,
    )


def barrier_seconds(cores: int, sockets: int) -> float:
    """Of a barrier to which all threads come at once, as benchmarks/sockets_model.py has it."""
    groups = -(-cores // CORES_AT_A_LINE)
    counting = (-(-cores // groups) + (groups if groups > 1 else 0)) * LINE_SECONDS
    crossing = (2 * sockets - 1) * SOCKET_SECONDS if sockets > 1 else 0.0
    return counting + crossing + LINE_SECONDS + (cores - 1) * SPREAD_SECONDS


def choose_division(
    work: PassWork, requests: int, machine: Machine, cores: Sequence[Core], at_a_time: int | None = None
) -> Division:
    """How `cores` are divided so that most tokens a second are made of `requests` that come at once.

    at_a_time: the most of an engine; the others wait. A division whose engines do not fit their nodes' memory is none.
    """
    divisions: list[tuple[Division, list[tuple[Core, ...]]]] = [
        (1, [tuple(cores)]),
        ("per-socket", machine.by_socket(cores)),
        ("per-node", machine.by_node(cores)),
    ]
    best: Division = 1
    most = 0.0
    for division, groups in divisions:
        if division != 1 and not all(_fits(work.memory, group, machine) for group in groups):
            continue
        made = _tokens_per_second(work, requests, groups, at_a_time)
        if made > most * GAIN:
            best, most = division, made
    return best


def _tokens_per_second(work: PassWork, requests: int, groups: Sequence[Sequence[Core]], at_a_time: int | None) -> float:
    """Of engines on these cores, among which requests are dealt out evenly."""
    engines = min(requests, len(groups))
    rows = requests / engines
    if at_a_time is not None:
        rows = min(rows, at_a_time)
    sockets = len({core.socket for core in groups[0]})
    return engines * rows / work.seconds(rows, max(1, len(groups[0]) // sockets), sockets)


def _fits(memory: int, group: Sequence[Core], machine: Machine) -> bool:
    cpus = {cpu for core in group for cpu in core.cpus}
    near = [n for n in machine.nodes if n.id in machine.allowed_nodes and n.has_memory and not cpus.isdisjoint(n.cpus)]
    if not near:
        return False
    free = [node.memory_bytes if node.free_bytes is None else node.free_bytes for node in near]
    return memory <= sum(size or 0 for size in free) or None in free
