"""Tools that a model may call: into its chat template, out of its text, and forced by a grammar.

A route uses three names: `prepare`, before a text; `CallParser.push` and `finish`, of `Prepared.parser()`, along it.
"""

from ipex_assist.serve.tools.call_parser import CallDelta, CallParser, ParsedEvent, content_and_calls, merged
from ipex_assist.serve.tools.prepare import PreparedConversation, prepare

__all__ = ["CallDelta", "CallParser", "ParsedEvent", "PreparedConversation", "content_and_calls", "merged", "prepare"]
