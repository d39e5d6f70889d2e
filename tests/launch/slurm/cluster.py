"""A Slurm of three virtual nodes on this machine for as long as a command runs: python cluster.py COMMAND [ARGUMENT …]

Needs slurmctld, slurmd and munged (Debian: slurm-wlm, munge). Everything is kept in a temporary folder and on the
loopback interface. However this process ends, kill -9 included, the daemons and the jobs' processes end with it.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ipex_assist.launch.guard import guarded

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
NODES = ("n1", "n2", "n3")
START_SECONDS = 20.0
STOP_SECONDS = 10.0


def missing() -> list[str]:
    """Return the programs that are not installed here."""
    return [name for name in PROGRAMS if find(name) is None]


def find(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Start the daemons, yield the environment in which Slurm's commands find them, and stop them.

    Raises:
        RuntimeError: the nodes did not come up; the message has the daemons' logs.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH_", "SRUN_"))}
    environ["SLURM_CONF"] = str(folder / "slurm.conf")
    _configure(folder)
    munged = ["--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key"]
    munged += [f"--{name}-file={folder}/munged.{name}" for name in ("pid", "log", "seed")]
    with ExitStack() as running:
        running.enter_context(_daemon("munged", munged, folder, environ))
        _wait(lambda: (folder / "munge.socket").exists(), folder)
        running.enter_context(_daemon("slurmctld", ["-D"], folder, environ))
        for node in NODES:
            running.enter_context(_daemon("slurmd", ["-D", "-N", node], folder, environ))
        running.callback(_end_jobs, environ)
        _wait(
            lambda: _ask(environ, "sinfo", "--noheader", "--Node", "--format=%T").split() == ["idle"] * len(NODES),
            folder,
        )
        yield environ


def _configure(folder: Path) -> None:
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    found = _ask(dict(os.environ), str(find("slurmd")), "-C")
    hardware = re.match(r"NodeName=\S+ (.*)", found)
    if hardware is None:
        raise RuntimeError(f"slurmd -C says nothing of this machine: {found}")
    values = {
        "host": socket.gethostname().partition(".")[0],
        "user": getpass.getuser(),
        "folder": str(folder),
        "hardware": hardware[1],
        **dict(zip(("controller_port", "port_1", "port_2", "port_3"), map(str, _free_ports(4)), strict=True)),
    }
    text = Path(__file__).with_name("slurm.conf").read_text()
    (folder / "slurm.conf").write_text(re.sub(r"\{(\w+)\}", lambda match: values[match[1]], text))


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def _daemon(name: str, arguments: Sequence[str], folder: Path, environ: dict[str, str]) -> Iterator[None]:
    with open(folder / f"{name}.out", "ab") as output:
        process = subprocess.Popen(
            [str(find(name)), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environ,
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ask(environ: dict[str, str], *command: str) -> str:
    """Return what a command prints; nothing where it fails, as long as the controller is not up."""
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ).stdout


def _end_jobs(environ: dict[str, str]) -> None:
    """Let them end in order; what then is left of them, the guard kills."""
    _ask(environ, "scancel", f"--user={getpass.getuser()}")
    deadline = time.monotonic() + STOP_SECONDS
    while _ask(environ, "squeue", "--noheader").strip() and time.monotonic() < deadline:
        time.sleep(0.1)


def _wait(condition: Callable[[], bool], folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            logs = [path for path in sorted(folder.iterdir()) if path.suffix in (".log", ".out")]
            said = [f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in logs]
            raise RuntimeError("\n".join(["Slurm did not start", *said]))
        time.sleep(0.05)


def run_beside(command: Sequence[str], folder: Path) -> int:
    """Run `command` beside a cluster in `folder`, and return its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # by way of the clean-up
    try:
        with cluster(folder) as environ:
            return subprocess.run(command, env=environ, check=False).returncode
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1


def main(command: Sequence[str]) -> int:
    """Run `command` beside a cluster, and return its exit code."""
    if absent := missing():
        print(f"not installed: {', '.join(absent)} (Debian: slurm-wlm, munge)", file=sys.stderr)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="ipex-slurm-"))
    try:
        return guarded(lambda: run_beside(command, folder))
    finally:
        with suppress(OSError):
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
