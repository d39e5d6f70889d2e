"""Arguments of calls as models write them, made valid JSON where they can only be meant one way."""

from __future__ import annotations

import json
import re
from typing import NoReturn

# A string, with what JSON forbids within it; a comma before the end of a list or an object; a word of Python's.
_PART = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])|\b(?:None|True|False)\b', re.DOTALL)
_IN_STRING = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\|[\x00-\x1f]')
_WORDS = {"None": "null", "True": "true", "False": "false", ",": ""}


def repaired(text: str) -> str | None:
    """A JSON object as it is written, or with line ends and backslashes in strings escaped, Python's words replaced,
    trailing commas and doubled braces removed. None where that does not make it a JSON object."""
    if _is_object(text):
        return text
    mended = _PART.sub(_repaired_part, text).strip()
    if mended.startswith("{{") and mended.endswith("}}"):
        mended = mended[1:-1]
    return mended if _is_object(mended) else None


def _repaired_part(found: re.Match[str]) -> str:
    part = found[0]
    return _IN_STRING.sub(_escaped, part) if part.startswith('"') else _WORDS[part]


def _escaped(found: re.Match[str]) -> str:
    part = found[0]
    if len(part) > 1:
        return part
    return "\\\\" if part == "\\" else json.dumps(part)[1:-1]


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(constant: str) -> NoReturn:
    """NaN and Infinity, which JSON does not have."""
    raise ValueError(constant)
