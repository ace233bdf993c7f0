"""The arguments of a call: a text with JSON in it to OpenAI, a value to Anthropic. And the ids of calls and answers."""

import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from hotloop.core.errors import RequestError
from hotloop.router.translate.field import Field, Json

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


def tidy_id(given: Field) -> str:
    """Anthropic refuses ids with anything but letters, digits, `_` and `-`; some engines write `functions.f:0`."""
    tidied = _NOT_IN_IDS.sub("_", given.text())
    if not tidied:
        raise RequestError(f"{given.place} is empty", param=given.place)
    return tidied


def answer_id(given: str | None, prefix: str) -> str:
    """The replica's own id for its answer, as the client's API begins them."""
    stem = (given or "").removeprefix("chatcmpl-").removeprefix("msg_")
    return f"{prefix}{stem or secrets.token_hex(12)}"
