"""Whether and how much a model thinks, as requests say it: variables of its chat template."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ipex_assist.serve.protocol.common import RequestBody

EFFORT_OFF = "none"
# What templates are given by others than the request.
_TAKEN = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


Budget = Annotated[int, Field(ge=-1, le=2**31 - 1)]  # -1: no limit


class ThinkingSwitch(RequestBody):
    """Anthropic's form, which GLM's and DeepSeek's own APIs have as well: disabled, or any other type."""

    type: str
    budget_tokens: Budget | None = None


class ThinkingFields(RequestBody):
    """How a model is to think, where its chat template leaves that open."""

    reasoning_effort: str | None = Field(None, description="none: no thoughts; else as the chat template knows it")
    enable_thinking: bool | None = Field(None, description="whether to think, where the chat template asks for it")
    thinking: ThinkingSwitch | bool | None = Field(None, description="the same")
    thinking_budget: Budget | None = Field(None, description="tokens of a thought at most: its end is forced then")
    thinking_token_budget: Budget | None = Field(None, description="the same, by vLLM's name")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="further variables of the chat template")

    @property
    def budget(self) -> int | None:
        """How many tokens a thought may have."""
        said = self.thinking.budget_tokens if isinstance(self.thinking, ThinkingSwitch) else None
        given = (self.thinking_budget, self.thinking_token_budget, said)
        return next((each for each in given if each is not None and each >= 0), None)

    @property
    def template_variables(self) -> dict[str, Any]:
        """Those of the chat template; what chat_template_kwargs says comes first."""
        thinks = self.enable_thinking
        if thinks is None and self.thinking is not None:
            thinks = self.thinking if isinstance(self.thinking, bool) else self.thinking.type != "disabled"
        return {
            **thinking_variables(thinks, self.reasoning_effort),
            **{name: value for name, value in (self.chat_template_kwargs or {}).items() if name not in _TAKEN},
        }


def thinking_variables(thinks: bool | None, effort: str | None = None) -> dict[str, Any]:
    """The variables by which chat templates know whether and how much a model is to think; None: nobody said."""
    if effort is not None:
        thinks = effort != EFFORT_OFF
    switches = {} if thinks is None else {"enable_thinking": thinks, "thinking": thinks}
    return switches if effort in (None, EFFORT_OFF) else {**switches, "reasoning_effort": effort}
