"""A scheduler turned by hand, for tests that look at who computes what."""

import math
from collections.abc import Sequence
from typing import Any

from tests.engine.tiny import BLOCK_SIZE, make_request

from hotloop.core.config import EngineConfig
from hotloop.core.request import FinishReason, Priority, Request
from hotloop.engine.scheduler.scheduler import Scheduler
from hotloop.engine.step import Step


def make_scheduler(
    num_blocks: int = 64,
    num_states: int = 0,
    max_solo_prefill: float = math.inf,
    step_sizes: Sequence[int] = (),
    **changes: Any,
) -> Scheduler:
    config = EngineConfig(**changes)
    return Scheduler(
        config,
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        num_states=num_states,
        max_solo_prefill=max_solo_prefill,
        step_sizes=step_sizes,
    )


STEP_S = 0.001


class Loop:
    """Turns a scheduler by hand; every sampled token is the request's number of tokens so far."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.now = 0.0

    def add(
        self, name: str, prompt: list[int], priority: Priority = Priority.INTERACTIVE, session: str = ""
    ) -> Request:
        request = make_request(prompt, name, priority=priority, session_id=session, arrived_at=self.now)
        self.scheduler.add(request)
        return request

    def step(self, seconds: float = STEP_S, took_s: float = STEP_S) -> dict[str, tuple[int, int]]:
        """What each request computed, so long after the last step."""
        self.now += seconds
        step = self.scheduler.schedule(self.now)
        assert all(part.begin < part.end for part in step.slices)
        self.check()
        self.compute(step, took_s)
        return {part.request.id: (part.begin, part.end) for part in step.slices}

    def compute(self, step: Step, took_s: float = STEP_S) -> None:
        self.scheduler.advance(step)
        for part in step.slices:
            if part.wants_token:
                part.request.token_ids.append(part.request.num_tokens)
        self.scheduler.settle(step, self.now, took_s)
        self.scheduler.check()

    def finish(self, request: Request) -> None:
        self.scheduler.finish(request, FinishReason.STOP)
        self.scheduler.check()

    def finish_after(self, request: Request, num_steps: int = 50) -> None:
        """Once it has a token."""
        for _ in range(num_steps):
            if request.num_output:
                break
            self.step()
        self.finish(request)

    def check(self) -> None:
        """The scheduler, and that it knows how many blocks are in use once one more has what is cached of it."""
        scheduler = self.scheduler
        scheduler.check()
        used = {block_id for request in scheduler.running.values() for block_id in request.block_ids}
        for request in scheduler.waiting.values():
            known = scheduler.states.peek(request)
            assert scheduler._num_held(known, scheduler.running.values()) == len(used.union(known))


def prompt(length: int, first: int = 0) -> list[int]:
    return list(range(first, first + length))
