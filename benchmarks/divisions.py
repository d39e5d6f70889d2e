"""Which engines share a big machine, by how many requests come at once, and which CPU they leave to other threads.

    python benchmarks/divisions.py [--requests 1,16,64,1024] | tee out.txt; python benchmarks/results.py keep out.txt

Modelled, nothing runs: workers/division.py is asked as `serve` and `batch` ask it, with the estimates for cores with
AMX and weights in int4, about machines with as many cores and memory nodes, of 256 GB a socket. Where a model was
measured, its passes take the place of the estimates. A cell is the number of engines and the tokens/s of all.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import measure
from sockets_shapes import SHAPES, Shape

from ipex_assist.env.machine import Core, Machine, Node
from ipex_assist.workers.division import BARRIERS, BARRIERS_MIXTURE, PassWork, choose_division, estimated_speed, ways

# Sockets, cores and memory nodes of each, and threads of a core.
MACHINES = ((2, 32, 1, 2), (2, 56, 1, 2), (2, 64, 2, 2), (2, 86, 2, 1), (2, 128, 3, 2), (4, 56, 1, 2))
INT4 = 0.5 + 4 / 64  # bytes of a weight, groups of 64
SOCKET_BYTES = 256 << 30
KEPT_BYTES = 8 << 30  # keys, values and buffers of an engine


def machine(sockets: int, cores: int, nodes: int, threads: int) -> Machine:
    """A machine as Linux numbers it: first one CPU of each core, socket after socket, then the siblings."""
    every = sockets * cores
    of_core = [tuple(core + every * i for i in range(threads)) for core in range(every)]
    places = [core // cores * nodes + core % cores * nodes // cores for core in range(every)]
    memory = SOCKET_BYTES // nodes
    cpus = [
        sorted(cpu for at, each in zip(places, of_core, strict=True) if at == n for cpu in each)
        for n in range(sockets * nodes)
    ]
    return Machine(
        cores=tuple(Core(each, core // cores) for core, each in enumerate(of_core)),
        nodes=tuple(Node(n, tuple(each), memory, memory) for n, each in enumerate(cpus)),
        allowed=tuple(range(every * threads)),
        allowed_nodes=tuple(range(sockets * nodes)),
    )


def work_of(shape: Shape) -> PassWork:
    """What an engine of a model does in a pass, with int4 weights."""
    projections = shape.hidden * shape.head_dim * 2 * (shape.heads + shape.kv_heads)
    count, chosen, size = shape.experts
    dense = shape.dense if count else shape.layers
    shared = shape.layers * projections + dense * 3 * shape.hidden * shape.intermediate
    shared += shape.hidden * shape.vocabulary + (shape.layers - dense) * shape.shared * 3 * shape.hidden * size
    experts = (shape.layers - dense) * count * 3 * shape.hidden * size
    barriers = BARRIERS * dense + BARRIERS_MIXTURE * (shape.layers - dense)
    memory = int(INT4 * (shared + experts)) + KEPT_BYTES
    return PassWork(INT4 * shared, INT4 * experts, chosen or 1, count or 1, barriers, memory)


def line(sizes: tuple[int, int, int, int], shape: Shape, requests: Sequence[int]) -> dict[str, str]:
    """A line of the table."""
    here = machine(*sizes)
    every, speed = ways(here, here.cores), estimated_speed("int4")
    sockets, cores, nodes, threads = sizes
    found = {"machine": f"{sockets} x {cores} cores, {sockets * nodes} nodes, {threads} threads a core"}
    found["model"] = shape.name
    for number in requests:
        made = choose_division(work_of(shape), number, here, here.cores, speed)
        found[f"{number} at once"] = f"{len(every[made.division])}: {made.rates[made.division]:,.0f}"
    first = [core.cpus[0] for core in here.cores]
    spare = here.spare_cpu(first)
    taken = "none" if spare is None else f"{spare}, a core's" if spare in first else f"{spare}, a sibling"
    return {**found, "CPU for others": taken}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = {"type": lambda text: [int(part) for part in text.split(",")]}
    parser.add_argument("--requests", default="1,16,64,1024", **numbers, help="that come at once")
    args = parser.parse_args(argv)
    shapes = [shape for shape in SHAPES if not shape.latent[0]]
    measure.report([line(sizes, shape, args.requests) for sizes in MACHINES for shape in shapes], {})


if __name__ == "__main__":
    main()
