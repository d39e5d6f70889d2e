"""Finds the means to pin a process: numactl, taskset, and whether the kernel allows memory policies."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

# get_mempolicy(2) has no wrapper in libc; these are its system call numbers.
GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236, "riscv64": 236, "ppc64le": 260, "s390x": 269}


@dataclass(frozen=True)
class Abilities:
    """Paths of numactl and taskset, None where missing; mempolicy: whether the kernel allows memory policies."""

    numactl: str | None
    taskset: str | None
    mempolicy: bool


def probe_abilities(environ: Mapping[str, str] = os.environ) -> Abilities:
    """Look for the tools on the PATH of `environ`, and ask the kernel."""
    path = environ.get("PATH", os.defpath)
    return Abilities(shutil.which("numactl", path=path), shutil.which("taskset", path=path), mempolicy_allowed())


def mempolicy_allowed() -> bool:
    """Whether get_mempolicy(2) works. Seccomp in containers and kernels without NUMA refuse it; numactl fails then."""
    import ctypes

    number = GET_MEMPOLICY.get(platform.machine())
    if number is None:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(number, None, None, 0, None, 0) == 0)
