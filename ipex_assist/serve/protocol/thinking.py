"""Whether and how much a model thinks, as requests say it: variables of its chat template."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ipex_assist.serve.protocol.common import RequestBody

EFFORT_OFF = "none"
# What templates are given by others than the request.
_TAKEN = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class ThinkingSwitch(RequestBody):
    """Anthropic's form, which GLM's and DeepSeek's own APIs have as well."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]


class ThinkingFields(RequestBody):
    """How a model is to think, where its chat template leaves that open."""

    reasoning_effort: str | None = Field(None, description="none: no thoughts; else as the chat template knows it")
    enable_thinking: bool | None = Field(None, description="whether to think, where the chat template asks for it")
    thinking: ThinkingSwitch | bool | None = Field(None, description="the same")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="further variables of the chat template")

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
