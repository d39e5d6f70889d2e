"""Who answers in a conversation: a model in this process, or a server."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

from ipex_assist.speculative.options import GenerationOptions

# role and content: a text, or parts of which images have the names of their files
Message = dict[str, Any]
Span = tuple[str, bool]  # some text, and whether it was drafted


class Partner(Protocol):
    """Who answers. options: of the answers to come. thought: before the last answer, which does not have it."""

    name: str
    thought: str

    @property
    def options(self) -> GenerationOptions: ...

    def change(self, name: str, options: GenerationOptions) -> None:
        """Answer by these options from now on, of which the one of this name was said by the user."""
        ...

    def answer(self, messages: list[Message]) -> Generator[list[Span], None, None]:
        """The answer in spans, as they come.

        Raises IpexAssistError where there is none, and KeyboardInterrupt once Ctrl-C has ended it.
        """
        ...

    def summary(self) -> str:
        """How the last answer came: its speed and its draft."""
        ...
