"""A conversation: its messages, the commands that begin with /, and Ctrl-C. Never imports torch."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from ipex_assist.commands.chat_partner import Message, Partner
from ipex_assist.commands.chat_screen import Screen
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.runner import Terminated
from ipex_assist.tokenization.tokenizer import check_text

HELP = """\
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
        self._saved: Path | None = None
        self._words = {"reset": self._reset, "system": self._set_system, "save": self._save, "help": self._help}

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
                    self._answer(line.strip()[1:] if word.startswith("//") else line)
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

    def _answer(self, question: str) -> None:
        check_text(question)
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

    def _first(self) -> list[Message]:
        return [{"role": "system", "content": self.system}] if self.system else []

    def _command(self, word: str, rest: str) -> None:
        work = self._words.get(word[1:])
        if work is None:
            raise IpexAssistError(f"{word}: there is no such word. /help lists them; //… sends it as a message")
        work(rest)

    def _reset(self, rest: str) -> None:
        self.messages = []
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
        return "\n".join(f"## {each['role']}\n\n{each['content']}\n" for each in messages)
