"""Two attempts at one thing: whoever begins first is heard, the other is let go."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def race(
    first: Coroutine[Any, Any, T],
    second: Callable[[], Coroutine[Any, Any, T] | None],
    *,
    after_s: float,
    dismiss: Callable[[T], Awaitable[None]],
) -> T:
    """What the first to succeed returns, or the last failure. The second begins if the first takes long.

    Nothing is left behind: what the other had begun is dismissed.
    """
    tasks = {asyncio.create_task(first)}
    try:
        done, _ = await asyncio.wait(tasks, timeout=after_s)
        other = None if done else second()
        if other:
            tasks.add(asyncio.create_task(other))
        winner = await _first_good(tasks)
        tasks.discard(winner)
        return winner.result()
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(result, BaseException):
                await dismiss(result)


async def _first_good(tasks: set[asyncio.Task[T]]) -> asyncio.Task[T]:
    """The first that succeeds; if none does, the last that failed."""
    pending = set(tasks)
    while True:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        good = next((task for task in done if not task.cancelled() and not task.exception()), None)
        if good or not pending:
            return good or done.pop()
