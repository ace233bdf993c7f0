"""Of an answer that is told anew, what its client has not heard.

    told    start  text "It is wa"
    anew    start  text "It"  text " is warm"  text " today"  end
    sent                            "rm"       text " today"  end

Whatever is told anew must say what was told before: else it is another answer, and nobody can be sent the rest of it.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True)
class Given:
    """What of an answer a replica was given, in so many tokens, and does not repeat."""

    text: str = ""
    num_tokens: int = 0
    is_all: bool = False
    """Whether there is no more of the answer; what the replica says behind it, a token at least, nobody is told."""
    is_full: bool = False
    """Whether that is because it has as many tokens as it may."""

    def count(self, usage: ApiUsage, *, is_dropped: bool) -> ApiUsage:
        """What the whole answer took; `is_dropped`: less that token."""
        own = replace(usage, num_output=0) if self.is_full or is_dropped else usage
        return own.count_as_output(self.num_tokens)


NOTHING = Given()


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
        self._given = NOTHING
        self._is_dropped = False
        self._item_ids = told.item_ids
        self._created_at = told.first.get("created_at")

    def skip(self, given: Given) -> None:
        """It is told anew behind that only, which its prompt has."""
        self._at += len(given.text)
        self._given = given

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
        while self._told and atom.key != self._told[0].key and self._is_heard():
            self._told.popleft()
            self._at = 0
        if self._given.is_all and atom.text and (not self._told or self._is_heard()):
            self._is_dropped = True
            return None
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
        key, text = self._told[0]
        if text is None:
            return bool(key[0] == "signature")  # what one replica signs another may not
        rest = text[self._at :]
        return not rest or (rest.isspace() and len(self._told) == 1 and not self._is_exact)

    def _write(self, event: Json) -> bytes:
        if event.get("type") == "done":
            return DONE
        if self._api in ("chat", "completions"):
            usage = read_usage(event.get("usage")) if self._given.num_tokens else None
            counted = {"usage": self._given.count(usage, is_dropped=self._is_dropped).render_chat()} if usage else {}
            if self._given.is_full and isinstance(event.get("choices"), list):
                event["choices"] = [_end_full(choice) for choice in event["choices"]]
            return write_data({**event, **self._envelope, **counted})
        if self._api == "responses":
            event["sequence_number"] = self._num_sent
            self._num_sent += 1
            self._name_items(event)
            if self._created_at is not None and isinstance(event.get("response"), dict):
                event["response"]["created_at"] = self._created_at
        return write_event(event.pop("type"), **event)

    def _name_items(self, event: Json) -> None:
        """By the ids that their beginning was told with."""
        response, index = event.get("response"), event.get("output_index")
        items = response.get("output") if isinstance(response, dict) else None
        for i, item in enumerate(items if isinstance(items, list) else ()):
            if i in self._item_ids and isinstance(item, dict):
                item["id"] = self._item_ids[i]
        if item_id := self._item_ids.get(index) if isinstance(index, int) else None:
            if "item_id" in event:
                event["item_id"] = item_id
            if isinstance(event.get("item"), dict):
                event["item"]["id"] = item_id


def _end_full(choice: Any) -> Any:
    has_ended = isinstance(choice, dict) and choice.get("finish_reason")
    return {**choice, "finish_reason": "length"} if has_ended else choice


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
        self, splice: Splice, reader: Reader, writer: Writer, told: ToldAnswer, given: Given = NOTHING
    ) -> None:
        super().__init__(splice)
        self._events = EventReader()
        self._reader = reader
        self._writer = writer
        self._told = told
        self._call_ids = told.call_ids
        self._given = given
        self._is_dropped = False

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
            if self._given.text:
                yield TextDelta(self._given.text)
        elif isinstance(event, Ended):
            self.usage = self._given.count(event.usage, is_dropped=self._is_dropped)
            yield replace(event, usage=self.usage, reason="length" if self._given.is_full else event.reason)
        elif self._given.is_all:
            self._is_dropped = True
        elif isinstance(event, CallOpened) and event.index < len(self._call_ids):
            yield replace(event, id=self._call_ids[event.index])
        else:
            yield event
