"""Runs for clients: each is read in a task of its own, so that a client who leaves does not end it in the middle.

Who leaves has the run cancelled, which lets calls with effects come to their end; it can be gone on with by its id.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from hotloop.agent.checks import GuardTripped
from hotloop.agent.events import Event, RunEnded
from hotloop.agent.journal import ApprovalPending, RunStopped
from hotloop.agent.limits import LimitReached
from hotloop.agent.run_stream import RunStream
from hotloop.agent.service.metrics import AgentMetrics
from hotloop.core.errors import ConfigError, HotloopError, RemoteError, RequestError

Events = AsyncIterator[Event]


class RunningAgents:
    """All runs of a process, `max_runs` at a time."""

    def __init__(self, max_runs: int, metrics: AgentMetrics) -> None:
        self._max_runs = max_runs
        self._metrics = metrics
        self._runs: dict[asyncio.Task[None], RunStream[Any]] = {}
        self.is_closing = False

    @asynccontextmanager
    async def begin(self, make: Callable[[], RunStream[Any]]) -> AsyncIterator[Events]:
        """The events of a run. Raises RemoteError where there are too many."""
        if len(self._runs) >= self._max_runs:
            raise RemoteError(f"{self._max_runs} runs are active: try again later", status=429, retry_after_s=1.0)
        if self.is_closing:
            raise RemoteError("the agent is shutting down", status=503)
        run, told = make(), asyncio.Queue[Event | Exception]()
        task = asyncio.create_task(_read(run, told, self._metrics.watch()))
        self._runs[task] = run
        task.add_done_callback(self._runs.pop)
        try:
            yield _events(told)
        finally:
            if not task.done():
                run.cancel()

    def pause(self) -> None:
        """Have all runs end behind their turn."""
        self.is_closing = True
        for run in self._runs.values():
            run.pause()

    async def close(self) -> None:
        """End what still runs at once."""
        tasks = list(self._runs)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(run: RunStream[Any], told: "asyncio.Queue[Event | Exception]", watch: Callable[[Event], None]) -> None:
    try:
        async for event in run:
            watch(event)
            told.put_nowait(event)
    except Exception as error:
        told.put_nowait(error)


async def _events(told: "asyncio.Queue[Event | Exception]") -> Events:
    while True:
        event = await told.get()
        if isinstance(event, Exception):
            raise event
        yield event
        if isinstance(event, RunEnded):
            return


def as_failure(error: HotloopError) -> RemoteError:
    """What ended a run, as a client is told."""
    match error:
        case RemoteError():
            return error
        case RequestError() | GuardTripped():
            return RemoteError(str(error), status=400)
        case ApprovalPending():
            return RemoteError(str(error), status=409)
        case RunStopped() | ConfigError():
            return RemoteError(str(error), status=503 if isinstance(error, RunStopped) else 500)
        case LimitReached():
            return RemoteError(str(error), status=422)
    return RemoteError(str(error), status=500)
