"""The file of prompts: every kind of line, and which of them run."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from ipex_assist.batch.line_models import LineModels
from ipex_assist.batch.options import LineError, check_options
from ipex_assist.batch.prompts import Defaults, Prompt, PromptFile, parse_line
from ipex_assist.env.errors import UsageError
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.workers.wire import encoded, to_worker

pytestmark = pytest.mark.one_stack

DEFAULTS = Defaults(GenerationOptions(max_new_tokens=16))


def indexed(tmp_path: Path, *lines: str | bytes, shard: tuple[int, int] = (0, 1)) -> PromptFile:
    """The index of a file with these lines."""
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines))
    return PromptFile(str(path), DEFAULTS, shard)


def problems(file: PromptFile) -> dict[int, str]:
    return {problem.line: problem.message for problem in file.problems}


def test_lines_that_run(tmp_path: Path) -> None:
    """Ids of both kinds and none; a BOM, Windows' line ends, blank lines, and a last line without an end."""
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"prompt": "one"}\r\n\r\n'
        + '{"id": "zwei", "prompt": "süß", "temperature": 0.5, "stop": "."}\n'.encode()
        + b'{"id": 7, "messages": [{"role": "user", "content": "hi"}], "max_new_tokens": null}'
    )
    file = PromptFile(str(path), DEFAULTS)
    assert not file.problems
    assert [(entry.id, entry.line) for entry in file.entries] == [(1, 1), ("zwei", 3), (7, 4)]
    first, second, third = (file.read(entry) for entry in reversed(file.entries))
    assert third.prompt == "one"
    assert second.prompt == "süß"
    assert second.options == GenerationOptions(max_new_tokens=16, temperature=0.5, stop=(".",))
    assert first.messages == [{"role": "user", "content": "hi"}]
    assert first.options == DEFAULTS.options
    assert to_worker.read(encoded(second.request(1))) == second.request(1)


WRONG = {
    b'{"prompt": "a"': "not JSON",
    b"\xff\xfe": "not UTF-8",
    b"[1]": "not an object",
    b"{}": "needs prompt",
    b'{"prompt": "a", "messages": []}': "not both",
    b'{"prompt": " \\n"}': "prompt is empty",
    b'{"prompt": 5}': "must be a text",
    b'{"messages": []}': "messages must be a list",
    b'{"messages": [{"role": "user"}]}': "role and content",
    b'{"messages": [{"role": "user", "content": [{"type": "image"}]}]}': "a part of a message must be",
    b'{"prompt": "a", "id": true}': "id true",
    b'{"prompt": "a", "id": 1.5}': "id 1.5",
    b'{"prompt": "a", "id": ["x"]}': 'id ["x"]',
    b'{"prompt": "a", "chat": "yes"}': "chat 'yes'",
    b'{"prompt": "a", "max_new_tokens": 0}': "max_new_tokens 0: must be a whole number between 1",
    b'{"prompt": "a", "max_new_tokens": 1.5}': "whole number",
    b'{"prompt": "a", "max_new_tokens": true}': "whole number",
    b'{"prompt": "a", "temperature": NaN}': "temperature nan",
    b'{"prompt": "a", "temperature": "hot"}': "temperature 'hot'",
    b'{"prompt": "a", "stop": ["x", ""]}': "none of them empty",
    b'{"prompt": "a", "do_sample": 1}': "true or false",
    b"[" * 100_000: "not JSON that can be read",
    b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}": "not JSON that can be read",
}


@pytest.mark.parametrize("line", WRONG, ids=range(len(WRONG)))
def test_a_wrong_line_is_named_and_the_others_run(line: bytes, tmp_path: Path) -> None:
    """One bad line in a million must cost that line, with its number, and not the run."""
    file = indexed(tmp_path, '{"prompt": "before"}', line, '{"prompt": "after"}')
    assert [entry.line for entry in file.entries] == [1, 3]
    assert list(problems(file)) == [2]
    assert WRONG[line] in problems(file)[2]


def test_the_first_of_two_lines_with_an_id_runs(tmp_path: Path) -> None:
    """Both numbers are named; a default id may collide with a given one; 3 and "3" are two ids."""
    file = indexed(
        tmp_path,
        '{"id": "a", "prompt": "first"}',
        '{"id": "a", "prompt": "second"}',
        '{"id": "3", "prompt": "a text"}',
        '{"id": 5, "prompt": "takes the next line\'s number"}',
        '{"prompt": "has none"}',
        '{"id": 3, "prompt": "a number"}',
    )
    assert [(entry.id, entry.line) for entry in file.entries] == [("a", 1), ("3", 3), (5, 4), (3, 6)]
    found = problems(file)
    assert list(found) == [2, 5]
    assert 'id "a" is that of line 1' in found[2]
    assert "id 5 is that of line 4" in found[5]


def test_shards_cover_the_file_once(tmp_path: Path) -> None:
    """Array jobs: no line in two shards or in none, and a bad or double line is reported by one shard only."""
    lines = [json.dumps({"id": i % 7, "prompt": "x"}) for i in range(9)] + ["bad"]
    shards = [indexed(tmp_path, *lines, shard=(index, 3)) for index in range(3)]
    ids = [entry.id for file in shards for entry in file.entries]
    assert sorted(ids) == list(range(7))
    assert sorted(number for file in shards for number in problems(file)) == [8, 9, 10]


