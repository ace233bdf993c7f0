"""The engine's end of a link: it runs one front's requests, and aborts them all when the front is gone.

Messages are handled on this process's event loop; events are sent from the engine's thread, one message a step.
"""

import asyncio
import logging
import socket
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from hotloop.core.errors import EngineClosed, HotloopError
from hotloop.core.request import UNCOUNTED, KvSource, Request, TokenEvent
from hotloop.engine.engine import Engine
from hotloop.server.engine_client import read_kv
from hotloop.server.fronts import messages
from hotloop.server.fronts.hub import Hub
from hotloop.server.fronts.link import Link

log = logging.getLogger("hotloop.fronts")

Answer = Callable[[Any], Awaitable[Any]]
"""Answers what a front asks, given its value."""


@dataclass(slots=True)
class _Hosted:
    """A request of the front's, until the front has released it."""

    number: int
    request: Request
    is_told: bool = False
    """Whether the front has had its first event."""
    is_unwanted: bool = False
    """Whether it was aborted before the engine had it."""


class EngineHost:
    """`on_gone` hears that the front has closed its end."""

    def __init__(
        self,
        engine: Engine,
        hub: Hub,
        sock: socket.socket,
        *,
        answers: Mapping[str, Answer] | None = None,
        on_gone: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._hub = hub
        self._answers = {
            "is_ready": self._is_ready,
            "metrics": self._page,
            "close_session": self._close_session,
            "read_kv": self._read_kv,
            "find_session": self._find_session,
            "take_kv": self._take_kv,
            "drain": self._drain,
            "catch_up": self._catch_up,
            "counts": self._count_others,
            **(answers or {}),
        }
        self._on_gone = on_gone
        self._link = Link(sock, self._take, self._close)
        self._hosted: dict[str, _Hosted] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    def start(self) -> None:
        self._link.start()
        self._hub.join(self)
        if self._engine.failure:
            self.fail(self._engine.failure)

    def tell(self, what: str, value: Any = None) -> None:
        self._link.send(messages.Told(what, value))

    def send_frame(self, body: bytes) -> None:
        self._link.send_frame(body)

    def read_sent(self) -> None:
        self._link.read_sent()

    async def ask(self, what: str) -> Any:
        """Raises EngineClosed if the front is gone."""
        number = next(self._numbers)
        reply = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._link.send(messages.Ask(number, what))
        try:
            if not self._link.is_open:
                raise _gone()
            return await reply
        finally:
            del self._waiting[number]

    async def close(self) -> None:
        """Returns when nothing of the front's is left to be admitted or answered."""
        self._link.close()
        await asyncio.gather(*self._tasks)

    @property
    def num_hosted(self) -> int:
        return len(self._hosted)

    def _take(self, frame: bytes) -> None:
        match messages.from_front.decode(frame):
            case messages.Submit(number, requests):
                self._submit(number, requests)
            case messages.Abort(request_ids):
                self._abort(request_ids)
            case messages.HoldPrefix(request_id, num_tokens, hold) if hosted := self._hosted.get(request_id):
                request = hosted.request
                self._engine.hold(request.token_ids[:num_tokens], hold, request.salt, request.session)
            case messages.Release(request_id):
                self._hosted.pop(request_id, None)
            case messages.Ask() as asked:
                self._start(self._answer(asked))
            case messages.SharedChange():
                self._hub.pass_on(frame, self)
            case messages.Reply(number, value) if (waiting := self._waiting.get(number)) and not waiting.done():
                waiting.set_result(value)

    def _submit(self, number: int, new: Sequence[messages.NewRequest]) -> None:
        requests = []
        for each in new:
            try:
                requests.append(_make_request(each))
            except HotloopError as error:
                self._link.send(messages.Refused(number, messages.ErrorData.of(error)))
                return
        if any(request.id in self._hosted for request in requests):
            self._link.send(
                messages.Refused(number, messages.ErrorData("RequestError", "duplicate request id", {"param": "id"}))
            )
            return
        self._hosted |= {each.id: _Hosted(each.number, request) for each, request in zip(new, requests, strict=True)}
        if any(request.is_guided for request in requests):
            self._start(self._admit_later(number, requests))
        else:
            self._admit(number, requests, self._try_submit(requests))

    async def _admit_later(self, number: int, requests: Sequence[Request]) -> None:
        """A grammar may take a while to compile."""
        self._admit(number, requests, await asyncio.to_thread(self._try_submit, requests))

    def _try_submit(self, requests: Sequence[Request]) -> messages.ErrorData | None:
        try:
            self._engine.submit(requests, self._on_events, has_text=False)
        except Exception as error:
            return _told(error)
        return None

    def _admit(self, number: int, requests: Sequence[Request], error: messages.ErrorData | None) -> None:
        if error:
            for request in requests:
                self._hosted.pop(request.id, None)
            self._link.send(messages.Refused(number, error))
            return
        self._link.send(messages.Admitted(number))
        unwanted = [each.id for each in requests if self._is_unwanted(each.id)]
        if unwanted:
            self._engine.abort(*unwanted)

    def _is_unwanted(self, request_id: str) -> bool:
        hosted = self._hosted.get(request_id)
        return hosted is None or hosted.is_unwanted

    def _abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if hosted := self._hosted.get(request_id):
                hosted.is_unwanted = True
        self._engine.abort(*request_ids)

    def _on_events(self, events: Sequence[TokenEvent]) -> None:
        """On the engine's thread."""
        tokens = array("q")
        others = []
        for event in events:
            hosted = self._hosted.get(event.request_id)
            if hosted is None:  # the front has given it up, or is gone
                continue
            if event.usage is UNCOUNTED:
                tokens.append(hosted.number)
                tokens.append(event.token_ids[0])
            else:
                others.append(self._render(event, hosted))
        self._link.send(messages.Stepped(tokens.tobytes(), others))

    def _render(self, event: TokenEvent, hosted: _Hosted) -> messages.Event:
        has_facts = not hosted.is_told or event.finish_reason is not None
        hosted.is_told = True
        return messages.Event(
            hosted.number,
            list(event.token_ids),
            event.text,
            event.usage,
            list(event.logprobs),
            event.finish_reason,
            event.stop_match,
            messages.ErrorData.of(event.error) if event.error else None,
            self._facts(hosted.request) if has_facts else None,
        )

    def _facts(self, request: Request) -> messages.Facts:
        facts: dict[str, Any] = {name: getattr(request, name) for name in messages.REQUEST_FACTS}
        return messages.Facts(**facts, cache_refill_s=self._engine.cache_refill_s)

    def fail(self, error: Exception) -> None:
        """On any thread."""
        self._link.send(messages.Failed(messages.ErrorData.of(error)))

    async def _answer(self, asked: messages.Ask) -> None:
        answer = self._answers.get(asked.what)
        try:
            value = await answer(asked.value) if answer else None
        except Exception as error:
            self._link.send(messages.Reply(asked.number, error=_told(error)))
        else:
            self._link.send(messages.Reply(asked.number, value))

    async def _is_ready(self, _: Any) -> bool:
        return self._engine.is_running

    async def _page(self, _: Any) -> bytes:
        return self._hub.render_metrics()

    async def _catch_up(self, _: Any) -> None:
        self._hub.read_sent(self)

    async def _count_others(self, own: Any) -> Any:
        return await self._hub.count(self, own)

    async def _close_session(self, name: Any) -> int:
        return await asyncio.wrap_future(self._engine.close_session(str(name)))

    async def _read_kv(self, asked: Any) -> memoryview | None:
        salt, tokens = asked
        return await read_kv(self._engine, salt, array("i", tokens))

    async def _find_session(self, name: Any) -> tuple[bytes, str] | None:
        found = await asyncio.wrap_future(self._engine.find_session(str(name)))
        return (found[0].tobytes(), found[1]) if found else None

    async def _take_kv(self, offered: Any) -> int:
        url, key, salt, tokens, session = offered
        return await asyncio.wrap_future(self._engine.take_kv(KvSource(url, key), salt, array("i", tokens), session))

    async def _drain(self, timeout_s: Any) -> None:
        await self._engine.drain(float(timeout_s))

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _close(self) -> None:
        """The front is gone, and with it all who wait for its requests."""
        self._engine.abort(*self._hosted)
        self._hosted.clear()
        self._hub.leave(self)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(_gone())
        self._on_gone()


def _told(error: Exception) -> messages.ErrorData:
    """What a front is told, whatever went wrong: it waits for an answer."""
    if not isinstance(error, HotloopError):
        log.error("what a front asked for failed", exc_info=error)
        error = HotloopError("internal server error; see the server log")
    return messages.ErrorData.of(error)


def _gone() -> EngineClosed:
    return EngineClosed("the front's process has ended")


def _make_request(new: messages.NewRequest) -> Request:
    return Request(prompt_ids=array("i", new.prompt), **{name: getattr(new, name) for name in messages.REQUEST_FIELDS})
