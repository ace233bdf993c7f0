"""Of an answer that is told anew, what its client has not heard.

    told    start  text "It is wa"
    anew    start  text "It"  text " is warm"  text " today"  end
    sent                            "rm"       text " today"  end

Whatever is told anew must say what was told before: else it is another answer, and nobody can be sent the rest of it.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hotloop.core.errors import HotloopError, RemoteError
from hotloop.core.stream import CallOpened, TextDelta
from hotloop.router.kinds import Api
from hotloop.router.resume.told import Atom, ToldAnswer, read_atoms, read_event
from hotloop.wire.event import Begun, Ended, Event
from hotloop.wire.field import Json
from hotloop.wire.formats import Writer
from hotloop.wire.reader import Reader
from hotloop.wire.sse import DONE, EventReader, write_data, write_event
from hotloop.wire.usage import ApiUsage, read_usage

_ENVELOPE = ("id", "object", "created", "model", "system_fingerprint")


class Diverged(HotloopError):
    """The replica that was to go on said something else."""


class Splice:
    """Events in the client's own shape, whatever wrote them, less what it was told."""

    def __init__(self, api: Api, told: ToldAnswer, *, is_exact: bool = True) -> None:
        """Unless it is exact, the space at the end of what was told may be missing."""
        self._api = api
        self._is_exact = is_exact
        self._told = deque(told.atoms)
        self._at = 0
        """Characters of the first of them that were heard again."""
        self._has_told = bool(told.atoms)
        self._envelope = {name: told.first[name] for name in _ENVELOPE if name in told.first}
        self._num_sent = told.num_sent
        self._num_given = 0
        self._created_at = told.first.get("created_at")

    def skip(self, text: str, num_tokens: int) -> None:
        """It is told anew behind this text only, which its prompt has: so many tokens."""
        self._at += len(text)
        self._num_given = num_tokens

    def push(self, data: bytes) -> bytes:
        """Whole events."""
        return b"".join(self._take(read) for event in EventReader().push(data) if (read := read_event(event)))

    @property
    def is_level(self) -> bool:
        """Whether all that was told has been heard again."""
        return not self._told or (len(self._told) == 1 and (self._told[0].text is None or self._is_heard()))

    def _take(self, event: Json) -> bytes:
        atoms = [*read_atoms(self._api, event)]
        if not atoms:
            return b"" if self._has_told else self._write(event)
        known = [self._match(atom) for atom in atoms]
        if None not in known and not any(known):
            return self._write(event)
        if all(num is None for num in known):
            return b""
        return self._write(_shorten(self._api, event, [_num_known(*pair) for pair in zip(atoms, known, strict=True)]))

    def _match(self, atom: Atom) -> int | None:
        """How many of its characters were told; None for all of it."""
        if self._told and atom.key != self._told[0].key and self._is_heard():
            self._told.popleft()
            self._at = 0
        if not self._told:
            return 0
        head = self._told[0]
        if atom.key != head.key:
            if atom.key == ("start",):
                return None
            raise Diverged(f"it went on with {atom.key[0]} instead of {head.key[0]}")
        if head.text is None or atom.text is None:
            self._told.popleft()
            return None
        return self._match_text(head.text[self._at :], atom.text)

    def _match_text(self, rest: str, text: str) -> int | None:
        if rest.startswith(text):
            self._at += len(text)
            return None
        is_new = text.startswith(rest)
        if len(self._told) > 1 or not (is_new or self._is_heard()):
            raise Diverged("it used other words")
        self._told.popleft()
        self._at = 0
        return len(rest) if is_new else 0

    def _is_heard(self) -> bool:
        text = self._told[0].text
        rest = None if text is None else text[self._at :]
        return rest == "" or (rest is not None and rest.isspace() and len(self._told) == 1 and not self._is_exact)

    def _write(self, event: Json) -> bytes:
        if event.get("type") == "done":
            return DONE
        if self._api in ("chat", "completions"):
            usage = read_usage(event.get("usage")) if self._num_given else None
            counted = {"usage": usage.count_as_output(self._num_given).render_chat()} if usage else {}
            return write_data({**event, **self._envelope, **counted})
        if self._api == "responses":
            event["sequence_number"] = self._num_sent
            self._num_sent += 1
            if self._created_at is not None and isinstance(event.get("response"), dict):
                event["response"]["created_at"] = self._created_at
        return write_event(event.pop("type"), **event)


