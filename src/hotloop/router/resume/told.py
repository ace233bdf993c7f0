"""What a client has been told of an answer, read from the bytes it was sent.

Each event of a stream says so many atoms: pieces of text, which may be cut anywhere, and marks, which may not:

    start  thought "Let me"  text "It is "  call 0 weather  arguments 0 '{"city": "Ro'  end

Two streams of the same answer differ in how their text is cut and in what has no atom: pings, dates, ids.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hotloop.router.kinds import Api
from hotloop.router.upstream.wire import parse_json
from hotloop.wire.field import Json
from hotloop.wire.sse import EventReader, ServerEvent

MAX_TOLD_BYTES = 4 << 20
"""Of a longer answer nothing is kept: it ends where its replica does."""

_START, _END, _DONE = ("start",), ("end",), ("done",)


class Atom(NamedTuple):
    key: tuple[Any, ...]
    text: str | None = None
    """None for a mark."""


@dataclass(slots=True)
class Told:
    api: Api
    has_usage: bool = True
    """Whether the client is told the usage of a chat."""
    data: bytearray = field(default_factory=bytearray)
    token_ids: list[int] = field(default_factory=list)
    """All tokens of the answer, as far as its replica told them; empty where it did not."""
    is_whole: bool = True
    """Whether all of it was kept."""

    def add(self, piece: bytes) -> None:
        if len(self.data) + len(piece) > MAX_TOLD_BYTES:
            self.data, self.is_whole = bytearray(), False
        elif self.is_whole:
            self.data += piece

    def read(self) -> "ToldAnswer":
        events = [*read_events(bytes(self.data))]
        atoms = [atom for event in events for atom in read_atoms(self.api, event)]
        return ToldAnswer([*_merge(atom for atom in atoms if self.has_usage or atom.key != ("usage",))], events)


@dataclass(frozen=True, slots=True)
class ToldAnswer:
    atoms: list[Atom]
    events: list[Json]

    @property
    def is_nothing(self) -> bool:
        """Whether it has begun at most, and nothing was said."""
        return not any(atom.text or atom.key[0] in ("call", "end", "done") for atom in self.atoms)

    @property
    def is_ended(self) -> bool:
        """Whether the client has heard how it ended, if perhaps not what it took."""
        return any(atom.key in (_END, _DONE) for atom in self.atoms)

    @property
    def text(self) -> str:
        """What it begins with, if that is text."""
        texts = [atom for atom in self.atoms if atom.text]
        return texts[0].text or "" if texts and texts[0].key[0] == "text" else ""

    @property
    def is_text_alone(self) -> bool:
        return not any(atom.key[0] in ("call", "thought") for atom in self.atoms)

    @property
    def call_ids(self) -> list[str]:
        return [call_id for event in self.events for call_id in _call_ids(event)]

    @property
    def item_ids(self) -> dict[int, str]:
        """Of the items that a response has begun, by where they are."""
        added = [each for each in self.events if each.get("type") == "response.output_item.added"]
        ids = {each.get("output_index"): _dict(each.get("item")).get("id") for each in added}
        return {index: item_id for index, item_id in ids.items() if type(index) is int and isinstance(item_id, str)}

    @property
    def first(self) -> Json:
        """What the first event says of the answer: its id, its date."""
        first = self.events[0] if self.events else {}
        return _dict(first.get("message")) or _dict(first.get("response")) or first

    @property
    def num_sent(self) -> int:
        """Events that a response has numbered so far."""
        numbers = (event.get("sequence_number") for event in self.events)
        return max((number for number in numbers if isinstance(number, int)), default=-1) + 1


def read_events(data: bytes) -> Iterator[Json]:
    yield from filter(None, map(read_event, EventReader().push(data)))


def read_event(event: ServerEvent) -> Json | None:
    if event.data.strip() == b"[DONE]":
        return {"type": "done"}
    return parse_json(event.data, dict[str, Any])


def read_atoms(api: Api, event: Json) -> Iterator[Atom]:
    if event.get("type") == "done":
        yield Atom(_DONE)
    else:
        yield from _READERS[api](event)


def _merge(atoms: Iterable[Atom]) -> Iterator[Atom]:
    """With texts that follow each other as one."""
    last: Atom | None = None
    for atom in atoms:
        if last and last.text is not None and atom.text is not None and atom.key == last.key:
            last = Atom(last.key, last.text + atom.text)
            continue
        if last:
            yield last
        last = atom
    if last:
        yield last


def _read_chunk(chunk: Json) -> Iterator[Atom]:
    for choice in _dicts(chunk.get("choices")):
        if not choice.get("index"):
            yield from _read_choice(choice)
    if chunk.get("usage"):
        yield Atom(("usage",))


def _read_choice(choice: Json) -> Iterator[Atom]:
    delta = _dict(choice.get("delta"))
    if "role" in delta:
        yield Atom(_START)
    if thought := _text(delta.get("reasoning_content")) or _text(delta.get("reasoning")):
        yield Atom(("thought",), thought)
    if text := _text(delta.get("content")) or _text(delta.get("refusal")) or _text(choice.get("text")):
        yield Atom(("text",), text)
    calls = _dicts(delta.get("tool_calls"))
    if function := _dict(delta.get("function_call")):
        calls = [{"function": function}]
    for call in calls:
        yield from _read_call(call)
    if choice.get("finish_reason"):
        yield Atom(_END)


def _read_call(call: Json) -> Iterator[Atom]:
    index, function = call.get("index") or 0, _dict(call.get("function")) or _dict(call.get("custom"))
    if name := function.get("name"):
        yield Atom(("call", index, name))
    if arguments := _text(function.get("arguments")) or _text(function.get("input")):
        yield Atom(("arguments", index), arguments)


_DELTAS = {"text_delta": ("text", "text"), "thinking_delta": ("thought", "thinking")}


def _read_message_event(event: Json) -> Iterator[Atom]:
    kind, index = event.get("type"), event.get("index")
    block, delta = _dict(event.get("content_block")), _dict(event.get("delta"))
    if kind == "message_start":
        yield Atom(_START)
    elif kind == "content_block_start":
        yield Atom(("call" if block.get("type") == "tool_use" else "open", index, block.get("name")))
    elif kind == "content_block_delta" and (known := _DELTAS.get(str(delta.get("type")))):
        yield Atom((known[0], index), _text(delta.get(known[1])))
    elif kind == "content_block_delta" and delta.get("type") == "input_json_delta":
        if arguments := _text(delta.get("partial_json")):
            yield Atom(("arguments", index), arguments)
    elif kind == "content_block_delta":
        yield Atom(("signature", index))
    elif kind == "content_block_stop":
        yield Atom(("close", index))
    elif kind == "message_delta":
        yield Atom(_END)
    elif kind == "message_stop":
        yield Atom(_DONE)


_TEXTS = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_text.delta": "thought",
    "response.reasoning_summary_text.delta": "thought",
    "response.function_call_arguments.delta": "arguments",
}


def _read_response_event(event: Json) -> Iterator[Atom]:
    kind, index, item = str(event.get("type")), event.get("output_index"), _dict(event.get("item"))
    if kind in _TEXTS:
        yield Atom((_TEXTS[kind], index), _text(event.get("delta")))
    elif kind == "response.output_item.added" and item.get("call_id"):
        yield Atom(("call", index, item.get("name")))
    elif kind in ("response.completed", "response.incomplete", "response.failed"):
        yield Atom(_DONE)
    elif kind == "response.created":
        yield Atom(_START)
    elif kind not in ("response.in_progress", "response.queued"):  # told again as pings
        yield Atom((kind, index))


_READERS: Mapping[Api, Callable[[Json], Iterator[Atom]]] = {
    "chat": _read_chunk,
    "completions": _read_chunk,
    "messages": _read_message_event,
    "responses": _read_response_event,
}
RESUMED: frozenset[Api] = frozenset(_READERS)


def _call_ids(event: Json) -> Iterator[str]:
    deltas = [_dict(choice.get("delta")) for choice in _dicts(event.get("choices"))]
    calls = [call for delta in deltas for call in _dicts(delta.get("tool_calls"))]
    block, item = _dict(event.get("content_block")), _dict(event.get("item"))
    added = item.get("call_id") if event.get("type") == "response.output_item.added" else None
    for given in (*(call.get("id") for call in calls), block.get("id"), added):
        if isinstance(given, str):
            yield given


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _dict(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[Json]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
