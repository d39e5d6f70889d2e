"""Checks after the start whether the process got what was planned, and restores the affinity that OpenMP narrows."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ipex_assist.env.cpulist import format_cpulist
from ipex_assist.launch.plan import LaunchPlan


@dataclass(frozen=True)
class ProcessState:
    """The state of a process by /proc: the calling thread's CPUs, the CPUs of every thread, and the mapped files."""

    own_mask: frozenset[int]
    masks: tuple[frozenset[int], ...]
    mapped: frozenset[str]


def check_start(plan: LaunchPlan | None, actual_threads: int | None = None) -> list[str]:
    """Compare this process with its plan; returns warnings, each with a remedy, and none without a plan.

    Call it after the first parallel region (a forward pass), in which OpenMP binds its threads, and after
    `restore_affinity`. `actual_threads` is the framework's number, e.g. torch.get_num_threads(); None: not checked.
    """
    return [] if plan is None else compare(plan, read_process_state(), actual_threads, os.environ)


def restore_affinity(plan: LaunchPlan | None) -> None:
    """Set the calling thread's affinity to all planned CPUs again, so that threads it starts do not share one core.

    With KMP_AFFINITY or OMP_PROC_BIND the OpenMP runtime binds the initial thread to the first core in its first
    parallel region, and threads started later (tokenizer, streaming, data loading) inherit that one core. OpenMP's own
    workers stay bound, and libiomp5 does not bind the initial thread again. Its modifier `reset` would do the same, but
    costs two system calls in every parallel region (5 to 10 µs, measured), which is too much for decoding.
    """
    if plan is None:
        return
    if os.sched_getaffinity(0) < plan.mask:
        os.sched_setaffinity(0, plan.mask)


def keep_to_spare_cpu(plan: LaunchPlan | None) -> bool:
    """Keep the calling thread, and those that it starts, to the plan's spare CPU, if there is one: whether there is.

    The kernel would not find that CPU by itself: where nearly all are busy it hardly looks for one that is idle, and a
    thread which is woken on a core that computes keeps all others waiting.
    """
    if plan is None or plan.spare is None:
        return False
    os.sched_setaffinity(0, {plan.spare})
    return True


def read_process_state() -> ProcessState:
    """Read the state of this process. A thread that ends meanwhile is left out."""
    masks = []
    for task in os.listdir("/proc/self/task"):
        try:
            masks.append(frozenset(os.sched_getaffinity(int(task))))
        except ProcessLookupError:
            continue
    with open("/proc/self/maps") as maps:
        mapped = frozenset(fields[5].rstrip("\n") for line in maps if len(fields := line.split(maxsplit=5)) == 6)
    return ProcessState(frozenset(os.sched_getaffinity(0)), tuple(masks), mapped)


_BINDS = ("KMP_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")  # OpenMP's threads, where it is set


def compare(
    plan: LaunchPlan, state: ProcessState, actual_threads: int | None, environ: Mapping[str, str] | None = None
) -> list[str]:
    """The deviations from the plan, as lines for the user.

    environ: of the process; what it has and the plan did not set is the user's own.
    """
    has = {} if environ is None else environ
    own = [f"{name}={value}" for name in _BINDS if (value := has.get(name)) and plan.variables.get(name) != value]
    lines = [*_affinity_deviations(plan, state, own), *_missing_libraries(plan.preload, state.mapped)]
    if actual_threads is not None and actual_threads != plan.threads:
        lines.append(
            f"{actual_threads} compute threads instead of the {plan.threads} planned: something called "
            f"set_num_threads or changed OMP_NUM_THREADS; use --threads {actual_threads} if that is meant"
        )
    return lines


def _affinity_deviations(plan: LaunchPlan, state: ProcessState, own: Sequence[str]) -> list[str]:
    """own: variables of the user that bind OpenMP's threads."""
    planned = frozenset(plan.cpus)
    reached = frozenset().union(*state.masks) - (plan.mask - planned)
    lines = []
    kept = f"your {' and '.join(own)} {'were' if len(own) > 1 else 'was'} kept, and binds threads elsewhere"
    if outside := reached - planned:
        reason = (
            f"{kept}; unset it, or give --cpus {format_cpulist(reached)}"
            if own
            else (
                "the program changed its affinity; look for sched_setaffinity, taskset or a wrapper inside the command"
            )
        )
        lines.append(
            f"threads may run on CPUs {format_cpulist(outside)}, outside the planned {format_cpulist(planned)}: "
            f"{reason}"
        )
    if idle := planned - reached:
        reason = kept if own else "the affinity collapsed"
        lines.append(
            f"no thread may run on {len(idle)} of the {len(planned)} planned CPUs ({format_cpulist(idle)}): "
            f"{reason}; unset KMP_AFFINITY, OMP_PROC_BIND and GOMP_CPU_AFFINITY and start again"
        )
    elif state.own_mask < planned:
        lines.append(
            f"this thread and all it starts may run only on CPU {format_cpulist(state.own_mask)} of the planned "
            f"{format_cpulist(planned)}; set KMP_AFFINITY=none, or call ipex_assist.launch.restore_affinity"
        )
    bound = Counter(next(iter(mask)) for mask in state.masks if len(mask) == 1)
    # Several pools may put several threads on each CPU; far more on one CPU means that they inherited a binding.
    fair_share = -(-sum(bound.values()) // len(planned))
    if len(planned) > 1 and not idle and (crowded := [cpu for cpu in planned if bound[cpu] > fair_share]):
        lines.append(
            f"{max(bound[cpu] for cpu in crowded)} threads are held on CPU {format_cpulist(crowded)} alone, which they "
            "inherited from a bound thread; set KMP_AFFINITY=none to let them move"
        )
    return lines


def _missing_libraries(preload: Iterable[str], mapped: frozenset[str]) -> list[str]:
    return [
        f"{path} was to be preloaded and is not in this process: a wrapper cleared LD_PRELOAD, or the file does not "
        f"load (try: LD_PRELOAD={path} true)"
        for path in preload
        if path not in mapped and os.path.realpath(path) not in mapped
    ]
