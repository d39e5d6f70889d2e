"""Turns of a coding agent that edits this repository: prompts with tools and files, answers by its git history.

A session is a commit: the agent reads the files that the commit changed, edits them hunk by hunk, and says why, in the
commit's own words. Edits come in the forms that agents ask models for, a form a session in turn: a tool's JSON with the
old and the new text (Claude Code, Qwen Code), blocks to search and replace (aider, Cline), and unified diffs (Codex).
"""

from __future__ import annotations

import difflib
import json
import subprocess
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAST = "15b6bb1"  # the commit that the sessions end with, so that every run has the same
FORMS = ("tool", "blocks", "diff")
MOST_FILES, MOST_LINES = 3, 400  # of a commit: changed files, and lines of one
CHANGED = range(4, 90)  # lines, added and removed
SHORT_FILE = 160  # lines of a file in a model's session
AROUND = 2  # unchanged lines that an edit repeats at each side, more where they are not unique in the file

EDIT = {
    "tool": "Edit a file with the tool edit_file. Its old text must be in the file exactly once.",
    "blocks": "Edit a file with blocks of <<<<<<< SEARCH, the old lines, =======, the new lines, >>>>>>> REPLACE, in a "
    "fence after the file's path. The old lines must be in the file exactly once.",
    "diff": "Edit a file with a unified diff in a fence, without line numbers behind @@.",
}
SYSTEM = """\
You are a coding agent that works in a checkout of a Python project. Read a file before you edit it. Make small edits, \
one file at a time, keep the style of the code around them, and add tests for what you change. {edit} Say in one \
sentence what you do before you do it. When the task is done, say what changed and why, without headings.

# Tools

You may call functions. Their signatures:
<tools>
{tools}
</tools>

For each call, give a JSON object with the function's name and arguments within <tool_call></tool_call>:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def tool(name: str, description: str, **arguments: str) -> str:
    """A function's signature, as OpenAI's API has it."""
    properties = {key: {"type": "string", "description": text} for key, text in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return json.dumps(
        {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
    )


TOOLS = (
    tool("read_file", "Read a file of the checkout.", path="path within the checkout"),
    tool("edit_file", "Replace text.", path="path within the checkout", old="text to replace", new="text in its place"),
    tool("grep", "Find lines that match.", pattern="regular expression", path="folder or file"),
    tool("run", "Run a command in the checkout; returns its output.", command="shell command"),
)


@dataclass(frozen=True)
class Turn:
    """What one request of the agent sends, and the answer. session, form: of the commit."""

    session: int
    form: str
    prompt: str
    answer: str


@dataclass(frozen=True)
class Change:
    """A file before and after a commit."""

    path: str
    before: list[str]
    after: list[str]


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


@dataclass(frozen=True)
class Session:
    """A commit that an agent could have made: what was asked, why, and the files."""

    commit: str
    subject: str
    body: str
    changes: list[Change]


def sessions(count: int) -> list[Session]:
    """The last `count` of them, the oldest first."""
    found: list[Session] = []
    for commit in git("log", "--no-merges", "--format=%H", LAST, "--", "*.py").split():
        listed = [line.split("\t") for line in git("diff", "--numstat", f"{commit}~", commit).splitlines()]
        if not 1 <= len(listed) <= MOST_FILES or not all(path.endswith(".py") for _, _, path in listed):
            continue
        if sum(int(added) + int(removed) for added, removed, _ in listed) not in CHANGED:
            continue
        changes = [Change(path, at(f"{commit}~", path), at(commit, path)) for _, _, path in listed]
        if all(0 < len(change.before) <= MOST_LINES and change.after for change in changes):
            subject, _, body = git("show", "--no-patch", "--format=%s%n%b", commit).partition("\n")
            found.append(Session(commit, subject, body.strip(), changes))
        if len(found) == count:
            break
    return found[::-1]


def at(commit: str, path: str) -> list[str]:
    """The lines of a file at a commit; none where it was not there."""
    done = subprocess.run(["git", "show", f"{commit}:{path}"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else []


def turns(count: int) -> Iterator[Turn]:
    """The turns of `count` sessions, as ChatML (Qwen)."""
    for number, each in enumerate(sessions(count)):
        form = FORMS[number % len(FORMS)]
        text = _message("system", SYSTEM.format(edit=EDIT[form], tools="\n".join(TOOLS)))
        text += _message("user", f"{each.subject}. The files are {', '.join(change.path for change in each.changes)}.")
        for said, result in _steps(form, each.body or each.subject, each.changes):
            text += "<|im_start|>assistant\n"
            yield Turn(number, form, text, f"{said}<|im_end|>")
            text += f"{said}<|im_end|>\n" + _message("user", f"<tool_response>\n{result}\n</tool_response>")


# What the user of a model's session asks, one after the other; the file was read before the first.
ASKED = (
    "{subject}. Here is the file; make the edit that this needs.",
    "Edited. Give the changed function, method or class again as a whole, as it is now.",
    "Write a pytest test for the change, in a file of its own.",
)


def answered_turns(count: int, answer: Callable[[int, str], str], only: Container[int] | None = None) -> Iterator[Turn]:
    """The turns of sessions in which a model answers: `answer` is given the session and the prompt.

    Of `count` commits those that changed one file of at most SHORT_FILE lines. only: sessions, by their number. All
    earlier answers of a session are in its prompts.
    """
    for number, each in enumerate(sessions(count)):
        if (
            len(each.changes) > 1
            or len(each.changes[0].before) > SHORT_FILE
            or (only is not None and number not in only)
        ):
            continue
        form, change = FORMS[number % len(FORMS)], each.changes[0]
        text = _message("system", SYSTEM.format(edit=EDIT[form], tools="\n".join(TOOLS)))
        for asked in ASKED:
            said = asked.format(subject=each.subject)
            if asked is ASKED[0]:
                said += f"\n\n{change.path}:\n```python\n" + "\n".join(change.before) + "\n```"
            text += _message("user", said) + "<|im_start|>assistant\n"
            made = answer(number, text)
            yield Turn(number, "model", text, f"{made}<|im_end|>")
            text += f"{made}<|im_end|>\n"


def _message(role: str, content: str) -> str:
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


def _steps(form: str, body: str, changes: list[Change]) -> Iterator[tuple[str, str]]:
    """What the agent says, and what its tool returns: files that are read, then edits, then the end."""
    for change in changes:
        yield f"I read {change.path}.\n{_call('read_file', path=change.path)}", "\n".join(change.before)
    for change in changes:
        for old, new, shown in _edits(change):
            yield f"I edit {change.path}.\n{_edit(form, change.path, old, new)}", f"Edited:\n{shown}"
    yield body, ""


def _call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _edits(change: Change) -> Iterator[tuple[list[str], list[str], str]]:
    """Old and new lines of each hunk, and the new lines with those around them, as the file is after it."""
    blocks = difflib.SequenceMatcher(None, change.before, change.after, autojunk=False).get_grouped_opcodes(AROUND)
    text = "\n" + "\n".join(change.before) + "\n"
    for group in blocks:
        first, last, start, end = group[0][1], group[-1][2], group[0][3], group[-1][4]
        before, after = change.before, change.after
        while text.count("\n" + "\n".join(before[first:last]) + "\n") > 1 and first > 0 and start > 0:
            first, start = first - 1, start - 1
        yield before[first:last], after[start:end], "\n".join(after[max(0, start - 3) : end + 3])


def _edit(form: str, path: str, old: list[str], new: list[str]) -> str:
    if form == "tool":
        return _call("edit_file", path=path, old="\n".join(old), new="\n".join(new))
    if form == "blocks":
        lines = ["<<<<<<< SEARCH", *old, "=======", *new, ">>>>>>> REPLACE"]
        return f"{path}\n```python\n" + "\n".join(lines) + "\n```"
    lines = [line.rstrip("\n") for line in difflib.ndiff(old, new) if not line.startswith("?")]
    shown = [line[0] + line[2:] for line in lines]
    return f"```diff\n--- a/{path}\n+++ b/{path}\n@@\n" + "\n".join(shown) + "\n```"
