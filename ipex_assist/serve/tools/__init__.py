"""Tools that a model may call: into its chat template, out of its text, and forced by a grammar.

A route uses three names: `prepare`, before a text; `CallParser.push` and `finish`, of `Prepared.parser()`, along it.
"""

from ipex_assist.serve.tools.parsing import CallDelta, CallParser, Event, collected, joined
from ipex_assist.serve.tools.prepare import Prepared, prepare

__all__ = ["CallDelta", "CallParser", "Event", "Prepared", "collected", "joined", "prepare"]
