"""What /set of a chat changes: options of the answers to come, by the names of their flags."""

from __future__ import annotations

import dataclasses
from typing import Any

from ipex_assist.env.errors import UsageError
from ipex_assist.env.options import Switch, Texts, checked, options_of, suggestion
from ipex_assist.speculative.options import GenerationOptions

_SWITCHES = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
_HIDDEN = ("logprobs", "prompt_logprobs")  # nobody would see them


def settable() -> dict[str, str]:
    """The names that /set takes, as flags have them, and what each means."""
    table = options_of(GenerationOptions)
    return {name.replace("_", "-"): one.help for name, one in table.items() if name not in _HIDDEN}


def set_option(options: GenerationOptions, name: str, text: str) -> GenerationOptions:
    """The options with another value in one of them; switches take on and off, an empty text is the default.

    Raises UsageError for a name or a value that cannot be.
    """
    known = settable()
    if name not in known:
        raise UsageError(f"/set {name}: there is no such option{suggestion(name, known)}; /set lists them")
    field, kind = name.replace("-", "_"), options_of(GenerationOptions)[name.replace("-", "_")].kind
    changes: dict[str, Any] = {}
    if not text:
        changes[field] = getattr(GenerationOptions(), field)
    elif isinstance(kind, Switch):
        if text.lower() not in _SWITCHES:
            raise UsageError(f"/set {name} {text}: must be on or off")
        changes[field] = _SWITCHES[text.lower()]
    else:
        value = checked(f"/set {name}", kind.read, text)
        changes[field] = (value,) if isinstance(kind, Texts) else value
    return dataclasses.replace(options, **changes)
