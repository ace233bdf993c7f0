"""A stream that outlives its replica: what is lost in the middle goes on at another one.

    replica a   ── start ── "It is wa" ──x
    replica b                              "It is wa" (told, or given) ── "rm today" ── end
    client      ── start ── "It is wa" ────────────────────────────────── "rm today" ── end

The client hears each piece once, or an error that says why it cannot be gone on with.
"""

import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from hotloop.core.errors import HotloopError
from hotloop.router.answer import ProxiedAnswer
from hotloop.router.replicas.replica import count_tokens
from hotloop.router.replicas.replica_set import ReplicaSet
from hotloop.router.request import RoutedRequest
from hotloop.router.resume.plan import CannotResume, Plan, give, make_plans, read_resumed
from hotloop.router.resume.splice import Diverged, SplicedStream
from hotloop.router.resume.told import RESUMED, Told, ToldAnswer, read_event
from hotloop.router.summary import AnswerSummary
from hotloop.router.upstream.wire import UpstreamFailed
from hotloop.wire.errors import read_event_failure
from hotloop.wire.responses.items import ItemStore
from hotloop.wire.sse import DONE, EventReader, split_events, write_event

log = logging.getLogger("hotloop.router")

_FAILED = re.compile(rb'^(?:event: ?(?:error|response\.failed)\b|data: ?\{"error")', re.MULTILINE)

BeginAgain = Callable[[RoutedRequest, Sequence[str]], Awaitable[ProxiedAnswer]]
"""Puts a request to a replica, rather not to one of these."""


class ReplicaGaveUp(UpstreamFailed):
    """It said itself that it failed; `rest` is how it said so."""

    def __init__(self, reason: str, rest: bytes) -> None:
        super().__init__(reason, stage="body")
        self.rest = rest


