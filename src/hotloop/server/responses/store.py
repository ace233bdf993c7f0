"""The responses that can still be asked for: those that run, and the latest of those that have ended; and their items,
which a later input may name.

Bounded in bytes and in number; the least recently used goes first. An ended response keeps the whole conversation
up to and with its own answer, so that one which continues it needs nothing else. A response is there only for its
owner, and for an admin. Lives on the event loop.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from hotloop.core.errors import RequestError
from hotloop.core.lru import LruCache
from hotloop.core.message import Message
from hotloop.core.sharing import UNSHARED, Sharing
from hotloop.http.keys import Tenant
from hotloop.server.delivery import OutputCollector
from hotloop.server.errors import UnknownPrevious, UnknownResponse
from hotloop.server.responses.log import EventLog
from hotloop.server.responses.render import Composer
from hotloop.server.turns import parse_turns
from hotloop.wire.builtin import CALL_ITEMS, RESULT_ITEMS, read_call_item, write_call_item
from hotloop.wire.field import Field, Json
from hotloop.wire.responses.items import ItemStore
from hotloop.wire.responses.parse import parse_input

MAX_RESPONSES = 1024
MAX_BYTES = 64 << 20

_NOT_CONTINUED = ("failed", "cancelled")
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "fco",
    **{kind: item.id_prefix for kind, item in CALL_ITEMS.items()},
    **{f"{kind}_output": f"{item.id_prefix}o" for kind, item in CALL_ITEMS.items()},
}


@dataclass(slots=True)
class RunningResponse:
    """A response that is being written. `items` is all it was given, what it continues included."""

    owner: str
    items: tuple[Json, ...]
    outputs: OutputCollector
    composer: Composer
    is_stored: bool
    is_background: bool = False
    log: EventLog | None = None
    """Its events, if it is streamed in the background."""
    task: asyncio.Task[None] | None = None

    def encode(self) -> bytes:
        return msgspec.json.encode(self.composer.render())


@dataclass(frozen=True, slots=True)
class EndedResponse:
    """One that is no longer written: the object as it was sent, what it was given, and what it then put out."""

    owner: str
    items: tuple[Json, ...]
    output: tuple[Json, ...]
    status: str
    body: bytes
    is_background: bool = False
    events: tuple[bytes, ...] | None = None
    """All of them, if it was streamed in the background."""

    @property
    def log(self) -> EventLog | None:
        return None if self.events is None else EventLog.of(self.events)

    def encode(self) -> bytes:
        return self.body

    @property
    def num_bytes(self) -> int:
        """Items are shared along a chain of responses, and counted for each: the bound holds whoever goes first."""
        num_logged = sum(map(len, self.events or ()))
        return (
            num_logged + len(self.body) + sum(200 + len(msgspec.json.encode(item)) for item in self.items + self.output)
        )


class ResponseStore:
    """Finds responses by id. Every lookup raises UnknownResponse where there is nothing to find."""

    def __init__(
        self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES, sharing: Sharing = UNSHARED
    ) -> None:
        self._running: dict[str, RunningResponse] = {}
        self._ended: LruCache[str, EndedResponse] = LruCache(max_bytes, max_responses)
        self.items = ItemStore()
        self._keep = sharing.share("response", tuple[str, EndedResponse], self._put)
        self._drop = sharing.share("response_gone", str, self._pop)

    def __len__(self) -> int:
        return len(self._ended)

    def knows(self, response_id: str) -> bool:
        """Whether there is one of that id, whoever asked for it."""
        return response_id in self._running or self._ended.find(response_id) is not None

    def start(self, run: RunningResponse) -> None:
        self._running[run.composer.id] = run

    def settle(self, run: RunningResponse, last: Iterable[bytes] = ()) -> bytes:
        """The response has ended; keep it if it is one to keep. Returns the object as it is to be sent. `last` are the
        events that its log will end with."""
        self.forget(run)
        response = run.composer.render()
        body = msgspec.json.encode(response)
        if run.is_stored:
            output, status = keep_items(response["output"]), response["status"]
            events = (*run.log.events, *last) if run.log else None
            ended = EndedResponse(run.owner, run.items, output, status, body, run.is_background, events)
            self._keep((run.composer.id, ended))
        return body

    def _put(self, settled: tuple[str, EndedResponse]) -> None:
        response_id, ended = settled
        self._ended.put(response_id, ended, ended.num_bytes)
        if ended.status not in _NOT_CONTINUED:
            self.items.keep(ended.output, ended.owner)

    def forget(self, run: RunningResponse) -> None:
        self._running.pop(run.composer.id, None)

    def find(self, response_id: str, tenant: Tenant) -> RunningResponse | EndedResponse:
        """One that may be looked at."""
        run = self.find_running(response_id, tenant)
        return run if run and run.is_stored else self.find_ended(response_id, tenant)

    def find_running(self, response_id: str, tenant: Tenant) -> RunningResponse | None:
        """One that may be cancelled, whether or not it will be stored."""
        run = self._running.get(response_id)
        return run if run and tenant.may_see(run.owner) else None

    def find_previous(self, response_id: str, tenant: Tenant) -> tuple[Json, ...]:
        param = "previous_response_id"
        try:
            found = self.find(response_id, tenant)
        except UnknownResponse as error:
            raise UnknownPrevious(str(error), param=param) from None
        if isinstance(found, RunningResponse) or found.status in _NOT_CONTINUED:
            reason = "is still being written" if isinstance(found, RunningResponse) else f"was {found.status}"
            raise RequestError(f"{param}: {response_id!r:.100} {reason}, and cannot be continued", param=param)
        return found.items + found.output

    def delete(self, response_id: str, tenant: Tenant) -> None:
        self.find_ended(response_id, tenant)
        self._drop(response_id)

    def _pop(self, response_id: str) -> None:
        if ended := self._ended.pop(response_id, None):
            self.items.drop(ended[0].output)

    def find_ended(self, response_id: str, tenant: Tenant) -> EndedResponse:
        ended = self._ended.find(response_id)
        if not ended or not tenant.may_see(ended.owner):
            raise UnknownResponse(f"response {response_id!r:.100} not found; it may have been deleted or evicted")
        return ended


def parse_items(given: Field) -> tuple[Json, ...]:
    """Raises RequestError for an item that is wrong, or of a type that means nothing here."""
    items = [{"role": "user", "content": given.text()}] if given.is_text else [item.object() for item in given.each()]
    make_messages(items)
    return keep_items(items)


def keep_items(items: Iterable[Json]) -> tuple[Json, ...]:
    """Those that say something to the model: another one's reasoning is for itself."""
    return tuple(item for item in items if item.get("type") != "reasoning" or _is_own(item))


