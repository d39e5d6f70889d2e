"""What several processes of ipex-launch write: whole lines, labels, log files, readers that go or do not read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import CLEAN, CPUS, LAUNCH, TWO, alive, launch, pids_in, python, shell, wait_for

from ipex_assist.launch.output import LONGEST_LINE, LineAssembler, Sink
from ipex_assist.launch.placement import Placement
from ipex_assist.launch.supervise import log_files

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(len(CPUS) < 2, reason="two instances need two CPUs")]


def test_what_writes_on_after_the_first_process_is_heard() -> None:
    """Catches output lost that a process substitution delivers a little later."""
    result = launch(*TWO, *shell("(sleep 0.4; echo late $IPEX_INSTANCE) & exit 0"))
    assert sorted(result.stdout.splitlines()) == ["late 0", "late 1"]


def test_the_shells_own_children_are_not_ours() -> None:
    """Catches `exec ipex-launch … > >(tee log)` losing its tee, a child of what the launcher became."""
    command = f"exec {' '.join(LAUNCH)} --instances 2 -- echo hello > >(sleep 0.5; cat)"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=CLEAN)
    assert result.stdout == "hello\nhello\n"


def test_lines_are_whole_and_none_is_lost() -> None:
    """Catches lines of one instance inside those of another: pieces of lines, flushed, from both at once."""
    code = (
        "import os, sys\n"
        "me = os.environ['IPEX_INSTANCE']\n"
        "for number in range(2000):\n"
        "    for piece in (me, ':', str(number) * 20, '\\n'):\n"
        "        sys.stdout.write(piece); sys.stdout.flush()\n"
        "sys.stdout.write(me + ':end')\n"
    )
    result = launch(*TWO, *python(code))
    expected = [f"{me}:{str(number) * 20}" for me in "01" for number in range(2000)] + ["0:end", "1:end"]
    assert sorted(result.stdout.splitlines()) == sorted(expected)
    of_one = [line for line in result.stdout.splitlines() if line.startswith("1:")]
    assert of_one == [line for line in expected if line.startswith("1:")]


def test_labels_name_the_instance() -> None:
    result = launch(*TWO, "--label", *shell("echo a; echo b; echo e >&2"))
    assert sorted(result.stdout.splitlines()) == ["0: a", "0: b", "1: a", "1: b"]
    assert sorted(result.stderr.splitlines()) == ["0: e", "1: e"]


def test_logs_are_files_of_each_instance_and_are_appended(tmp_path: Path) -> None:
    """Catches a log that the next run overwrites, and one that is shown as well without being asked to."""
    folder = tmp_path / "deep" / "logs"
    for _ in range(2):
        result = launch(*TWO, "--log-dir", str(folder), *shell("echo out $IPEX_INSTANCE; echo err >&2"))
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert sorted(file.name for file in folder.iterdir()) == [
        f"instance-{i}.{s}" for i in (0, 1) for s in ("err", "out")
    ]
    assert (folder / "instance-1.out").read_text() == "out 1\n" * 2
    assert (folder / "instance-0.err").read_text() == "err\n" * 2
    both = launch(*TWO, "--log-dir", str(folder), "--label", *shell("echo more; sleep 0.2; printf last"))
    assert sorted(both.stdout.splitlines()) == ["0: last", "0: more", "1: last", "1: more"]
    assert (folder / "instance-0.out").read_text().endswith("more\nlast")


def test_logs_survive_kill_9(tmp_path: Path) -> None:
    """Catches output that was with the launcher when it was killed: all that an instance has written is on disk."""
    code = "import time\nn = 0\nwhile True: print(n); n += 1; time.sleep(0.001)"
    process = subprocess.Popen([*LAUNCH, *TWO, "--log-dir", str(tmp_path), *python(code)], env=CLEAN)
    file = tmp_path / "instance-1.out"
    assert wait_for(lambda: file.exists() and file.stat().st_size > 500)
    process.kill()
    process.wait(10)
    lines = file.read_text().splitlines()
    assert lines == [str(number) for number in range(len(lines))]


def test_log_files_sort_by_number() -> None:
    assert log_files("logs", Placement((0,), 1, index=3, count=12)) == ("logs/instance-03.out", "logs/instance-03.err")


def test_a_log_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = launch(*TWO, "--log-dir", str(tmp_path / "file" / "logs"), "--", "true")
    assert result.returncode == 1
    assert "--log-dir" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_reader_that_goes_ends_the_instances_quietly() -> None:
    """Catches `… | head -n 1` running for ever, or with complaints."""
    command = f"{' '.join(LAUNCH)} --instances 2 -- yes | head -n 1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=CLEAN, timeout=30)
    assert result.stdout.split() == ["y", str(128 + signal.SIGPIPE)]
    assert result.stderr == ""


@pytest.mark.parametrize("module", ["ipex_assist.launch --dry-run -- true", "ipex_assist env", "ipex_assist --dry-run"])
def test_every_command_ends_alike_when_its_reader_has_gone(module: str) -> None:
    """Catches one command that reports failure, and another SIGPIPE, for the same `… | head`."""
    command = f"(sleep 0.3; exec {sys.executable} -m {module}) | true; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=CLEAN, timeout=60)
    assert (result.stdout, result.stderr) == ("141\n", "")


def test_a_full_disk_behind_our_output_is_an_error() -> None:
    """Catches exit code 0 although lines were lost."""
    with open("/dev/full", "w") as full:
        result = launch(*TWO, "--", "echo", "lost", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 1
    assert "could not be written: No space left on device" in result.stderr
    with open("/dev/full", "w") as full:  # the help was lost with a traceback, since it came before the runner
        result = launch("--help", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert (result.returncode, result.stderr) == (
        1,
        "ipex-launch: standard output cannot be written: No space left on device\n",
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("flags", ["--instances 2", "--instance 0 --instances 2", "--dry-run"])
def test_closed_standard_streams(closed: str, flags: str) -> None:
    """Catches a crash on sys.stdout being None, and a log or pipe that takes the place of the closed stream."""
    command = f"{' '.join(LAUNCH)} {flags} -- true {closed}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=CLEAN, timeout=30)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr


def test_only_one_instance_reads_the_standard_input() -> None:
    """Catches two programs that take each other's input away, and one alone that gets none."""
    assert launch(*TWO, "--", "cat", input="hello\n").stdout == ""
    assert launch("--label", "--", "cat", input="hello\n").stdout == "0: hello\n"
    assert launch("--", "cat", input="hello\n").stdout == "hello\n"


