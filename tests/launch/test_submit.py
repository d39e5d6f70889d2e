"""`ipex-assist submit`: scripts against golden files in tests/jobs, flags, refusals, and handing over.

`python tests/test_submit.py` writes the golden files again: read the difference before you keep it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ipex_assist import cli
from ipex_assist.env.errors import UsageError
from ipex_assist.launch.job_flags import _memory, _time
from ipex_assist.launch.jobs import builtin_template, fill, pbs_time, quote, slurm_time

pytestmark = pytest.mark.one_stack

GOLDEN = Path(__file__).with_name("jobs")
TRICKY = 'it\'s a "test" of $HOME, `x`,\na second line, a\ttab, \\n, !! and ünïcode'
BATCH = ["ipex-assist", "batch", "my prompts.jsonl", "-o", "results/out.jsonl", "-m", "facebook/opt-13b"]
HALVES = ["--instances", "2", "--cores-per-instance", "14"]
EVERYTHING = [
    *HALVES,
    *("--exclusive", "--mem", "96G", "--time", "1-02:03:04", "--queue", "xeon", "--account", "lab-7"),
    *("--name", "my.job", "--log", "logs/job.txt", "--grace", "60", "--requeue", "3"),
    *("--module", "gcc/12", "--module", "python 3"),
    *("--setup", "export HF_HOME=/scratch/hf", "--setup", "ulimit -c 0"),
]
# File name → what is typed after `ipex-assist submit`. Whole nodes by default; shared ones where cores are named.
CASES = {
    "run.slurm": ["slurm", "--", "ipex-assist", "-m", "facebook/opt-13b", "-p", TRICKY],
    "launch.slurm": ["slurm", "--nodes", "2", *HALVES, "--", "ipex-launch", "--smt", "--", "python", "my script.py"],
    "everything.slurm": [
        *("slurm", *EVERYTHING, "--nodes", "2", "--array", "4%2", "--directive=--constraint=icelake", "--", *BATCH)
    ],
    "batch.slurm": ["slurm", "--time", "8:00:00", "--requeue", "10", "--", *BATCH],
    "batch-array.slurm": ["slurm", "--array", "8", "--requeue", "10", "--", *BATCH],
    "batch-tasks.slurm": ["slurm", "--shared", *HALVES, "--mem", "1500M", "--", *BATCH],
    "run.pbs": ["pbs", "--cores-per-instance", "56", "--", "ipex-assist", "-m", "facebook/opt-13b", "-p", TRICKY],
    "launch.pbs": ["pbs", "--exclusive", *HALVES, "--", "ipex-launch", "--", "python", "my script.py"],
    "everything.pbs": ["pbs", *EVERYTHING, "--array", "4%2", "--directive=-m abe", "--", *BATCH],
    "batch-array.pbs": ["pbs", "--cores-per-instance", "28", "--array", "8", "--time", "8:00:00", "--", *BATCH],
    "batch-tasks.pbs": ["pbs", *HALVES, "--requeue", "1", "--", *BATCH],
}


def dry_run(*words: str) -> list[str]:
    """A command line that prints a script, of programs as they are named."""
    cut = words.index("--")
    return ["submit", *words[:cut], "--venv", "none", "--dry-run", *words[cut:]]


def script_of(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    capfd.readouterr()
    code = cli.main(dry_run(*words))
    out, err = capfd.readouterr()
    assert code == 0, err
    return out


def refusal(capfd: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    """The message of a command line that must be refused, without a script."""
    capfd.readouterr()
    found = cli.main(["submit", *words])
    out, err = capfd.readouterr()
    assert (found, out) == (code, ""), err
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("name", CASES)
def test_the_script_is_the_golden_one(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Catches any change of a job script that nobody has looked at, and one that bash cannot read."""
    script = script_of(capfd, *CASES[name])
    assert script == (GOLDEN / name).read_text()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    directives = "#SBATCH" if name.endswith(".slurm") else "#PBS"
    lines = script.splitlines()
    assert not any(line.startswith(directives) for line in lines[lines.index("") :])  # schedulers stop reading there
    assert "{{" not in script
    assert "None" not in script


def test_no_golden_file_is_left_over() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == set(CASES)


def test_bash_reads_the_templates_of_sites(tmp_path: Path) -> None:
    """A site edits the template: without values, too, it must be something that editors and shellcheck can read."""
    for name in ("slurm", "pbs"):
        subprocess.run(["bash", "-n"], input=builtin_template(name), text=True, check=True)  # type: ignore[arg-type]


