"""A tape as a file: one JSON object a line, in the order things ended.

What was asked is known by digests, so that a line stays short however long the conversation; each message stands there
once, in full, to be shown where a run departs from the tape. A tape holds all that was said: mind who reads it.
"""

import hashlib
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hotloop.agent.model import Answered, Ask, ModelEvent, ModelUsage
from hotloop.agent.tools.tool import Traits
from hotloop.core.errors import ConfigError
from hotloop.core.message import Message, Thought, Tool
from hotloop.core.stream import CallClosed, CallDelta, CallOpened, TextDelta

VERSION = 2

_SETTINGS = ("tools", "choice", "schema", "max_tokens", "temperature", "extra")
_KINDS: dict[str, type[Any]] = {
    "text": TextDelta,
    "open": CallOpened,
    "arguments": CallDelta,
    "close": CallClosed,
    "thought": Thought,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


class Head(msgspec.Struct, tag="tape", tag_field="line"):
    version: int


class Said(msgspec.Struct, tag="message", tag_field="line"):
    """A message that something was asked with, when it is first seen."""

    digest: str
    message: Message


class Failure(msgspec.Struct):
    kind: str
    message: str
    status: int | None = None


class Asked(msgspec.Struct, frozen=True):
    """What an answer depends on, by its digests. The session is not part of it: that is new every time."""

    settings: dict[str, str]
    messages: tuple[str, ...]

    @property
    def key(self) -> str:
        return digest(self)


class Answer(msgspec.Struct, tag="answer", tag_field="line"):
    """What a model said: each event as [when, what, ...], the time in seconds since it was asked."""

    asked: Asked
    events: list[list[Any]]
    failure: Failure | None = None


class Offer(msgspec.Struct, tag="offer", tag_field="line"):
    """A tool that came from a source, such as an MCP server."""

    spec: Tool
    traits: Traits


class Outcome(msgspec.Struct, tag="outcome", tag_field="line"):
    """What a tool gave, or why it gave nothing."""

    name: str
    arguments: str
    duration_s: float
    text: str
    failure: str | None = None
    """`refused`, or `crashed` if another try might have gone better."""
    number: int = 0
    """Which of all it was when it began: of two calls that are alike the second may have ended first."""


class Verdict(msgspec.Struct, tag="verdict", tag_field="line"):
    """Whether a call was approved."""

    name: str
    arguments: str
    verdict: bool | str
    is_failure: bool = False


Line = Head | Said | Answer | Offer | Outcome | Verdict
T = TypeVar("T")

_decoder = msgspec.json.Decoder(Line)


def digest(value: Any) -> str:
    data = msgspec.json.encode(value, order="deterministic", enc_hook=repr)
    return hashlib.sha256(data).hexdigest()[:16]


def digest_ask(ask: Ask) -> Asked:
    settings = {name: digest(getattr(ask, name)) for name in _SETTINGS}
    return Asked(settings, tuple(digest(message) for message in ask.messages))


def render_event(at_s: float, event: ModelEvent) -> list[Any]:
    if isinstance(event, Answered):
        usage = event.usage
        return [round(at_s, 6), "answered", event.end, usage.num_prompt, usage.num_cached, usage.num_output]
    return [round(at_s, 6), _NAMES[type(event)], *(getattr(event, name) for name in event.__match_args__)]


def parse_event(line: list[Any]) -> tuple[float, ModelEvent]:
    try:
        at_s, kind, *fields = line
        if kind == "answered":
            end, num_prompt, num_cached, num_output = fields
            usage = ModelUsage(num_prompt=num_prompt, num_cached=num_cached, num_output=num_output)
            return float(at_s), Answered(end, usage)
        return float(at_s), _KINDS[kind](*fields)
    except (ValueError, TypeError, KeyError):
        raise ConfigError(f"a tape has an event that makes no sense: {line!r:.80}") from None


class TapeWriter:
    """A new tape. A line is written when what it tells of has ended, so a run that is killed leaves a good tape."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._said: set[str] = set()
        self.numbers = itertools.count()
        try:
            self._path.write_bytes(_encode(Head(VERSION)))
        except OSError as error:
            raise ConfigError(f"cannot record to {path}: {error.strerror}") from None

    def write(self, *lines: Line) -> None:
        with self._path.open("ab") as file:
            file.write(b"".join(map(_encode, lines)))

    def write_answer(self, ask: Ask, events: Iterable[tuple[float, ModelEvent]], failure: Failure | None) -> None:
        asked = digest_ask(ask)
        said = dict(zip(asked.messages, ask.messages, strict=True))
        new = [Said(key, message) for key, message in said.items() if key not in self._said]
        self._said |= said.keys()
        self.write(*new, Answer(asked, [render_event(*event) for event in events], failure))


def read_tape(path: Path | str) -> list[Line]:
    """All lines. Raises ConfigError if it is no tape, or one of another version."""
    try:
        texts = Path(path).read_bytes().splitlines()
        lines: list[Line] = [_decoder.decode(text) for text in texts]
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no tape of a run: {error}") from None
    match lines:
        case [Head(version), *_] if version == VERSION:
            return lines
        case [Head(version), *_]:
            raise ConfigError(f"{path} is a tape of version {version}; this is hotloop for version {VERSION}")
    raise ConfigError(f"{path} is no tape of a run")


def _encode(line: Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"
