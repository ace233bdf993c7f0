"""The replicas there are, and who gets what.

A request claims a place and gives it back, whatever happens in between. Replicas come and go while others serve: one
that is taken out finishes what it has. Owns health, breakers, placement and the waiting room; knows no HTTP.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cachetools import FIFOCache

from hotloop.core.errors import RequestError
from hotloop.http.keys import Tenant
from hotloop.router.config import ReplicaConfig, RoutingConfig
from hotloop.router.errors import RouteError
from hotloop.router.kinds import WITHOUT_STAND_IN, kinds_that_speak
from hotloop.router.placement.placement import Placement, Ticket
from hotloop.router.placement.policy import POLICIES
from hotloop.router.placement.pools import PoolRule
from hotloop.router.placement.state import ExactState
from hotloop.router.replicas.breaker import RetryBudget
from hotloop.router.replicas.handover import hand_on
from hotloop.router.replicas.health import watch
from hotloop.router.replicas.queue import RequestQueue
from hotloop.router.replicas.replica import Replica, open_replica, open_requests, tokenize
from hotloop.router.request import BLOCK_TOKENS, NOBODY, RoutedRequest
from hotloop.router.summary import AnswerSummary
from hotloop.router.translate import can_translate
from hotloop.wire.models import ServedModel, merge_models

log = logging.getLogger("hotloop.router")

MAX_ANSWERS = 20_000
_RETIRED_S = 600.0
MAX_LISTED = 20
"""Models that an error names."""


@dataclass(slots=True, eq=False)
class Place:
    replica: Replica
    ticket: Ticket
    summary: AnswerSummary = field(default_factory=AnswerSummary)


@dataclass(frozen=True, slots=True)
class _Made:
    """Who made an answer, and for whom."""

    replica: str
    tenant: str


class ReplicaSet:
    def __init__(self, config: RoutingConfig) -> None:
        self.config = config
        self.budget = RetryBudget(config.router.retry_share)
        self.room: RequestQueue[Place] = RequestQueue(config.router.max_waiting)
        self.replicas: dict[str, Replica] = {}
        self.leaving: set[Replica] = set()
        self._placement = Placement(POLICIES[config.router.policy], block_tokens=BLOCK_TOKENS)
        self._exact = ExactState(
            lambda question: tokenize((each for each in self.replicas.values() if each.config.kv_events), question)
        )
        self._watches: dict[Replica, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._answers: FIFOCache[str, _Made] = FIFOCache(MAX_ANSWERS)
        self._retired: dict[str, tuple[Replica, float]] = {}
        """Replicas that were taken out, and until when their KV may still be had."""

    def start(self) -> None:
        for each in self.config.replicas:
            self._add(each)

    def reload(self, config: RoutingConfig) -> list[str]:
        """Take in what is new, let go what is no longer there, and leave alone what is the same; says what that was.
        A RoutingConfig is valid, so that nothing here can fail halfway."""
        wanted = {each.name: each for each in config.replicas}
        gone = [name for name in self.replicas if name not in wanted]
        changed = [name for name, each in self.replicas.items() if wanted.get(name, each.config) != each.config]
        new = [name for name in wanted if name not in self.replicas]
        for name in (*gone, *changed):
            self._remove(self.replicas[name])
        self.config = config
        self._placement.policy = POLICIES[config.router.policy]
        for name in (*changed, *new):
            self._add(wanted[name])
        self.room.wake(is_one=False)
        words = {"added": new, "changed": changed, "removed": gone}
        return [f"replicas {word}: {', '.join(names)}" for word, names in words.items() if names]

    async def aclose(self) -> None:
        for replica in list(self.replicas.values()):
            self._remove(replica)
        await asyncio.gather(*self._background, return_exceptions=True)

    @property
    def num_running(self) -> int:
        return sum(each.num_running for each in (*self.replicas.values(), *self.leaving))

    def list_models(self) -> list[ServedModel]:
        """What replicas that are up say of their models, each once."""
        up = [each for each in self.replicas.values() if each.state == "up"]
        return merge_models(each.cards.get(name) or ServedModel(name) for each in up for name in each.models)

    async def find_known(self, request: RoutedRequest) -> Mapping[str, int]:
        """What replicas that publish it hold of a prompt, in tokens as they are counted here."""
        if not self._exact.held or request.api not in ("chat", "completions") or request.scope:
            return {}  # what has a salt is not published
        try:
            token_ids = await self._exact.token_ids(request.read_body())
        except RequestError:  # a field that nobody may look at cannot be read: for the replica to say
            return {}
        if not token_ids:
            return {}
        matched = self._exact.match(token_ids)
        return {name: num_tokens * request.num_tokens // len(token_ids) for name, num_tokens in matched.items()}

    async def claim(self, request: RoutedRequest, tried: Collection[str], known: Mapping[str, int]) -> Place:
        """A place, at a replica that was not tried if there is one. Raises RouteError if no replica has the model, or
        there was no place in time; Overloaded if too many wait."""
        place = self.try_claim(request, tried, known)
        if place:
            return place
        self._check_served(request)
        try:
            async with asyncio.timeout(self.config.router.queue_timeout_s):
                return await self.room.wait(
                    request.priority, lambda: self.try_claim(request, tried, known), give_back=self.give_back
                )
        except TimeoutError:
            if any(each.state == "up" for each in self.replicas.values()):
                busy = self.room.overloaded("all replicas stayed at capacity for queue_timeout_s")
                raise RouteError(503, "no_place", str(busy), retry_after_s=busy.retry_after_s) from None
            raise RouteError(503, "no_replica", "no replica is up", retry_after_s=2) from None

    def try_claim(
        self, request: RoutedRequest, tried: Collection[str], known: Mapping[str, int], *, is_new: bool = False
    ) -> Place | None:
        """A place if there is one right now; with `is_new`, only where it was not tried."""
        names = self._candidates(request, tried)
        if is_new and names & set(tried):
            return None
        rule = PoolRule(self.config.router.pool_share, self.config.router.pool_tokens)
        ticket = self._placement.place(request.digest, now=time.monotonic(), among=names, known=known, pools=rule)
        if not ticket:
            return None
        replica = self.replicas[ticket.choice.name]
        replica.num_running += 1
        replica.breaker.ask()
        return Place(replica, ticket)

    def begin(self, place: Place) -> None:
        place.replica.breaker.begin()
        self._placement.begin(place.ticket)

    def release(self, place: Place) -> None:
        place.replica.num_running -= 1
        if not place.replica.num_running:
            place.replica.idle.set()
        self._placement.finish(place.ticket, place.summary, now=time.monotonic())
        self.room.wake()

    def give_back(self, place: Place) -> None:
        """The request told nothing about the replica: it failed, was never sent, or its client has gone."""
        place.replica.breaker.is_probing = False
        self.release(place)

    def fail(self, place: Place, *, is_gone: bool = False) -> None:
        """It answered with an error of its own, or not at all; one that is gone is out until a probe finds it again."""
        replica = place.replica
        replica.breaker.fail(time.monotonic())
        if is_gone and replica.state == "up":
            replica.state, replica.why = "down", "it cannot be reached"
            self._on_change(replica)

    def find_source(self, place: Place) -> str:
        """The address of a replica that holds much more of a prompt than the one chosen, if both exchange KV."""
        for name in [name for name, (_, until) in self._retired.items() if until < time.monotonic()]:
            self._forget_retired(name)
        name = place.ticket.choice.source
        source = self.replicas.get(name) or self._retired.get(name, (None, 0.0))[0]
        can_move = self.config.router.move_kv and source is not None and source.state in ("up", "draining", "leaving")
        if not source or not can_move or {source.kind.name, place.replica.kind.name} != {"hotloop"}:
            return ""
        return source.config.url

    def _forget_retired(self, name: str) -> None:
        self._retired.pop(name, None)
        if name not in self.replicas:
            self._placement.remove_replica(name)

    def learn(self, place: Place, summary: AnswerSummary, tenant: Tenant = NOBODY) -> None:
        """How an answer ended, and what it said about itself: what a replica did not find, it no longer holds."""
        if summary.is_broken:
            self.fail(place)
        else:
            place.replica.breaker.succeed()
        place.summary = summary
        if summary.answer_id:
            self._remember(summary.answer_id, _Made(place.replica.name, tenant.id))

    def _remember(self, answer_id: str, made: _Made) -> None:
        """The first tenant of an answer keeps it: with some engines a client may choose the id."""
        known = self._answers.get(answer_id)
        if known is None or known.tenant == made.tenant:
            self._answers[answer_id] = made

    def makers(self, answer_id: str, tenant: Tenant) -> list[Replica]:
        """Who made an answer; if that is not known, everybody who is up and may be asked."""
        if maker := self._maker(answer_id, tenant):
            return [maker]
        return [each for each in self.replicas.values() if each.state == "up" and self._may_ask(each, tenant)]

    def _maker(self, answer_id: str, tenant: Tenant) -> Replica | None:
        """None also where it was made for another tenant: that is as if nobody knew it."""
        made = self._answers.get(answer_id)
        is_own = made and (not tenant.is_apart or tenant.may_see(made.tenant))
        return self.replicas.get(made.replica) if made and is_own else None

    def _may_ask(self, replica: Replica, tenant: Tenant) -> bool:
        """Whether a replica can be asked for an answer of which it is not known whose it is."""
        return replica.kind.keeps_tenants or not tenant.is_apart

    def _may_continue(self, replica: Replica, request: RoutedRequest) -> bool:
        """Whether a replica may know the response that a request continues, if it does."""
        if not request.follows:
            return True
        maker = self._maker(request.follows, request.tenant)
        return replica is maker if maker else self._may_ask(replica, request.tenant)

    def _candidates(self, request: RoutedRequest, tried: Collection[str]) -> frozenset[str]:
        """Who could take it now: rather one that speaks its language and was not tried."""
        now = time.monotonic()
        fit = [
            each
            for each in self._serving(request)
            if each.state == "up" and each.has_room and each.breaker.can_ask(now) and self._may_continue(each, request)
        ]
        fit = [each for each in fit if each.name not in tried] or fit
        fluent = [each for each in fit if request.api in each.speaks(request)]
        return frozenset(each.name for each in fluent or fit)

    def _serving(self, request: RoutedRequest) -> Iterable[Replica]:
        for each in self.replicas.values():
            spoken = each.speaks(request)
            is_near = request.can_be_translated and can_translate(request.api, spoken)
            is_kind = not request.kinds or each.kind.name in request.kinds
            if is_kind and each.serves(request.model) and (request.api in spoken or is_near):
                yield each

    def kinds_for(self, request: RoutedRequest) -> set[str]:
        return {each.kind.name for each in self._serving(request)}

    def can_place(self, request: RoutedRequest, tried: Collection[str]) -> bool:
        """Whether a replica that was not tried is up for it."""
        return any(each.state == "up" and each.name not in tried for each in self._serving(request))

    def _check_served(self, request: RoutedRequest) -> None:
        """Only what is known counts: a replica that was never up may have any model."""
        serving = [*self._serving(request)]
        if any(self._may_continue(each, request) for each in serving):
            return
        if serving:
            why = f"response {request.follows!r:.100} not found; it may have been deleted or evicted"
            raise RouteError(404, "previous_response_not_found", why)
        names = sorted({name for each in self.replicas.values() for name in each.models})
        what = WITHOUT_STAND_IN.get(request.api)
        able = [each for each in self.replicas.values() if request.api in each.apis]
        if what and not able:
            kinds = ", ".join(kinds_that_speak(request.api))
            raise RouteError(404, "api_not_served", f"no replica has {what}: add one that does, of the kinds {kinds}")
        if request.model in names:
            here = sorted({name for each in able for name in each.models})
            why = f"has {what}; those with {_list(here)} have" if what else "speaks this API, or one near it"
            raise RouteError(404, "api_not_served", f"no replica with {request.model!r} {why}", param="model")
        why = f"no replica has the model {request.model!r:.200}; there are {_list(names)}"
        raise RouteError(404, "model_not_found", why, param="model")

    def _add(self, config: ReplicaConfig) -> None:
        router = self.config.router
        self._retired.pop(config.name, None)
        replica = self.replicas[config.name] = open_replica(config, router)
        self._placement.add_replica(
            config.name, capacity_tokens=config.capacity_tokens, weight=config.weight, pool=config.pool
        )
        if config.kv_events:
            self._exact.add_replica(config.name, config.kv_events, config.kv_replay or None)
        watching = watch(replica, router.health_interval_s, self._on_change, self._on_probe)
        self._watches[replica] = asyncio.create_task(watching, name=f"watch {config.name}")

    def _remove(self, replica: Replica) -> None:
        del self.replicas[replica.name]
        self._placement.retire_replica(replica.name)
        self._retired[replica.name] = replica, time.monotonic() + _RETIRED_S
        self._watches.pop(replica).cancel()
        replica.state, replica.why = "leaving", "taken out"
        self.leaving.add(replica)
        self._run_in_background(self._exact.remove_replica(replica.name))
        self._run_in_background(self._drain(replica))

    def _takers(self, replica: Replica) -> list[Replica]:
        """Who may have the sessions of a replica that drains: others of its models, of its pool if there are any."""
        others = [
            each
            for each in self.replicas.values()
            if each.state == "up" and each.kind is replica.kind and each.models.keys() >= replica.models.keys()
        ]
        return [each for each in others if each.config.pool == replica.config.pool] or others

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _drain(self, replica: Replica) -> None:
        if replica.num_running:
            replica.idle.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.config.router.drain_timeout_s):
                    await replica.idle.wait()
        await replica.aclose()
        self.leaving.discard(replica)

    def _on_probe(self, replica: Replica) -> None:
        """Time passes for those who wait, too: a breaker may let one through again."""
        if replica.state == "down" and replica.is_silent and replica.upstream.num_open:
            lost, replica.upstream = replica.upstream, open_requests(replica.config, self.config.router)
            self._run_in_background(lost.aclose())  # whoever still waits for a byte from it may ask elsewhere
        self._placement.note_elsewhere(replica.name, replica.num_elsewhere)
        self.room.wake(is_one=False)

    def _on_change(self, replica: Replica) -> None:
        """One that nobody can connect to keeps its connections: if it was told to stop, it finishes what it has."""
        if replica.state == "draining":
            log.info("replica draining: name=%s running=%d", replica.name, replica.num_running)
            if self.config.router.move_kv and replica.kind.name == "hotloop":
                self._run_in_background(hand_on(replica, self._placement, partial(self._takers, replica)))
        elif replica.state == "down":
            log.warning("replica down: name=%s running=%d reason=%s", replica.name, replica.num_running, replica.why)
            self._placement.forget_replica(replica.name)
        else:
            log.info("replica up: name=%s kind=%s url=%s", replica.name, replica.kind.name, replica.config.url)
        self.room.wake(is_one=False)


def _list(names: Sequence[str]) -> str:
    return f"{[*names[:MAX_LISTED]]}" + (" and others" if len(names) > MAX_LISTED else "")