def test_digest_follows_what_decides_the_text() -> None:
    """--resume compares it: other options are another text, another draft length is not."""

    def digest(text: str, **options: object) -> str:
        return parse_line(json.dumps({"prompt": text, **options}).encode(), 1, DEFAULTS).digest()

    assert digest("a") == digest("a", id=9) == digest("a", max_new_tokens=16) == digest("a", num_assistant_tokens=5)
    assert len({digest("a"), digest("b"), digest("a", max_new_tokens=17), digest("a", chat=True)}) == 4


ADAPTED = Defaults(DEFAULTS.options, models=LineModels(("opt", "owner/opt"), ("sql", "notes")))


def of_model(defaults: Defaults = ADAPTED, **fields: object) -> Prompt:
    return parse_line(json.dumps({"prompt": "a", **fields}).encode(), 1, defaults)


def test_the_model_of_a_line_says_which_adapter() -> None:
    """Finds a name that is ignored, so that a text is the base's or another adapter's, and none says so."""
    assert [of_model(model=name).options.lora for name in ("sql", "notes", "opt", "owner/opt")] == [
        *("sql", "notes"),
        *("none", "none"),  # not the last adapter of the command line, which a line without a model has
    ]
    assert of_model(model=None).options.lora is of_model().options.lora is None
    assert of_model(model="opt", lora="sql", lora_scale=0.5).options.lora == "sql"  # as on a server
    assert of_model(model="sql").digest() == of_model(lora="sql").digest()
    # Without adapters the digest is as it was when the field had no effect.
    plain = Defaults(DEFAULTS.options, models=LineModels(("opt",)))
    assert of_model(plain, model="opt").digest() == of_model(plain).digest()


def test_an_unknown_model_is_the_result_of_its_line(tmp_path: Path) -> None:
    """Finds an error of the whole run, and a text that another model than the one named has written."""
    prompt = of_model(model="gpt")
    with pytest.raises(LineError, match="there is no model 'gpt' here; there is opt, sql, notes"):
        prompt.request(1)
    # Tried again with another list of adapters, it is the same prompt: --resume compares digests.
    assert prompt.digest() == of_model(DEFAULTS, model="gpt").digest()
    assert len({each.digest() for each in (prompt, of_model(), of_model(model="gpt2"), of_model(model="sql"))}) == 4
    with pytest.raises(LineError, match="model 5: must be the text of a name"):
        of_model(model=5)
    assert not of_model(model="gpt").unknown


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    """`<(zcat prompts.gz)` cannot be sought in."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_text('{"prompt": "a"}\n{"prompt": "b"}\n'))
    writer.start()
    file = PromptFile(str(fifo), DEFAULTS)
    writer.join()
    assert [file.read(entry).prompt for entry in reversed(file.entries)] == ["b", "a"]


def test_standard_input() -> None:
    """`zcat prompts.gz | ipex-assist batch - …`; a file that is called - is ./-."""
    reading, writing = os.pipe()
    os.write(writing, b'{"prompt": "a"}\n{"prompt": "b"}\n')
    os.close(writing)
    before = os.dup(0)
    try:
        os.dup2(reading, 0)
        file = PromptFile("-", DEFAULTS)
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(reading)
    assert [file.read(entry).prompt for entry in reversed(file.entries)] == ["b", "a"]


def test_a_file_that_changes_meanwhile(tmp_path: Path) -> None:
    """Another prompt must not run under the id of the one that was there."""
    file = indexed(tmp_path, '{"id": "a", "prompt": "x"}', '{"id": "b", "prompt": "y"}')
    Path(file.path).write_text('{"id": "a", "prompt": "z"}\n{"id": "b"')
    for entry in file.entries:
        with pytest.raises(LineError, match="changed during the run"):
            file.read(entry)


def test_unknown_fields_are_counted(tmp_path: Path) -> None:
    """Data sets carry fields of their own, which must not stop anything; a typo must not go unnoticed."""
    file = indexed(
        tmp_path,
        '{"prompt": "a", "reference": 1}',
        '{"prompt": "a", "reference": 1, "max_tokens": 3}',
    )
    assert not file.problems
    assert file.unknown == {"reference": (2, 1), "max_tokens": (1, 2)}


def test_no_such_file(tmp_path: Path) -> None:
    """A message, not a traceback."""
    with pytest.raises(UsageError, match="no such file"):
        PromptFile(str(tmp_path / "none"), DEFAULTS)
    with pytest.raises(UsageError, match="cannot be read"):
        PromptFile(str(tmp_path), DEFAULTS)


def test_every_option_of_the_flags_is_a_field() -> None:
    """What a flag takes, a line takes, and nothing else."""
    given = {"num_assistant_tokens_schedule": "heuristic", "logit_bias": {"7": -2}, "min_p": 0.1, "seed": None}
    options = check_options(given, DEFAULTS.options)
    assert options == GenerationOptions(
        max_new_tokens=16, num_assistant_tokens_schedule="heuristic", logit_bias={7: -2}, min_p=0.1
    )
    with pytest.raises(LineError, match="num_assistant_tokens_schedule 'magic': must be one of adaptive, constant"):
        check_options({"num_assistant_tokens_schedule": "magic"}, DEFAULTS.options)