REFUSED = [
    (["slurm", "--bogus", "--", *BATCH], "unrecognized arguments: --bogus"),
    (["lsf", "--", *BATCH], "invalid choice: 'lsf'"),
    (["slurm"], "no command"),
    (["slurm", "--"], "no command after --"),
    (["slurm", *BATCH], "the command goes after --, and ipex-assist is before it"),
    (["slurm", "ipex-launch", "--", "python", "x.py"], "ipex-launch is before it"),
    (["slurm", "--", "python", "x.py"], "ipex-launch -- python"),
    (["slurm", "--", "ipex-launch"], "ipex-launch has no command"),
    (["slurm", "--", "ipex-launch", "--instances", "x", "--", "true"], "invalid number"),
    (["slurm", "--", "ipex-launch", "--", "ipex-assist", "batch"], "without ipex-launch"),
    (["slurm", "--", "ipex-assist", "submit", "slurm"], "cannot submit itself"),
    (["slurm", "--", "ipex-assist", "btach", "p"], "there is no command btach (did you mean batch?)"),
    (["slurm", "--", "ipex-assist", "--nonsense"], "unrecognized arguments: --nonsense"),
    (["slurm", "--", "ipex-assist", "-m", "x"], "no standard input"),
    (["slurm", "--", "ipex-assist", "-m", "x", "--prompt-file", "-"], "no standard input"),
    (["slurm", "--", "ipex-assist", "-m", "x", "-p", "sum up:", "-"], "no standard input"),
    (["slurm", "--", "ipex-assist", "batch", "-", "-o", "out.jsonl"], "no standard input"),
    (["slurm", "--", "ipex-assist", "batch", "p.jsonl"], "required: -o/--output"),
    (["slurm", "--", *BATCH, "--temperature", "-3"], "--temperature"),
    (["slurm", "--", "ipex-assist", "batch", "p", "-vo", "x"], "write -o x as words of their own"),
    (["slurm", "--", "ipex-assist", "bench", "--repeat", "x"], "--repeat"),
    (["slurm", "--array", "2", "--", *BATCH, "--shard", "0/2"], "leave out --shard"),
    (["slurm", "--array", "0", "--", *BATCH], "invalid array"),
    (["slurm", "--array", "3%0", "--", *BATCH], "invalid array"),
    (["slurm", "--instances", "2", "--", *BATCH], "how many cores has each?"),
    (["slurm", "--shared", "--", *BATCH], "how many cores are wanted"),
    (["slurm", "--shared", "--exclusive", "--", *BATCH], "not allowed with"),
    (["slurm", "--mem", "64", "--", *BATCH], "invalid size"),
    (["slurm", "--time", "1:90", "--", *BATCH], "invalid time"),
    (["slurm", "--time", "1:60:00", "--", *BATCH], "invalid time"),
    (["slurm", "--time", "0:00:30", "--", *BATCH], "--grace"),
    (["slurm", "--name", "a b", "--", *BATCH], "invalid name"),
    (["slurm", "--partition", "x\n#SBATCH -N9", "--", *BATCH], "invalid name"),
    (["slurm", "--directive", "x\ny", "--", *BATCH], "invalid line of text"),
    (["slurm", "--venv", "/nowhere", "--", *BATCH], "/nowhere/bin/activate"),
    (["slurm", "--template", "/nowhere", "--", *BATCH], "--template /nowhere cannot be read: No such file"),
    (["slurm", "-o", "/nowhere/x", "--", *BATCH], "/nowhere/x cannot be written: No such file"),
    (["pbs", "--", *BATCH], "one CPU"),
    (["pbs", "--nodes", "2", "--cores-per-instance", "4", "--", *BATCH], "--array 2"),
    (["pbs", "--log", "a b", "--cores-per-instance", "4", "--", *BATCH], "blanks"),
]


