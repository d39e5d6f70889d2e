"""Finds the means to pin a process: numactl, taskset, and whether the kernel allows memory policies."""

from __future__ import annotations

import errno
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

# set_mempolicy(2) has no wrapper in libc; these are its system call numbers.
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261, "s390x": 270}
_NO_POLICY = 0x7FFF  # no such policy: a kernel that would take one answers EINVAL, and nothing is changed


@dataclass(frozen=True)
class Abilities:
    """Paths of numactl and taskset, None where missing.

    mempolicy, affinity: whether the kernel lets this process set a memory policy, and its CPUs.
    """

    numactl: str | None
    taskset: str | None
    mempolicy: bool
    affinity: bool = True


def probe_abilities(environ: Mapping[str, str] = os.environ) -> Abilities:
    """Look for the tools on the PATH of `environ`, and ask the kernel."""
    path = environ.get("PATH", os.defpath)
    numactl, taskset = (shutil.which(name, path=path) for name in ("numactl", "taskset"))
    return Abilities(numactl, taskset, mempolicy_allowed(), affinity_allowed())


def mempolicy_allowed() -> bool:
    """Whether set_mempolicy(2) may be called. Seccomp in containers and kernels without NUMA refuse it."""
    import ctypes

    number = SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(number, _NO_POLICY, None, 0)
    return ctypes.get_errno() == errno.EINVAL


def affinity_allowed() -> bool:
    """Whether sched_setaffinity(2) may be called; the CPUs stay as they are."""
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0))
    except OSError:
        return False
    return True