@dataclass(slots=True)
class LastingStream:
    """`begun` is what the client hears of; where it is made changes as it goes on elsewhere. `on_resume` is told which
    replica was lost, and how the stream went on."""

    begun: ProxiedAnswer
    request: RoutedRequest
    request_id: str
    replica_set: ReplicaSet
    items: ItemStore
    begin_again: BeginAgain
    finish: Callable[[ProxiedAnswer], Awaitable[None]]
    on_resume: Callable[[str, str], None]

    async def relay(self, body: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """`body` is that of the first replica."""
        told = Told(self.request.api, has_usage=not self.begun.hides_usage)
        part, stream = replace(self.begun, body=body), None
        tried: list[str] = []
        try:
            while True:
                try:
                    async for piece in self._heard(part, stream):
                        told.add(piece)
                        yield piece
                    return
                except UpstreamFailed as failure:
                    tried.append(part.place.replica.name)
                    if len(part.token_ids) >= len(told.token_ids):
                        told.token_ids = part.token_ids
                    resumed = await self._resume(part, told, tried, failure)
                    if isinstance(resumed, bytes):
                        yield resumed
                        return
                    part, stream = resumed
        finally:
            await part.body.aclose()

    async def _heard(self, part: ProxiedAnswer, stream: SplicedStream | None) -> AsyncGenerator[bytes, None]:
        """What is new to the client. Raises UpstreamFailed."""
        try:
            async for piece in part.body:
                good, failure = split_failure(piece)
                if heard := stream.feed(good) if stream else good:
                    yield heard
                if failure:
                    raise failure
            if stream and (heard := stream.finish()):
                yield heard
        except Diverged as error:
            raise UpstreamFailed(f"it could not be gone on with elsewhere: {error}", stage="body") from error
        finally:
            if stream:
                self.begun.usage = stream.usage or self.begun.usage

    async def _resume(
        self, part: ProxiedAnswer, told: Told, tried: Sequence[str], failure: UpstreamFailed
    ) -> tuple[ProxiedAnswer, SplicedStream] | bytes:
        """The answer that goes on, or what is left to say. Raises the failure, with the reason why there is neither."""
        name, answer = part.place.replica.name, told.read()
        try:
            if answer.is_ended and not self._lacks_usage(answer):
                return write_end(answer, self.request)
            if isinstance(failure.__cause__, Diverged) or len(tried) > self.replica_set.config.router.max_retries:
                raise CannotResume(str(failure))
            resumed, stream, how = await self._begin(answer, told, tried)
        except HotloopError as error:
            if answer.is_ended:
                return write_end(answer, self.request)
            self.on_resume(name, "failed")
            if isinstance(failure, ReplicaGaveUp):
                return failure.rest
            raise UpstreamFailed(f"{failure.reason}; it cannot go on elsewhere: {error}", stage="body") from error
        where = self.request_id, name, resumed.place.replica.name, how
        log.warning("stream resumed: request=%s replica=%s at=%s how=%s reason=%s", *where, failure)
        self.on_resume(name, how)
        await self._move(part, resumed)
        return resumed, stream

    async def _begin(
        self, answer: ToldAnswer, told: Told, tried: Sequence[str]
    ) -> tuple[ProxiedAnswer, SplicedStream, str]:
        why: HotloopError = CannotResume("no other replica of a kind that can is up")
        for plan in make_plans(self.request, told, answer, self.items):
            if not self.replica_set.can_place(plan.request, ()):
                continue
            request, given = give(plan, await self._count(plan, tried), answer)
            stream = read_resumed(self.request, plan, answer, given)
            try:
                resumed = await self.begin_again(request, tried)
            except HotloopError as error:
                why = error
                continue
            if resumed.is_whole or resumed.status != 200:
                await self.finish(resumed)
                why = CannotResume(f"a replica answered {resumed.status}")
                continue
            told.token_ids = [] if plan.how == "text" else told.token_ids
            return resumed, stream, plan.how
        raise why

    def _lacks_usage(self, answer: ToldAnswer) -> bool:
        """Whether the end was told but for what the answer took."""
        options = self.request.stream_options
        is_asked_for = isinstance(options, dict) and bool(options.get("include_usage"))
        return is_asked_for and not any(atom.key == ("usage",) for atom in answer.atoms)

    async def _count(self, plan: Plan, tried: Sequence[str]) -> int:
        """How many tokens a replica is given of the answer; 0 if nobody can tell. One that was lost may yet seem up."""
        others_first = sorted(self.replica_set.replicas.values(), key=lambda each: each.name in tried)
        return await count_tokens(others_first, plan.request.model, plan.given) if plan.given else 0

    async def _move(self, part: ProxiedAnswer, resumed: ProxiedAnswer) -> None:
        """The answer is made elsewhere from now on; what is left of the place before is given back."""
        lost, self.begun.place, self.begun.response = part.place, resumed.place, resumed.response
        self.begun.render_end = None
        self.replica_set.learn(lost, AnswerSummary(is_broken=True), self.request.tenant)
        try:
            await part.body.aclose()
            await part.response.aclose()
        finally:
            self.replica_set.release(lost)


def is_lasting(request: RoutedRequest) -> bool:
    return request.is_stream and request.api in RESUMED


def split_failure(piece: bytes) -> tuple[bytes, ReplicaGaveUp | None]:
    """What comes before an event by which a replica says that it failed, and that; a failure that is the request's own
    is part of the answer."""
    if not (b"error" in piece or b"failed" in piece) or not _FAILED.search(piece):
        return piece, None
    events = split_events(piece)
    for i, event in enumerate(events):
        said = [read for each in EventReader().push(event) if _FAILED.search(event) and (read := read_event(each))]
        response = said[0].get("response") if said else None
        error = (said[0].get("error") if said else None) or (isinstance(response, dict) and response.get("error"))
        if error and (read_event_failure({"error": error}).status or 0) >= 500:
            reason = str(read_event_failure({"error": error}))
            return b"".join(events[:i]), ReplicaGaveUp(reason, b"".join(events[i:]))
    return piece, None


def write_end(answer: ToldAnswer, request: RoutedRequest) -> bytes:
    """The last word of an answer that was told but for that."""
    if request.api in ("chat", "completions"):
        return b"" if any(atom.key == ("done",) for atom in answer.atoms) else DONE
    is_over = request.api == "responses" or any(atom.key == ("done",) for atom in answer.atoms)
    return b"" if is_over else write_event("message_stop")
