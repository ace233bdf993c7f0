"""The course of calls in a conversation, and where their arguments came from."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from hotloop.lint.part import Part
from hotloop.lint.run import LintedStep

_MIN_VALUE = 3  # characters; a shorter value stands everywhere


@dataclass(frozen=True, slots=True)
class CallTurn:
    """A turn of the assistant with one call; `known` is all text before it, `result` what the call gave back."""

    call: Part
    is_silent: bool
    known: str
    result: str

    @property
    def values(self) -> tuple[str, ...]:
        """The scalars among its arguments; none if they are no JSON."""
        try:
            return tuple(_scalars(json.loads(self.call.text)))
        except (ValueError, RecursionError):
            return ()


def chains(step: LintedStep) -> Iterator[list[CallTurn]]:
    """Turns of one call each that follow one another with nothing but results between them."""
    chain: list[CallTurn] = []
    known = "\n".join(part.text for part in step.asked.system)
    for role, group in groupby(
        step.asked.continued, key=lambda part: "assistant" if part.role == "assistant" else part.kind
    ):
        said = [*group]
        if role == "result":
            if chain:
                last = chain[-1]
                chain[-1] = CallTurn(last.call, last.is_silent, last.known, "\n".join(part.text for part in said))
        elif role == "assistant" and len(calls := [part for part in said if part.kind == "call"]) == 1:
            chain.append(CallTurn(calls[0], all(part.kind != "text" for part in said), known, ""))
        else:
            yield chain
            chain = []
        known += "\n".join(part.text for part in said)
    yield chain


def _scalars(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        inner: Iterable[Any] = value.values() if isinstance(value, dict) else value
        for each in inner:
            yield from _scalars(each)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        text = str(value)
        if len(text) >= _MIN_VALUE:
            yield text
