"""Which variables are set, which of the user's are kept, and what LD_PRELOAD becomes."""

from __future__ import annotations

import pytest

from ipex_assist.env.libraries import Libraries
from ipex_assist.env.variables import KMP_AFFINITY, MALLOC_CONF, choose_variables

pytestmark = pytest.mark.one_stack

IOMP, TCMALLOC, JEMALLOC = "/venv/lib/libiomp5.so", "/usr/lib/libtcmalloc_minimal.so.4", "/usr/lib/libjemalloc.so.2"
BOTH = Libraries(libiomp5=IOMP, tcmalloc=TCMALLOC, jemalloc=JEMALLOC)


def test_what_ipexrun_sets() -> None:
    """Catches drifting from IPEX 2.8's launcher: allocator before OpenMP, its affinity and block time."""
    variables = choose_variables(28, BOTH, {})
    assert variables.set == {
        "OMP_NUM_THREADS": "28",
        "KMP_AFFINITY": "granularity=fine,compact,1,0",
        "KMP_BLOCKTIME": "1",
        "KMP_SETTINGS": "0",
        "LD_PRELOAD": f"{TCMALLOC}:{IOMP}",
    }
    assert variables.kept == {}
    assert variables.preload == (TCMALLOC, IOMP)


def test_jemalloc_where_there_is_no_tcmalloc() -> None:
    """Catches MALLOC_CONF without jemalloc, and jemalloc without MALLOC_CONF."""
    variables = choose_variables(4, Libraries(libiomp5=IOMP, jemalloc=JEMALLOC), {})
    assert variables.set["LD_PRELOAD"] == f"{JEMALLOC}:{IOMP}"
    assert variables.set["MALLOC_CONF"] == MALLOC_CONF
    assert "MALLOC_CONF" not in choose_variables(4, BOTH, {}).set


def test_nothing_found() -> None:
    """Catches an LD_PRELOAD of nothing, and KMP variables for a runtime that ignores them."""
    variables = choose_variables(4, Libraries(), {})
    assert variables.set == {"OMP_NUM_THREADS": "4", "OMP_SCHEDULE": "STATIC", "OMP_PROC_BIND": "CLOSE"}


def test_the_users_values_win_and_are_reported() -> None:
    """Catches overwriting the user, and keeping silently."""
    environ = {"OMP_NUM_THREADS": "3", "KMP_BLOCKTIME": "1", "KMP_AFFINITY": "", "HOME": "/root"}
    variables = choose_variables(28, BOTH, environ)
    assert variables.kept == {"OMP_NUM_THREADS": "3", "KMP_BLOCKTIME": "1"}
    assert not variables.kept.keys() & variables.set.keys()
    assert variables.set["KMP_AFFINITY"] == KMP_AFFINITY  # an empty variable is not a wish
    assert variables.describe_kept() == [
        "OMP_NUM_THREADS=3 is yours and kept (otherwise 28)",
        "KMP_BLOCKTIME=1 is yours and kept",
    ]


def test_threads_asked_for_on_the_command_line_win_over_the_variable() -> None:
    variables = choose_variables(2, BOTH, {"OMP_NUM_THREADS": "3"}, override_threads=True)
    assert variables.set["OMP_NUM_THREADS"] == "2"
    assert variables.kept == {}


def test_the_users_binding_is_not_overridden_by_ours() -> None:
    """Catches KMP_AFFINITY beside OMP_PLACES: libiomp5 then ignores the user's."""
    variables = choose_variables(4, BOTH, {"OMP_PLACES": "cores"})
    assert "KMP_AFFINITY" not in variables.set
    assert variables.describe_kept() == [f"OMP_PLACES=cores is yours and kept (otherwise KMP_AFFINITY={KMP_AFFINITY})"]


def test_preload_is_merged_in_order_without_duplicates() -> None:
    """Catches losing the user's libraries, and loading one twice under two names."""
    environ = {"LD_PRELOAD": "/opt/trace.so /opt/other.so:/opt/trace.so"}
    assert choose_variables(4, BOTH, environ).set["LD_PRELOAD"] == f"/opt/trace.so:/opt/other.so:{TCMALLOC}:{IOMP}"
    environ = {"LD_PRELOAD": "/elsewhere/libiomp5.so:/elsewhere/libtcmalloc.so.4"}
    assert "LD_PRELOAD" not in choose_variables(4, BOTH, environ).set


def test_no_second_allocator_or_openmp_beside_the_users() -> None:
    """Catches tcmalloc over the user's jemalloc, and libiomp5 over the user's libgomp."""
    variables = choose_variables(4, BOTH, {"LD_PRELOAD": JEMALLOC})
    assert variables.set["LD_PRELOAD"] == f"{JEMALLOC}:{IOMP}"
    assert variables.set["MALLOC_CONF"] == MALLOC_CONF
    variables = choose_variables(4, BOTH, {"LD_PRELOAD": "libgomp.so.1"})
    assert variables.set["LD_PRELOAD"] == f"libgomp.so.1:{TCMALLOC}"
    assert "KMP_AFFINITY" not in variables.set


def test_openmp_settings_on_request() -> None:
    assert choose_variables(4, BOTH, {}, show_openmp_settings=True).set["KMP_SETTINGS"] == "1"
