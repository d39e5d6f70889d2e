"""What the kernel allows is asked by the calls that are used, under a filter of system calls as containers have it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.one_stack

# A seccomp filter that answers EPERM to one system call and allows all others (seccomp(2), classic BPF).
FILTERED = """
import ctypes, sys
number = int(sys.argv[1])
class Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]
class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_uint16), ("filter", ctypes.POINTER(Filter))]
load, compare = Filter(0x20, 0, 0, 0), Filter(0x15, 0, 1, number)
lines = (Filter * 4)(load, compare, Filter(6, 0, 0, 0x50001), Filter(6, 0, 0, 0x7FFF0000))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
if libc.prctl(22, 2, ctypes.byref(Program(4, lines)), 0, 0) != 0:
    print("no seccomp here")
    sys.exit()
from ipex_assist.launch.abilities import probe_abilities
found = probe_abilities()
print(found.mempolicy, found.affinity)
"""
SET_MEMPOLICY, SCHED_SETAFFINITY, NOTHING = 238, 203, 9999


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="system call numbers of Linux on x86-64")
def test_refused_calls_are_seen() -> None:
    """get_mempolicy alone was asked, which filters allow, and numactl then ended with exit code 1."""
    found = {}
    for number in (NOTHING, SET_MEMPOLICY, SCHED_SETAFFINITY):
        run = subprocess.run([sys.executable, "-c", FILTERED, str(number)], capture_output=True, text=True, check=True)
        if "no seccomp" in run.stdout:
            pytest.skip("this kernel takes no filter")
        found[number] = [word == "True" for word in run.stdout.split()]
    mempolicy, affinity = found[NOTHING]
    assert affinity
    assert found[SET_MEMPOLICY] == [False, True]
    assert found[SCHED_SETAFFINITY] == [mempolicy, False]
