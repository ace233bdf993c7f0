"""The arguments of a call: a text with JSON in it to OpenAI, a value to Anthropic. And the ids of calls and answers."""

import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from hotloop.core.errors import RequestError
from hotloop.wire.field import Field, Json

_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_-]")


def write_arguments(given: Field | None) -> str:
    """Always the same text for the same value: it becomes part of later prompts."""
    value = given.object() if given else {}
    try:
        return dump(value)
    except (ValueError, RecursionError):
        assert given
        raise given.refuse("cannot be written as JSON") from None


def dump(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def read_arguments(text: str) -> Json | None:
    """None if they are no object: they were cut off, or the model got them wrong."""
    try:
        value = msgspec.json.decode(text.strip() or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def wrap_input(text: str) -> str:
    return json.dumps({"input": text}, ensure_ascii=False)


def unwrap_input(arguments: str) -> str:
    """The text in a custom tool's arguments; nothing if they were cut off."""
    text = (read_arguments(arguments) or {}).get("input")
    return text if isinstance(text, str) else ""


def tidy_id(given: str, place: str = "") -> str:
    """Anthropic refuses ids with anything but letters, digits, `_` and `-`; some engines write `functions.f:0`."""
    tidied = _NOT_IN_IDS.sub("_", given)
    if not tidied:
        raise RequestError(f"{place} is empty", param=place or None)
    return tidied


def answer_stem(given: str) -> str:
    """What is left of an answer's id without the word its API begins them with; a new one if there is none."""
    for prefix in ("chatcmpl-", "msg_", "resp_"):
        given = given.removeprefix(prefix)
    return given or secrets.token_hex(12)