@pytest.mark.parametrize(
    "words",
    [
        ["ipex-launch", "--", "python", "FILE"],
        ["ipex-assist", "serve", "-m", "x", "--api-key-file", "FILE"],
        ["ipex-assist", "-m", "FILE", "-p", "x"],
        ["ipex-assist", "batch", "p.jsonl", "-o", "o", "-m", "FILE"],
    ],
)
def test_files_that_a_job_would_miss(words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Catches a job that waits for hours and then finds no script, no model or no keys."""
    file = tmp_path / "file"
    named = ["submit", "slurm", "--dry-run", "--", *(str(file) if word == "FILE" else word for word in words)]
    assert cli.main(named) == 0
    assert f"{file}: there is no such file yet" in capfd.readouterr().err
    file.touch()
    assert cli.main(named) == 0
    assert str(file) not in capfd.readouterr().err


def test_a_prompt_that_is_still_to_be_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A job before it in the queue may write it: said, and no reason to refuse."""
    file = tmp_path / "prompt.txt"
    words = ["submit", "slurm", "--dry-run", "--", "ipex-assist", "-m", "x", "--prompt-file", str(file)]
    assert cli.main(words) == 0
    assert f"{file}: there is no such file yet" in capfd.readouterr().err
    file.write_text("a fox")
    assert cli.main(words) == 0
    assert "no such file" not in capfd.readouterr().err


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[" ".join(words)[:60] for words, _ in REFUSED])
def test_what_cannot_be_is_refused(words: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Before it waits in a queue for nothing: exit code 2, and what to type."""
    assert message in refusal(capfd, *words)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#!/bin/bash\n{{command}}\n{{comand}}\n", "line 3: there is no {{comand}}"),
        ("{{ com-mand }}\n", "line 1: there is no {{com-mand}}"),
        ("#!/bin/bash\n", "has no {{command}}"),
        ("{{command}}\n", "has no {{shard}}"),
        ("{{walltime}}{{command}}\n", "account, array"),
    ],
)
def test_a_template_with_a_mistake_is_refused(
    text: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The error has its name, its line, and the placeholders that there are."""
    path = tmp_path / "site.sh"
    path.write_text(text)
    said = refusal(capfd, "slurm", "--array", "2", "--template", str(path), "--dry-run", "--", *BATCH)
    assert str(path) in said
    assert message in said


def test_a_sites_template_is_used(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Printed, changed and given again; what has no value goes with its line."""
    assert cli.main(["submit", "pbs", "--print-template"]) == 0
    path = tmp_path / "site.sh"
    text = capfd.readouterr().out.replace("#PBS -S /bin/bash", "#PBS -S /bin/bash\n#PBS -P {{ account }}\n# ours")
    path.write_text(text)
    words = ["pbs", "--cores-per-instance", "4", "--template", str(path)]
    assert "# ours\n#PBS -N" in script_of(capfd, *words, "--", *BATCH)
    assert "#PBS -P lab\n# ours" in script_of(capfd, *words, "--account", "lab", "--", *BATCH)


def test_what_is_filled_in_is_not_looked_at_again() -> None:
    """A prompt may speak of templates; several values repeat the line, none leaves it out."""
    text = "a {{x}} {{x}}\nb {{y}}\n\n\n\nc {{z}}\n"
    assert fill(text, {"x": "{{y}}", "y": ("1", "2"), "z": None}, "t") == "a {{y}} {{y}}\nb 1\nb 2\n\n"
    with pytest.raises(UsageError, match="t line 1: there is no"):
        fill(text, {}, "t")


def test_times_as_each_scheduler_writes_them() -> None:
    """Catches days that PBS does not know, and minutes that Slurm takes for hours."""
    assert [slurm_time(seconds) for seconds in (59, 3600, 93784)] == ["00:00:59", "01:00:00", "1-02:03:04"]
    assert [pbs_time(seconds) for seconds in (59, 3600, 93784)] == ["00:00:59", "01:00:00", "26:03:04"]


def test_times_and_sizes_as_slurm_takes_them() -> None:
    """`--time 30` and `--mem 64g` are what people who know Slurm type."""
    times = ("30", "1:30", "2:00:00", "2-0", "1-12:30", "1-02:03:04", "90:00")
    assert [_time(text) for text in times] == [1800, 90, 7200, 172800, 131400, 93784, 5400]
    sizes = ("64g", "64G", "64GB", "1500m", "2T", "512k")
    assert [_memory(text) for text in sizes] == [65536, 65536, 65536, 1500, 2097152, 1]


def test_a_job_submitted_within_a_job_gets_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM_MEM_PER_NODE of the job around it ended the new one after hours in the queue."""
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "1000")
    monkeypatch.setenv("SLURM_CONF", "/etc/here.conf")
    scheduler_that(tmp_path, monkeypatch, "sbatch", f"env >{tmp_path}/got; echo 1")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["submit", "slurm", "--venv", "none", "--submit", "--", *BATCH]) == 0
    names = [line for line in (tmp_path / "got").read_text().splitlines() if line.startswith("SLURM_")]
    assert names == ["SLURM_CONF=/etc/here.conf"]


def test_a_word_is_quoted_on_one_line() -> None:
    assert [quote(word) for word in ("a", "a b", "it's\n", "\\\r1")] == ["a", "'a b'", r"$'it\'s\n'", r"$'\\\0151'"]


