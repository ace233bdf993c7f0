"""A tape of runs as a file: one JSON object a line, in the order things ended. Replaying finds each thing on it again.

What was asked is known by digests, so that a line stays short however long the conversation; each message stands there
once, in full, to be shown where a run departs from the tape. A tape holds all that was said: mind who reads it.
"""

import hashlib
import itertools
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hotloop.agent.model import Ask
from hotloop.agent.tools.tool import ToolOptions
from hotloop.core.errors import ConfigError, HotloopError
from hotloop.core.files import named_errors, write_private
from hotloop.core.message import Attachment, Message, Thought, Tool, ToolCall
from hotloop.core.stream import CallClosed, CallDelta, CallOpened, TextDelta, ThoughtClosed, ThoughtDelta
from hotloop.wire.event import Begun, Ended, Event
from hotloop.wire.usage import ApiUsage

VERSION = 3

_SETTINGS = ("tools", "choice", "schema", "max_tokens", "temperature", "extra")
_KINDS: dict[str, type[Any]] = {
    "text": TextDelta,
    "open": CallOpened,
    "arguments": CallDelta,
    "close": CallClosed,
    "thought": Thought,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


class ReplayMismatch(HotloopError):
    """A run does not go as it was recorded; the message says where."""


class HeadLine(msgspec.Struct, tag="tape", tag_field="line"):
    version: int


class MessageLine(msgspec.Struct, tag="message", tag_field="line"):
    """A message that something was asked with, when it is first seen."""

    digest: str
    message: Message


class Failure(msgspec.Struct):
    kind: str
    message: str
    status: int | None = None


class AskDigest(msgspec.Struct, frozen=True):
    """What an answer depends on, by its digests. The session is not part of it: that is new every time."""

    settings: dict[str, str]
    messages: tuple[str, ...]


class AnswerLine(msgspec.Struct, tag="answer", tag_field="line"):
    """What a model said: each event as [when, what, ...], the time in seconds since it was asked."""

    asked: AskDigest
    events: list[list[Any]]
    failure: Failure | None = None


class OfferLine(msgspec.Struct, tag="offer", tag_field="line"):
    """A tool that came from a source, such as an MCP server."""

    spec: Tool
    options: ToolOptions


class OutcomeLine(msgspec.Struct, tag="outcome", tag_field="line"):
    name: str
    arguments: str
    duration_s: float
    text: str
    failure: str | None = None
    """`refused`, `crashed` if another try might have gone better, or `exited` if it ended the run."""
    attachments: tuple[Attachment, ...] = ()
    number: int = 0
    """Which of all it was when it began: of two calls that are alike the second may have ended first."""


class VerdictLine(msgspec.Struct, tag="verdict", tag_field="line"):
    name: str
    arguments: str
    verdict: bool | str
    is_failure: bool = False


class WindowLine(msgspec.Struct, tag="window", tag_field="line"):
    """The model's context window, so that a replay cuts results where the recorded run did."""

    num_tokens: int | None


Line = HeadLine | MessageLine | AnswerLine | OfferLine | OutcomeLine | VerdictLine | WindowLine

T = TypeVar("T")
_decoder = msgspec.json.Decoder(Line)


class TapeWriter:
    """A new tape. A line is written when what it tells of has ended, so a run that is killed leaves a good tape."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._said: set[str] = set()
        self.numbers = itertools.count()
        with named_errors("record to", self._path):
            write_private(self._path, _encode(HeadLine(VERSION)))

    def write(self, *lines: Line) -> None:
        with self._path.open("ab") as file:
            file.write(b"".join(map(_encode, lines)))

    def write_answer(self, ask: Ask, events: Iterable[tuple[float, Event]], failure: Failure | None) -> None:
        digest = _digest_ask(ask)
        said = dict(zip(digest.messages, ask.messages, strict=True))
        new = [MessageLine(key, message) for key, message in said.items() if key not in self._said]
        self._said |= said.keys()
        rendered = [_render_event(*event) for event in events if not isinstance(event[1], Begun | ThoughtDelta)]
        self.write(*new, AnswerLine(digest, rendered, failure))


class Tape:
    """What was recorded, each thing given out once, in order. `is_paced`: everything takes as long as it did."""

    def __init__(self, path: Path | str, *, is_paced: bool = False) -> None:
        lines = read_tape(path)
        self.is_paced = is_paced
        self.offers = {line.spec.name: line for line in lines if isinstance(line, OfferLine)}
        self.window = next((line.num_tokens for line in lines if isinstance(line, WindowLine)), None)
        self._said = {line.digest: line.message for line in lines if isinstance(line, MessageLine)}
        self._answers: defaultdict[str, deque[AnswerLine]] = defaultdict(deque)
        self._outcomes: defaultdict[tuple[str, str], deque[OutcomeLine]] = defaultdict(deque)
        self._verdicts: defaultdict[tuple[str, str], deque[VerdictLine]] = defaultdict(deque)
        for line in sorted(lines, key=lambda line: line.number if isinstance(line, OutcomeLine) else 0):
            match line:
                case AnswerLine():
                    self._answers[_digest(line.asked)].append(line)
                case OutcomeLine():
                    self._outcomes[line.name, line.arguments].append(line)
                case VerdictLine():
                    self._verdicts[line.name, line.arguments].append(line)

    def answer(self, ask: Ask) -> AnswerLine:
        digest = _digest_ask(ask)
        answers = self._answers[_digest(digest)]
        if not answers:
            raise ReplayMismatch(self._explain(ask, digest))
        return answers.popleft()

    def outcome(self, name: str, arguments: str) -> OutcomeLine:
        return _next(self._outcomes, "result", name, arguments)

    async def approve(self, call: ToolCall) -> bool | str:
        verdict = _next(self._verdicts, "approval", call.name, call.arguments)
        if verdict.is_failure:
            raise HotloopError(str(verdict.verdict))
        return verdict.verdict

    def _explain(self, ask: Ask, digest: AskDigest) -> str:
        """Where what is asked differs from what comes nearest to it on the tape."""
        left = [answer.asked for answers in self._answers.values() for answer in answers]
        if not left:
            return "the tape is at its end, and the run asks for more"
        nearest = max(left, key=lambda other: _num_shared(other.messages, digest.messages))
        i = _num_shared(nearest.messages, digest.messages)
        if i == len(nearest.messages) == len(digest.messages):
            names = [name for name, each in digest.settings.items() if nearest.settings.get(name) != each]
            return f"the run departs from its tape: {', '.join(names)} are not what was recorded"
        was = self._said.get(nearest.messages[i]) if i < len(nearest.messages) else None
        now = ask.messages[i] if i < len(ask.messages) else None
        return f"the run departs from its tape at message {i}: recorded was {_show(was)}, now it is {_show(now)}"


def _next(lines: Mapping[tuple[str, str], deque[T]], what: str, name: str, arguments: str) -> T:
    if not lines[name, arguments]:
        raise ReplayMismatch(f"the tape has no {what} for this call: {name} {arguments:.200}")
    return lines[name, arguments].popleft()


def read_tape(path: Path | str) -> list[Line]:
    """All lines. Raises ConfigError if it is no tape, or one of another version."""
    with named_errors("read", Path(path)):
        data = Path(path).read_bytes()
    try:
        lines: list[Line] = [_decoder.decode(text) for text in data.splitlines()]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not a recording of a run: {error}") from None
    match lines:
        case [HeadLine(version), *_] if version == VERSION:
            return lines
        case [HeadLine(version), *_]:
            raise ConfigError(f"{path} is a recording of version {version}; this hotloop reads version {VERSION}")
    raise ConfigError(f"{path} is not a recording of a run")


def parse_event(line: list[Any]) -> tuple[float, Event]:
    try:
        at_s, kind, *fields = line
        if kind == "answered":
            reason, *counts = fields
            return float(at_s), Ended(reason, usage=ApiUsage(*counts))
        value = _KINDS[kind](*fields)
        return float(at_s), ThoughtClosed(value) if kind == "thought" else value
    except (ValueError, TypeError, KeyError):
        raise ConfigError(f"invalid event in the record: {line!r:.80}") from None


def _render_event(at_s: float, event: Event) -> list[Any]:
    if isinstance(event, Ended):
        usage = event.usage
        return [round(at_s, 6), "answered", event.reason, usage.num_prompt, usage.num_cached or 0, usage.num_output]
    value = event.thought if isinstance(event, ThoughtClosed) else event
    return [round(at_s, 6), _NAMES[type(value)], *astuple(value)]


def _digest(value: Any) -> str:
    data = msgspec.json.encode(value, order="deterministic", enc_hook=repr)
    return hashlib.sha256(data).hexdigest()[:16]


def _digest_ask(ask: Ask) -> AskDigest:
    settings = {name: _digest(getattr(ask, name)) for name in _SETTINGS}
    return AskDigest(settings, tuple(_digest(message) for message in ask.messages))


def _num_shared(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _show(message: Message | None) -> str:
    if message is None:
        return "none"
    calls = "".join(f" {call.name}({call.arguments})" for call in message.tool_calls)
    return f"{message.role}: {message.content + calls!r:.120}"


def _encode(line: Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"
