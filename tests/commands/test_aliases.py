"""Flags with two names: help lists one of them, and the other works as it did."""

from __future__ import annotations

import argparse

import pytest

from ipex_assist import cli
from ipex_assist.bench import arguments as bench
from ipex_assist.commands.shared import arguments
from ipex_assist.commands.shared.command_table import COMMANDS
from ipex_assist.serve import arguments as serve
from ipex_assist.serve.options import ServeOptions
from ipex_assist.speculative.sources.assistant_name import NONE


def listed(parser: argparse.ArgumentParser) -> list[str]:
    """The words of a parser's help."""
    return parser.format_help().replace(",", " ").split()


def test_a_server_takes_both_names_of_its_concurrency() -> None:
    for flag in ("--concurrency", "--max-concurrency"):
        assert ServeOptions.from_flags(serve.parse([flag, "4"])).max_concurrency == 4
    assert ServeOptions.from_flags(serve.parse([])).max_concurrency is None
    words = listed(serve.build_parser())
    assert "--concurrency" in words
    assert "--max-concurrency" not in words


def test_bench_takes_json_as_a_format() -> None:
    assert bench.parse(["-m", "x", "--json"]).format == bench.parse(["-m", "x", "--format", "json"]).format == "json"
    assert "--json" not in listed(bench.build_parser())


def test_bench_takes_its_dataset_as_a_flag() -> None:
    command = ["-m", "x", "--task", "dataset"]
    assert bench.parse([*command, "--dataset", "prompts"]).dataset == bench.parse([*command, "prompts"]).dataset
    words = listed(bench.build_parser())
    assert "--dataset" not in words
    assert "FILE|NAME" in words


@pytest.mark.parametrize("flags", ["--no-assisted", "--assistant-model none", "--num-assistant-tokens 0"])
def test_three_ways_to_draft_nothing(flags: str) -> None:
    options = arguments.load_options(arguments.parse(["-m", "x", *flags.split()]))
    assert options.assistant == NONE


def test_help_lists_one_way_to_draft_nothing() -> None:
    text = arguments.build_parser().format_help()
    assert "--no-assisted" in text
    (line,) = [line for line in text.splitlines() if "none" in line.replace(",", " ").split()]
    assert "--generation-config" in line


def test_help_lists_every_subcommand_but_the_worker() -> None:
    """It is an entry of its own for batch and serve, which start it, and nobody is to type it."""
    words = listed(arguments.build_parser())
    commands = next(word for word in words if word.startswith("batch|")).split("|")
    assert commands == list(COMMANDS)


def test_a_worker_is_not_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["worker", "--help"]) == 2
    assert "type one of these" in capsys.readouterr().err
