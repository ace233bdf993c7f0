"""Several models as one: the first that answers does, and one that has failed is left alone for a while.

    Agent(["http://localhost:8700/v1", "anthropic:http://localhost:8701#large"])

Whoever is asked gets the whole conversation, in the words of its API; thoughts go back only to whoever they are of. A
question that is wrong in itself is nobody else's to answer.
"""

import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from hotloop.agent.model import Ask, Model
from hotloop.core.errors import ConfigError, HotloopError, RemoteError
from hotloop.wire.event import Begun, Event

log = logging.getLogger(__name__)

COOLDOWN_S = 30.0
"""For how long a model that has failed is asked last, where its server does not say."""

_BAD_QUESTION = (400, 413, 422)


class FallbackModel:
    def __init__(
        self, models: Sequence[Model], *, cooldown_s: float = COOLDOWN_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if not models:
            raise ConfigError("an agent needs at least one model")
        self._models = tuple(models)
        self._cooldown_s = cooldown_s
        self._clock = clock
        self._cool_at = [0.0] * len(self._models)
        self._last = self._models[0]

    @property
    def name(self) -> str:
        """Of the one that was asked last."""
        return self._last.name

    @property
    def can_prefill_ahead(self) -> bool:
        return self._order()[0].can_prefill_ahead

    async def find_window(self) -> int | None:
        """The smallest, since each of them may be asked."""
        windows = []
        for model in self._models:
            try:
                windows.append(await model.find_window())
            except HotloopError as error:
                log.info("the context window of %s is unknown: %s", model.name, error)
        return min((window for window in windows if window), default=None)

    async def stream(self, ask: Ask) -> AsyncGenerator[Event, None]:
        """Of an answer that breaks off behind its first words the rest is not asked of another: the run asks again."""
        order = self._order()
        for number, model in enumerate(order, start=1):
            self._last, has_said = model, False
            try:
                async with aclosing(model.stream(ask)) as events:
                    async for event in events:
                        has_said = has_said or not isinstance(event, Begun)
                        yield event
                return
            except RemoteError as error:
                if error.status in _BAD_QUESTION or number == len(order):
                    raise
                self._cool(model, error)
                log.warning("%s failed, falling back to the next model: %s", model.name, error)
                if ask.on_fallback:
                    ask.on_fallback(model.name, error)
                if has_said:
                    raise RemoteError(str(error), status=error.status, can_retry=True) from error

    async def prefill(self, ask: Ask) -> None:
        await self._order()[0].prefill(ask)

    async def close(self) -> None:
        for model in self._models:
            await model.close()

    def _order(self) -> list[Model]:
        """As they were given, those that have failed lately behind the others."""
        now = self._clock()
        numbers = sorted(range(len(self._models)), key=lambda number: (self._cool_at[number] > now, number))
        return [self._models[number] for number in numbers]

    def _cool(self, model: Model, error: RemoteError) -> None:
        pause_s = self._cooldown_s if error.retry_after_s is None else error.retry_after_s
        self._cool_at[self._models.index(model)] = self._clock() + pause_s


def describe_kind(error: RemoteError) -> str:
    """In a word or two, without what anybody said."""
    if error.status == 429:
        return "rate limited"
    if error.status is not None:
        return f"status {error.status}"
    return "unreachable" if error.can_retry else "refused"