def test_the_program_is_this_environments_own(capfd: pytest.CaptureFixture[str]) -> None:
    """A job's PATH is not ours: the script names the ipex-assist it was written by, and activates its environment."""
    own = Path(sys.executable).parent / "ipex-assist"
    if not own.exists():
        pytest.skip("installed without its commands")
    capfd.readouterr()
    assert cli.main(["submit", "slurm", "--dry-run", "--", "ipex-assist", "-p", "x"]) == 0
    script = capfd.readouterr().out
    assert f"exec {quote(str(own))} -p x" in script
    assert ("source " in script) == (own.with_name("activate")).exists()
    words = ["pbs", *HALVES, "--dry-run", "--", "ipex-launch", "--", "true"]
    assert cli.main(["submit", *words]) == 0
    assert capfd.readouterr().out.count(quote(str(own.with_name("ipex-launch")))) == 2


def scheduler_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    """A PATH on which `name` is a shell script, and nothing else of a scheduler."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
    (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")


@pytest.mark.parametrize(("scheduler", "program"), [("slurm", "sbatch"), ("pbs", "qsub")])
@pytest.mark.parametrize("kept", [False, True])
def test_submitting_hands_over_the_script_and_tells_the_id(
    scheduler: str,
    program: str,
    kept: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """On stdout there is the id alone, so that $(…) has it; the scheduler's own remarks go to stderr."""
    read = f'for last; do :; done; cat "${{last#--parsable}}" - 2>/dev/null >{tmp_path}/got'
    scheduler_that(tmp_path, monkeypatch, program, f"{read}; echo careful >&2; echo 42.here")
    words = [scheduler, "--cores-per-instance", "1", "--", *BATCH]
    expected = script_of(capfd, *words)
    keep = ["-o", str(tmp_path / "kept.sh")] if kept else []
    monkeypatch.chdir(tmp_path)
    arguments = ["submit", scheduler, "--venv", "none", "--submit", *keep, *words[1:]]
    assert cli.main(arguments) == 0
    out, err = capfd.readouterr()
    assert out == "42.here\n"
    assert "careful" in err
    assert (tmp_path / "got").read_text() == expected
    assert (tmp_path / "kept.sh").exists() == kept
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "got", *(["kept.sh"] if kept else [])}


def test_a_scheduler_that_is_not_there_or_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, the scheduler's own words, and no id on stdout."""
    (tmp_path / "empty").mkdir()
    words = ["slurm", "--submit", "--", *BATCH]
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path / "empty"))
        assert "there is no sbatch on PATH" in refusal(capfd, *words, code=1)
    scheduler_that(tmp_path, monkeypatch, "sbatch", "echo 'sbatch: error: invalid partition' >&2; exit 5")
    said = refusal(capfd, *words, code=1)
    assert "invalid partition" in said
    assert "exit code 5" in said


def test_a_script_is_written_and_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One that a user has changed since is not lost by typing the command again."""
    monkeypatch.chdir(tmp_path)
    words = ["submit", "slurm", "--name", "mine", "--", *BATCH]
    assert cli.main(words) == 0
    assert "sbatch mine.slurm" in capfd.readouterr().err
    path = tmp_path / "mine.slurm"
    written = path.read_text()
    assert cli.main(words) == 0
    path.write_text(written + "# changed\n")
    assert "--force" in refusal(capfd, *words[1:])
    assert cli.main([*words[:4], "--force", *words[4:]]) == 0
    assert path.read_text() == written


def test_a_dash_is_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was a file of this name, which `cat -` and `rm -` do not find."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["submit", "slurm", "-o", "-", "--venv", "none", "--", *BATCH]) == 0
    assert capfd.readouterr().out == script_of(capfd, "slurm", "--", *BATCH)
    assert list(tmp_path.iterdir()) == []
    assert "leave one of them out" in refusal(capfd, "slurm", "-o", "-", "--submit", "--", *BATCH)


def test_torch_stays_out() -> None:
    """Writing a script must not cost the seconds of torch's import."""
    code = "import sys; from ipex_assist import cli; cli.main(); sys.exit('torch' in sys.modules)"
    words = dry_run("slurm", "--", *BATCH)
    subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True)


def main(names: Sequence[str] = tuple(CASES)) -> None:
    """Write the golden files."""
    for name in names:
        program = [sys.executable, "-c", "import sys; from ipex_assist import cli; sys.exit(cli.main())"]
        done = subprocess.run([*program, *dry_run(*CASES[name])], stdout=subprocess.PIPE, check=True)
        (GOLDEN / name).write_bytes(done.stdout)


if __name__ == "__main__":
    main()
