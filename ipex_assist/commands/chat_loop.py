"""A conversation: its messages, the commands that begin with /, and Ctrl-C. Never imports torch."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

from ipex_assist.commands.chat_options import set_option, settable
from ipex_assist.commands.chat_partner import Message, Partner
from ipex_assist.commands.chat_screen import Screen
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.runner import Terminated
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.tokenization.tokenizer import check_text
from ipex_assist.vision.images import file_content

HELP = """\
/image FILE    an image for the next message; several times for several
/retry         answer the last message again
/thought       what the model thought before its last answer
/set NAME X    another value of an option, such as temperature; /set lists them, /set NAME is its default
/load FILE     go on with a conversation that /save has written as JSON
/reset         forget the conversation, but for the system prompt
/system TEXT   another system prompt; without TEXT it is shown
/save FILE     write the conversation; a name that ends in .json makes it {"messages": …}, as batch takes it
/exit          end, as Ctrl-D does
//…            a message that begins with /
A line that ends in \\ goes on with the next one. Ctrl-C ends an answer."""


class ChatLoop:
    """The loop of questions and answers."""

    def __init__(self, partner: Partner, screen: Screen, system: str | None = None, *, statistics: bool = True) -> None:
        """statistics: tell those of each answer."""
        self.partner, self.screen, self.system, self._statistics = partner, screen, system, statistics
        self.messages: list[Message] = []
        self._images: list[str] = []  # of the next message
        self._saved: Path | None = None
        self._words = {
            "help": self._help,
            "image": self._image,
            "load": self._load,
            "reset": self._reset,
            "retry": self._retry,
            "save": self._save,
            "set": self._set,
            "system": self._set_system,
            "thought": self._thought,
        }

    def run(self) -> int:
        """Run to the end of the input; returns the exit code: 1 where nobody watched and a message had no answer."""
        failed = False
        self.screen.greet(self.partner.name)
        while (line := self._ask()) is not None:
            word, _, rest = line.strip().partition(" ")
            try:
                if word in ("/exit", "/quit", "/bye"):
                    break
                if word.startswith("/") and not word.startswith("//"):
                    self._command(word, rest.strip())
                elif line.strip():
                    self._answer(self._pictured(line.strip()[1:] if word.startswith("//") else line))
            except IpexAssistError as error:
                failed = True
                self.screen.error(str(error))
        return 1 if failed and not self.screen.terminal else 0

    def _ask(self) -> str | None:
        """The next message; None at the end. On a terminal Ctrl-C only drops the line that is being typed."""
        while True:
            try:
                return self.screen.ask()
            except KeyboardInterrupt as error:
                if isinstance(error, Terminated) or not self.screen.terminal:
                    raise
                self.screen.tell("\n(Ctrl-D or /exit ends the conversation)")

    def _pictured(self, question: str) -> Any:
        """The content of a message: a question, after its images."""
        check_text(question)
        if not self._images:
            return question
        images, self._images = self._images, []
        return [*({"type": "image", "image": each} for each in images), {"type": "text", "text": question}]

    def _image(self, name: str) -> None:
        if not name:
            raise IpexAssistError("/image: which? Type /image FILE")
        path = Path(name).expanduser()
        file_content(path)
        self._images.append(str(path))
        self.screen.tell(f"({path.name} goes with your next message)")

    def _answer(self, question: Any) -> None:
        asked = [*self.messages, {"role": "user", "content": question}]
        spans: list[str] = []
        stopped = False
        try:
            with self.screen.answer() as write, closing(self.partner.answer([*self._first(), *asked])) as answer:
                for some in answer:
                    spans += [text for text, _ in some]
                    write(some)
        except KeyboardInterrupt as error:
            if isinstance(error, Terminated) or not self.screen.terminal:
                raise
            stopped = True
        text = "".join(spans)
        if text:
            self.messages = [*asked, {"role": "assistant", "content": text}]
        if stopped:
            self.screen.tell("(stopped)")
        elif self._statistics:
            self.screen.tell(self.partner.summary())
        if self.partner.thought and not stopped:
            self.screen.tell(
                f"(a thought of {len(self.partner.thought.split()):,} words came first: /thought shows it)"
            )

    def _first(self) -> list[Message]:
        return [{"role": "system", "content": self.system}] if self.system else []

    def _command(self, word: str, rest: str) -> None:
        work = self._words.get(word[1:])
        if work is None:
            raise IpexAssistError(f"{word}: there is no such word. /help lists them; //… sends it as a message")
        work(rest)

    def _retry(self, rest: str) -> None:
        if not self.messages:
            raise IpexAssistError("/retry: there is no answer yet")
        *before, asked, _ = self.messages
        question = asked["content"]
        self.messages = before
        try:
            self._answer(question)
        finally:
            if self.messages == before:  # it failed, or was stopped before its first word
                self.messages = [*before, asked, _]

    def _set(self, rest: str) -> None:
        name, _, text = rest.partition(" ")
        if not name:
            for each, about in settable().items():
                self.screen.tell(f"{each:<30} {_shown(self.partner.options, each):<10} {about}")
            return
        options = set_option(self.partner.options, name, text.strip())
        self.partner.change(name.replace("-", "_"), options)
        self.screen.tell(f"({name}: {_shown(options, name)})")

    def _load(self, name: str) -> None:
        if not name:
            raise IpexAssistError("/load: what? Type /load FILE")
        try:
            read = json.loads(Path(name).expanduser().read_text(encoding="utf-8"))
            messages: list[Message] = [
                {"role": str(each["role"]), "content": each["content"]} for each in read["messages"]
            ]
        except OSError as error:
            raise IpexAssistError(f"/load {name}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise IpexAssistError(
                f'/load {name}: no conversation; /save NAME.json writes one ({{"messages": [{{"role", "content"}}]}})'
            ) from None
        first = messages[:1] if messages and messages[0]["role"] == "system" else []
        rest = messages[len(first) :]
        turns = ["user", "assistant"] * (len(rest) // 2)
        if [each["role"] for each in rest] != turns or not all(_is_content(each["content"]) for each in messages):
            raise IpexAssistError(
                f"/load {name}: texts of user and assistant must take turns, after one of system or none"
            )
        self.system, self.messages = first[0]["content"] if first else self.system, rest
        self.screen.tell(f"({len(rest)} messages)")

    def _thought(self, rest: str) -> None:
        self.screen.tell(self.partner.thought or "(the last answer came without a thought)")

    def _reset(self, rest: str) -> None:
        self.messages, self._images = [], []
        self.screen.tell("(a new conversation)")

    def _set_system(self, rest: str) -> None:
        if rest:
            self.system = rest
        self.screen.tell(f"(system prompt: {self.system or 'none'})")

    def _help(self, rest: str) -> None:
        self.screen.tell(HELP)

    def _save(self, name: str) -> None:
        if not name:
            raise IpexAssistError("/save: where? Type /save FILE")
        path = Path(name).expanduser()
        if path.exists() and path != self._saved:
            raise IpexAssistError(f"/save {name}: there is such a file already; give another name")
        try:
            path.write_text(self._written(path.suffix == ".json"), encoding="utf-8")
        except OSError as error:
            raise IpexAssistError(f"/save {name}: {error.strerror}") from None
        self._saved = path
        self.screen.tell(f"({len(self.messages)} messages in {path})")

    def _written(self, as_json: bool) -> str:
        messages = [*self._first(), *self.messages]
        if as_json:
            return json.dumps({"messages": messages}, ensure_ascii=False, indent=1) + "\n"
        return "\n".join(f"## {each['role']}\n\n{_text(each['content'])}\n" for each in messages)


def _is_content(content: Any) -> bool:
    """Whether it is a text, or parts as `ChatLoop._pictured` makes them."""
    if not isinstance(content, list):
        return isinstance(content, str)
    return all(isinstance(part, dict) and isinstance(part.get(part.get("type")), str) for part in content)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text") or f"![]({part['image']})" for part in content)


def _shown(options: GenerationOptions, name: str) -> str:
    """The value of an option by its flag's name."""
    value = getattr(options, name.replace("-", "_"))
    return "default" if value is None else str(value)