def test_lines_longer_than_memory_are_passed_on() -> None:
    """Catches a progress bar without line ends that grows the launcher without bound."""
    written: list[bytes] = []
    lines = LineAssembler(written.append, "0: ")
    for _ in range(5):
        lines.feed(b"x" * (LONGEST_LINE // 2))
    assert len(written) == 2
    lines.feed(b"\ny")
    lines.finish()
    assert b"".join(written).count(b"\n") == 4
    assert written[-1] == b"0: y\n"


def test_a_sink_writes_to_a_non_blocking_descriptor() -> None:
    """Catches BlockingIOError where another program made the shared terminal non-blocking."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    data = b"z" * 300_000
    child = subprocess.Popen(["sh", "-c", "sleep 0.2; wc -c"], stdin=reader, stdout=subprocess.PIPE)
    os.close(reader)
    sink = Sink(writer)
    sink.write(data)
    assert sink.pending
    assert wait_for(lambda: (sink.flush(), not sink.pending)[1])
    os.close(writer)
    assert sink.lost is None
    assert child.communicate()[0].strip() == b"300000"


def test_a_reader_that_does_not_read_delays_no_signal(tmp_path: Path) -> None:
    """Catches a launcher stuck in a write (a pager, Ctrl-S) which no scheduler's SIGTERM gets through."""
    process, pids = None, []
    try:
        process = subprocess.Popen(
            [*LAUNCH, *TWO, "--grace", "1", *shell(f"echo $$ >{tmp_path}/$IPEX_INSTANCE; yes")],
            stdout=subprocess.PIPE,
            env=CLEAN,
        )
        assert wait_for(lambda: len(list(tmp_path.iterdir())) == 2 and len(pids_in(tmp_path)) == 2)
        pids = pids_in(tmp_path)
        time.sleep(0.5)  # until all pipes are full
        process.terminate()
        assert process.wait(10) == 143
        assert not [pid for pid in pids if alive(pid)]
    finally:
        if process is not None:
            process.kill()
            assert process.stdout is not None
            process.stdout.close()
    late = subprocess.run(
        ["bash", "-c", f"{' '.join(LAUNCH)} --instances 2 -- seq 20000 | (sleep 1; wc -l)"],
        capture_output=True,
        text=True,
        env=CLEAN,
    )
    assert late.stdout.strip() == "40000"
