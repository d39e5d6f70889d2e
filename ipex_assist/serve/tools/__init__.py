"""Tool calls: passed to the chat template, parsed from the output, and enforced by a grammar.

Routes use `prepare` before generation, and `push` and `finish` of `PreparedConversation.parser()` during it.
"""

from ipex_assist.serve.tools.call_parser import CallParser
from ipex_assist.serve.tools.output_reader import OutputForm, OutputReader
from ipex_assist.serve.tools.parsed_events import CallDelta, ParsedEvent, Thought, content_and_calls, merged
from ipex_assist.serve.tools.prepare import SCHEMA_FIELDS, PreparedConversation, prepare, special_words

__all__ = [
    "SCHEMA_FIELDS",
    "CallDelta",
    "CallParser",
    "OutputForm",
    "OutputReader",
    "ParsedEvent",
    "PreparedConversation",
    "Thought",
    "content_and_calls",
    "merged",
    "prepare",
    "special_words",
]
