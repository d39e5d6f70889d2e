"""The flags of `ipex-assist batch`: those of `ipex-assist`, its own, and what each wrong one is told."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ipex_assist.batch.arguments import NOT_HERE, build_parser, defaults_from, parse, worker_settings
from ipex_assist.batch.line_models import LineModels
from ipex_assist.commands.shared import arguments
from ipex_assist.env.errors import UsageError
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.workers.arguments import instance_request
from ipex_assist.workers.settings import WorkerSettings
from ipex_assist.workers.wire import MessageDecoder, encoded

pytestmark = pytest.mark.one_stack

BASIC = ["p.jsonl", "-o", "out.jsonl"]


def flags(parser: argparse.ArgumentParser) -> set[str]:
    """The long flags in a parser's help."""
    return {word.strip("[],()") for word in parser.format_help().split() if word.startswith("--")}


def test_every_flag_of_the_command_is_here() -> None:
    """A flag for models that is added to `ipex-assist` must work for batches, too."""
    without = {flag for names in NOT_HERE for flag in names}
    assert flags(arguments.build_parser()) - without <= flags(build_parser())
    for names, why in NOT_HERE.items():
        with pytest.raises(UsageError, match=why[:20]):
            parse([*BASIC, names[-1], *([] if names[-1] in ("--json", "--no-stream") else ["x"])])


def test_flags_become_options_and_settings() -> None:
    """What the instance loads is plain data; what lines are run with are the flags that were given."""
    args = parse([*BASIC, "-m", "target", "--assistant-model", "helper", "--stop", "x", "--top-k", "0", "--chat"])
    settings = replace(worker_settings(args, arguments.load_options(args)), lengths=(512, 256))
    assert settings.load == LoadOptions(target="target", assistant="helper", lora_by_default=True)
    assert MessageDecoder[WorkerSettings](WorkerSettings).read(encoded(settings)) == settings
    assert arguments.load_options(parse([*BASIC, "-m", "target", "--no-assisted"])).assistant == "none"
    adapted = parse([*BASIC, "-m", "owner/target", "--lora", "sql=a/sql", "--lora", "b/notes"])
    assert defaults_from(adapted, arguments.load_options(adapted)).models == LineModels(
        ("target", "owner/target"), ("sql", "notes")
    )
    defaults = defaults_from(args, arguments.load_options(args))
    assert defaults.chat
    assert defaults.options == GenerationOptions(stop=("x",), top_k=0)


@pytest.mark.parametrize(
    ("given", "instances", "cores"),
    [
        ([], "per-node", None),
        (["--instances", "3"], 3, None),
        (["--instances", "per-socket", "--cores-per-instance", "4"], "per-socket", 4),
        (["--cores-per-instance", "4"], None, 4),
        (["--threads", "4"], None, None),
    ],
)
def test_instances(given: Sequence[str], instances: object, cores: int | None) -> None:
    """One per node unless something is said; --threads is one process's."""
    request = instance_request(parse([*BASIC, "--cpus", "0-3", *given]), 17)
    assert (request.instances, request.cores_per_instance) == (instances, cores)
    assert (request.cpus, request.model_bytes) == ("0-3", 17)


WRONG = {
    "--timeout 0": "more than 0",
    "--timeout nan": "more than 0",
    "--concurrency 0": "at least 1",
    "--retry-failed": "--resume",
    "--max-new-tokens 0": "--max-new-tokens 0: must be a whole number between 1",
    "--temperature nan": "--temperature nan",
    "--ray auto --dry-run": "--dry-run",
    "--ray auto --no-launch": "--no-launch",
    "--no-launch --instances per-node": "--instances as a number",
    "--no-launch --instances 0": "at least 1",
}


@pytest.mark.parametrize("given", WRONG)
def test_wrong_values(given: str) -> None:
    """Said before anything is opened or started."""
    with pytest.raises(UsageError, match=WRONG[given].replace("(", "\\(")):
        parse([*BASIC, *given.split()])


@pytest.mark.parametrize("given", ["--shard 2/2", "--shard -1/2", "--shard 1", "--instances some", "--shard 0/0"])
def test_wrong_words(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    """argparse's own message, with what would be right."""
    with pytest.raises(SystemExit):
        parse([*BASIC, *given.split()])
    message = capsys.readouterr().err
    assert "0/N to N-1/N" in message or "per-node" in message or "expected one argument" in message