def _num_known(atom: Atom, known: int | None) -> int:
    return len(atom.text or "") if known is None else known


def _shorten(api: Api, event: Json, nums: list[int]) -> Json:
    """Without the first characters of its text, which is the first thing it says."""
    num = nums[0]
    if api == "responses":
        return {**event, "delta": event["delta"][num:]}
    if api == "messages":
        delta = {name: value if name == "type" else value[num:] for name, value in event["delta"].items()}
        return {**event, "delta": delta}
    return {**event, "choices": [_shorten_choice(choice, num) for choice in event["choices"]]}


def _shorten_choice(choice: Json, num: int) -> Json:
    if "text" in choice:
        return {**choice, "text": choice["text"][num:]}
    return {**choice, "delta": {name: _shorten_delta(value, num) for name, value in choice["delta"].items()}}


def _shorten_delta(value: Any, num: int) -> Any:
    if isinstance(value, str):
        return value[num:]
    if isinstance(value, list):
        return [_shorten_delta(each, num) for each in value]
    if isinstance(value, dict):  # a call: its index and id stay
        held = {name: _shorten_function(part, num) for name, part in value.items() if isinstance(part, dict)}
        return {**value, **held, **({"arguments": value["arguments"][num:]} if "arguments" in value else {})}
    return value


def _shorten_function(function: Json, num: int) -> Json:
    return {name: value[num:] if name in ("arguments", "input") else value for name, value in function.items()}


class SplicedStream:
    """A replica's stream in the client's own shape, less what the client was told."""

    usage: ApiUsage | None = None
    """What the whole answer took, if that is not what the replica says."""

    def __init__(self, splice: Splice) -> None:
        self._splice = splice

    def feed(self, piece: bytes) -> bytes:
        """Whole events."""
        return self._splice.push(piece)

    def finish(self) -> bytes:
        """After the last of them. Raises Diverged where that was not the end."""
        if not self._splice.is_level:
            raise Diverged("it ended before that")
        return b""


class TranslatedSplice(SplicedStream):
    """A replica's stream, read in its own shape and told on in the client's."""

    def __init__(
        self, splice: Splice, reader: Reader, writer: Writer, told: ToldAnswer, given: str, num_given: int
    ) -> None:
        """`given` is what the replica was given of the answer and does not repeat, so many tokens."""
        super().__init__(splice)
        self._events = EventReader()
        self._reader = reader
        self._writer = writer
        self._told = told
        self._call_ids = told.call_ids
        self._given = given
        self._num_given = num_given

    def feed(self, piece: bytes) -> bytes:
        return self._tell(event for read in self._events.push(piece) for event in self._reader.push(read))

    def finish(self) -> bytes:
        ending = self._tell(self._reader.finish())
        return ending + super().finish()

    def _tell(self, events: Iterator[Event]) -> bytes:
        try:
            written = [data for event in events for each in self._adapt(event) for data in self._writer.write(each)]
        except RemoteError as error:
            raise Diverged(str(error)) from error
        return self._splice.push(b"".join(written))

    def _adapt(self, event: Event) -> Iterator[Event]:
        """As the answer that was begun: with its names, its beginning, and its tokens each counted once."""
        if isinstance(event, Begun):
            first = self._told.first
            yield replace(event, id=str(first.get("id") or event.id), model=str(first.get("model") or event.model))
            if self._given:
                yield TextDelta(self._given)
        elif isinstance(event, CallOpened) and event.index < len(self._call_ids):
            yield replace(event, id=self._call_ids[event.index])
        elif isinstance(event, Ended):
            self.usage = event.usage.count_as_output(self._num_given)
            yield replace(event, usage=self.usage)
        else:
            yield event
