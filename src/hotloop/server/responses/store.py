"""The responses that can still be asked for: those that run, and the latest of those that have ended.

Bounded twice, in number and in bytes; who was not asked for longest goes first. An ended response keeps the whole
conversation up to and with its own answer, so that one which continues it needs nothing else. A response is there only
for its owner. Lives on the event loop.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from hotloop.core.errors import RequestError
from hotloop.server.delivery import OutputCollector
from hotloop.server.errors import UnknownPrevious, UnknownResponse
from hotloop.server.responses.items import Item, count_bytes, keep_items
from hotloop.server.responses.render import Composer, Status

MAX_RESPONSES = 1024
MAX_BYTES = 64 << 20


@dataclass(slots=True)
class RunningResponse:
    """A response that is being written. `items` is all it was given, what it continues included."""

    owner: str
    items: tuple[Item, ...]
    outputs: OutputCollector
    composer: Composer
    is_stored: bool
    task: asyncio.Task[None] | None = None
    """What writes it, if nobody waits for it."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self.composer.render())


@dataclass(frozen=True, slots=True)
class EndedResponse:
    """One that is no longer written: the object as it was sent, what it was given, and what it then put out."""

    owner: str
    items: tuple[Item, ...]
    output: tuple[Item, ...]
    status: Status
    body: bytes

    def encode(self) -> bytes:
        return self.body

    @property
    def num_bytes(self) -> int:
        """Items are shared along a chain of responses, and counted for each: the bound holds whoever goes first."""
        return len(self.body) + count_bytes(self.items) + count_bytes(self.output)


class ResponseStore:
    """Finds responses by id. Every lookup raises UnknownResponse where there is nothing to find."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self.num_bytes = 0
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._running: dict[str, RunningResponse] = {}
        self._ended: OrderedDict[str, EndedResponse] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ended)

    def start(self, run: RunningResponse) -> None:
        self._running[run.composer.id] = run

    def settle(self, run: RunningResponse) -> bytes:
        """The response has ended; keep it if it is one to keep. Returns the object as it is to be sent."""
        self.forget(run)
        body = run.encode()
        if run.is_stored:
            output = keep_items(run.composer.render()["output"])
            self._keep(run.composer.id, EndedResponse(run.owner, run.items, output, run.composer.status, body))
        return body

    def forget(self, run: RunningResponse) -> None:
        """It is no longer written, if it was."""
        self._running.pop(run.composer.id, None)

    def find(self, response_id: str, owner: str) -> RunningResponse | EndedResponse:
        """One that may be looked at."""
        run = self.find_running(response_id, owner)
        return run if run and run.is_stored else self._find_ended(response_id, owner)

    def find_running(self, response_id: str, owner: str) -> RunningResponse | None:
        """One that may be cancelled, whether or not it will be stored."""
        run = self._running.get(response_id)
        return run if run and run.owner == owner else None

    def find_previous(self, response_id: str, owner: str) -> tuple[Item, ...]:
        """The conversation that a response ended with."""
        param = "previous_response_id"
        try:
            found = self.find(response_id, owner)
        except UnknownResponse as error:
            raise UnknownPrevious(str(error), param=param) from None
        if isinstance(found, RunningResponse) or found.status in ("failed", "cancelled"):
            reason = "is still being written" if isinstance(found, RunningResponse) else f"was {found.status}"
            raise RequestError(f"{param}: {response_id!r:.100} {reason}, and cannot be continued", param=param)
        return found.items + found.output

    def delete(self, response_id: str, owner: str) -> None:
        self._find_ended(response_id, owner)
        self.num_bytes -= self._ended.pop(response_id).num_bytes

    def check(self) -> None:
        assert self.num_bytes == sum(ended.num_bytes for ended in self._ended.values())
        assert self.num_bytes <= self._max_bytes
        assert len(self._ended) <= self._max_responses

    def _find_ended(self, response_id: str, owner: str) -> EndedResponse:
        ended = self._ended.get(response_id)
        if not ended or ended.owner != owner:
            raise UnknownResponse(f"there is no response {response_id!r:.100}, or no longer")
        self._ended.move_to_end(response_id)
        return ended

    def _keep(self, response_id: str, ended: EndedResponse) -> None:
        self._ended[response_id] = ended
        self.num_bytes += ended.num_bytes
        while self.num_bytes > self._max_bytes or len(self._ended) > self._max_responses:
            _, oldest = self._ended.popitem(last=False)
            self.num_bytes -= oldest.num_bytes