def _is_own(item: Json) -> bool:
    return any(message.thoughts for message in make_messages([item]))


def make_messages(items: Sequence[Json]) -> tuple[Message, ...]:
    """Calls belong to the turn of the assistant that they directly follow, or begin one."""
    return parse_turns(parse_input(Field({"input": [*items]}).need("input")), "responses").messages


def render_items(items: Sequence[Json], response_id: str) -> list[Json]:
    """As a client lists them, each with an id that is the same whenever it is asked for."""
    stem = response_id.removeprefix("resp_")
    return [_render_item(item, f"{stem}{i:04x}") for i, item in enumerate(items)]


def _render_item(item: Json, stem: str) -> Json:
    kind = item.get("type") or "message"
    rendered = {**item, "id": f"{_PREFIXES.get(kind) or kind}_{stem}", "type": kind, "status": "completed"}
    if kind == "message":
        rendered["content"] = _render_content(item["content"], item["role"])
    elif kind in CALL_ITEMS:
        rendered |= write_call_item(kind, read_call_item(Field(item), kind))
    elif kind in RESULT_ITEMS:
        rendered = {"max_output_length": None, **rendered, "status": item.get("status") or "completed"}
    return rendered


def _render_content(content: str | list[Json], role: str) -> list[Json]:
    if isinstance(content, str):
        content = [{"type": "output_text" if role == "assistant" else "input_text", "text": content}]
    usual: Json = {"annotations": [], "logprobs": []}
    return [{**usual, **part} if part["type"] == "output_text" else part for part in content]
