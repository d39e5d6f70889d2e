"""Options stand once: what the command line, a line of a batch and Python take and refuse is the same."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import subprocess
import sys

import pytest

from ipex_assist.batch.options import LineError, check_options
from ipex_assist.commands.shared import arguments
from ipex_assist.env.errors import UsageError
from ipex_assist.env.options import Switch, flags_of, options_of
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.speculative.options import GenerationOptions

pytestmark = pytest.mark.one_stack

# Smallest and largest value, and one outside.
EDGES: dict[str, tuple[float, float, float]] = {
    "max_new_tokens": (1, 10_000_000, 0),
    "num_assistant_tokens": (0, 64, -1),
    "temperature": (0, 100.0, 1e-4),
    "top_p": (1e-6, 1.0, 0.0),
    "top_k": (0, 10_000_000, -1),
    "min_p": (0, 1.0, -0.1),
    "repetition_penalty": (1e-3, 100.0, 0.0),
    "presence_penalty": (-100, 100, 101),
    "frequency_penalty": (-100, 100, -101),
    "seed": (0, 2**63 - 1, 2**63),
    "logprobs": (0, 20, 21),
    "prompt_logprobs": (0, 20, 21),
}
OTHERS = {
    "stop": (["a", "bc"], "", ""),
    "ignore_eos": (True, None, 1),
    "assisted": (False, None, "no"),
    "do_sample": (True, None, 0),
    "num_assistant_tokens_schedule": ("constant", "linear", "linear"),
    "logit_bias": ({"5": -100, "7": 2.5}, '{"5": "x"}', {"5": "x"}),
}


def flag(name: str) -> str:
    return flags_of(name, options_of(GenerationOptions)[name])[-1]


def from_flags(*words: str) -> GenerationOptions:
    return GenerationOptions.from_flags(arguments.parse(list(words)))


def told(call, *values: object, **named: object) -> str:
    with pytest.raises((UsageError, LineError)) as caught:
        call(*values, **named)
    return str(caught.value)


def test_every_option_is_looked_at_here() -> None:
    """An option that is added to the table gets its line above."""
    by_python = {name for name, one in options_of(GenerationOptions).items() if not flags_of(name, one)}
    assert set(EDGES) | set(OTHERS) | by_python == set(options_of(GenerationOptions))
    assert by_python == {"lora", "lora_scale", "priority", "share", "streamed"}


def test_what_has_no_flag_is_the_same_in_batches_and_in_python() -> None:
    """A line of a batch names its adapter and its scale, what goes before it and whose share it is of."""
    texts, numbers = (("lora", "sql", 7), ("share", "team", 7)), (("lora_scale", -100, 101), ("priority", -1, 0.5))
    for name, right, wrong in (*texts, *numbers, ("streamed", False, 7)):
        options = GenerationOptions.of(**{name: right})
        assert check_options({name: right}, GenerationOptions()) == options
        assert told(GenerationOptions, **{name: wrong}) == told(check_options, {name: wrong}, GenerationOptions())


@pytest.mark.parametrize("name", EDGES)
def test_ranges_are_the_same_everywhere(name: str) -> None:
    """The edges are taken, what is outside is refused, in the same words but for the name."""
    lowest, highest, outside = EDGES[name]
    for value in (lowest, highest):
        options = GenerationOptions(**{name: value})
        assert getattr(options, name) == value
        assert check_options({name: value}, GenerationOptions()) == options
        assert from_flags(flag(name), str(value)) == options
    for value in (outside, float("nan"), float("inf")):
        messages = {
            told(GenerationOptions, **{name: value}).replace(name, "NAME"),
            told(check_options, {name: value}, GenerationOptions()).replace(name, "NAME"),
            told(from_flags, flag(name), str(value)).replace(flag(name), "NAME"),
        }
        assert len(messages) == 1, messages
        assert f"NAME {value}: must be " in messages.pop()
    for value in ("much", True, [1]):
        assert f"{name} {value!r}: must be " in told(GenerationOptions, **{name: value})
    assert f"{flag(name)} much: must be " in told(from_flags, flag(name), "much")


@pytest.mark.parametrize("name", EDGES)
def test_numbers_beyond_the_floats_are_out_of_range(name: str) -> None:
    """A whole number of 400 digits was an OverflowError, which ended a batch for one of its lines."""
    for call in (GenerationOptions, lambda **given: check_options(given, GenerationOptions())):
        assert "must be " in told(call, **{name: 10**400})
    assert "must be " in told(from_flags, flag(name), "1" + "0" * 400)


@pytest.mark.parametrize("name", OTHERS)
def test_other_kinds_are_the_same_everywhere(name: str) -> None:
    """Switches, names, texts and objects."""
    right, wrong_word, wrong_value = OTHERS[name]
    options = GenerationOptions.of(**{name: right})
    assert check_options({name: right}, GenerationOptions()) == options
    if isinstance(options_of(GenerationOptions)[name].kind, Switch):
        words = [flag(name) if right else flag(name).replace("--", "--no-")]
    elif isinstance(right, list):
        words = [word for each in right for word in (flag(name), each)]
    else:
        words = [flag(name), right if isinstance(right, str) else json.dumps(right)]
    assert from_flags(*words) == options
    assert told(GenerationOptions, **{name: wrong_value}) == told(
        check_options, {name: wrong_value}, GenerationOptions()
    )
    if wrong_word is not None:
        assert told(from_flags, flag(name), wrong_word).startswith(flag(name))


def test_one_stop_is_one_stop() -> None:
    """`stop="abc"` was three stops of a letter each."""
    assert GenerationOptions(stop="abc").stop == ("abc",)
    assert GenerationOptions(stop=["a", "b"]).stop == ("a", "b")


def test_null_is_as_good_as_absent_and_unknown_names_are_told() -> None:
    """A server and `batch` hand on what they get."""
    assert GenerationOptions.of(temperature=None, stop=None) == GenerationOptions()
    assert "(did you mean temperature?)" in told(GenerationOptions.of, temperatur=1)
    assert "precison: there is no such option (did you mean precision?)" in told(LoadOptions.of, precison="bf16")


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"precision": "int3"}, "precision 'int3': must be one of bf16, fp32, int8, int4"),
        ({"kv_precision": "int4"}, "kv_precision 'int4': must be one of bf16, int8"),
        ({"executor": "gpu"}, "executor 'gpu': must be one of auto, native, ipex, torch"),
        ({"draft_vocabulary": 3}, "draft_vocabulary 3: must be a whole number between 256"),
        ({"assistant": "lookup+"}, "assistant 'lookup+': a model must follow lookup+"),
        ({"offline": "yes"}, "offline 'yes': must be true or false"),
    ],
)
def test_what_is_loaded_is_checked_the_same_way(given: dict[str, object], wrong: str) -> None:
    """In Python by the field, on the command line by the flag."""
    message = told(LoadOptions, **given)
    assert wrong in message
    ((name, value),) = given.items()
    if isinstance(value, str) and name != "offline":
        one = {"assistant": "--assistant-model"}.get(name, "--" + name.replace("_", "-"))
        assert told(arguments.parse, [one, value]) == message.replace(f"{name} {value!r}", f"{one} {value}")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8G", 8 << 30),
        ("1.5 GiB", 3 << 29),
        ("500m", 500 << 20),
        ("64KB", 64 << 10),
        ("2t", 2 << 40),
        ("77", 77),
        ("9 b", 9),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    """On the command line, in Python and in JSON; a G is 2**30, as for containers."""
    assert LoadOptions(kv_memory=text).kv_memory == size  # type: ignore[arg-type]
    assert LoadOptions(kv_memory=size).kv_memory == size
    args = arguments.parse(["--kv-memory", text])
    assert LoadOptions.from_flags(args).kv_memory == size


@pytest.mark.parametrize("wrong", ["", "G", "-1G", "8X", "1e9", "0", 0, -5, True, 1.5, "1/2G", "999999999T", "9" * 400])
def test_sizes_that_are_none(wrong: object) -> None:
    """An infinite one, or one of 0 bytes, would end far from here."""
    with pytest.raises(UsageError, match=r"kv_memory .*must be a number of bytes"):
        LoadOptions(kv_memory=wrong)  # type: ignore[arg-type]


def test_help_and_docstring_say_every_option() -> None:
    """Made of the table, so that one that is added is there."""
    text = arguments.build_parser().format_help()
    for cls in (GenerationOptions, LoadOptions):
        for name, one in options_of(cls).items():
            assert f"{name}: " in (cls.__doc__ or "")
            assert all(each in text for each in flags_of(name, one))
    assert re.search(r"--temperature T +\(default: the model's, or 1\)", text)


def test_idle_flags_are_named() -> None:
    """Those that only drawing heeds; temperature 0 itself asks for greedy text."""

    def idle(*words: str) -> list[str]:
        args: argparse.Namespace = arguments.parse(list(words))
        return arguments.idle_flags(args, GenerationOptions.from_flags(args))

    assert idle("--top-p", "0.5", "--seed", "0", "--presence-penalty", "1") == ["--top-p", "--seed"]
    assert idle("--temperature", "0") == []
    assert idle("--do-sample", "--temperature", "0", "--min-p", "0.1") == ["--min-p"]
    assert idle("--do-sample", "--min-p", "0.1") == []


def test_options_cannot_be_changed_behind_our_back() -> None:
    options = GenerationOptions(stop=["a"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.top_k = 3  # type: ignore[misc]
    assert options.stop == ("a",)


def test_options_do_not_import_torch() -> None:
    """The launcher, `--help` and a coordinator of many instances need them, too."""
    code = (
        "import sys, ipex_assist.generation.load_options, ipex_assist.speculative.options;"
        "import ipex_assist.commands.shared.load;"
        "assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
