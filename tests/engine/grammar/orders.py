"""Whether a matcher takes an instance with its properties in some order: a grammar fixes one."""

import json
from decimal import Decimal
from typing import Any

from benchmarks.vocabularies import byte_tokenizer

from hotloop.engine.grammar.matcher import Matcher
from hotloop.models.tokenizer import Tokenizer

MAX_ORDERS = 5000  # places looked at while searching
_BYTES = Tokenizer(byte_tokenizer())


def take(matcher: Matcher, text: str) -> int | None:
    """How many tokens a text took; None, and nothing is taken, if it was refused."""
    num_taken = 0
    for token_id in _BYTES.encode(text):
        if not matcher.advance(token_id):
            matcher.rollback(num_taken)
            return None
        num_taken += 1
    return num_taken


class OrderSearch:
    """Writes an instance with its properties in an order that the matcher takes, if there is one."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._num_looked = 0

    def find(self, instance: Any) -> str | None:
        written: list[str] = []
        return "".join(written) if self._write([("value", instance)], written) else None

    def _write(self, todo: list[tuple[str, Any]], written: list[str]) -> bool:
        """Depth first: `todo` is what is still to be written, the next thing last."""
        if not todo:
            return self._matcher.is_complete
        *rest, (kind, thing) = todo
        if kind == "members":
            return self._write_member(rest, thing, written)
        if kind == "value" and isinstance(thing, dict):
            members = dict(thing)
            return self._write([*rest, ("text", "}"), ("members", (members, True)), ("text", "{")], written)
        if kind == "value" and isinstance(thing, list) and any(isinstance(item, dict | list) for item in thing):
            parts: list[tuple[str, Any]] = [("text", "]")]
            for item in reversed(thing):
                parts += [("value", item), ("text", ", ")]
            return self._write([*rest, *parts[:-1], ("text", "[")], written)
        text = thing if kind == "text" else write_json(thing)
        num_taken = take(self._matcher, text)
        if num_taken is None:
            return False
        written.append(text)
        if self._write(rest, written):
            return True
        written.pop()
        self._matcher.rollback(num_taken)
        return False

    def _write_member(
        self, rest: list[tuple[str, Any]], state: tuple[dict[str, Any], bool], written: list[str]
    ) -> bool:
        members, is_first = state
        if not members:
            return self._write(rest, written)
        for name, value in members.items():
            self._num_looked += 1
            if self._num_looked > MAX_ORDERS:
                return False
            others = {key: other for key, other in members.items() if key != name}
            head = ("" if is_first else ", ") + write_json(name) + ": "
            if self._write([*rest, ("members", (others, False)), ("value", value), ("text", head)], written):
                return True
        return False


def write_json(value: Any) -> str:
    """As a model writes it: a number without an exponent, a whole one without a point."""
    match value:
        case bool() | None | str():
            return json.dumps(value, ensure_ascii=False)
        case float():
            return str(int(value)) if value == int(value) else format(Decimal(repr(value)), "f")
        case int():
            return str(value)
        case list():
            return f"[{', '.join(map(write_json, value))}]"
        case dict():
            return "{" + ", ".join(f"{write_json(key)}: {write_json(item)}" for key, item in value.items()) + "}"
    raise TypeError(type(value))
