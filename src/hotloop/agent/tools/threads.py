"""Calls that wait, off the event loop: each in a thread of its own, which nobody has to wait for.

A thread cannot be stopped. Who stops waiting for one loses its result, and a program may end while one still runs;
an executor's threads would hold it up.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            settle, outcome = future.set_result, context.run(call)
        except BaseException as error:  # whatever it is, the one who waits should hear of it
            settle, outcome = future.set_exception, _as_exception(error)  # type: ignore[assignment]
        try:
            loop.call_soon_threadsafe(lambda: future.done() or settle(outcome))
        except RuntimeError:
            return  # the loop has been closed: nobody waits any more

    threading.Thread(target=work, name="hotloop-tool", daemon=True).start()
    return await future


def _as_exception(error: BaseException) -> Exception:
    """A future cannot carry what would end the program, such as SystemExit."""
    return error if isinstance(error, Exception) and not isinstance(error, StopIteration) else RuntimeError(repr(error))
