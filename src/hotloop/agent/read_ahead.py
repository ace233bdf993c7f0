"""The model prefills results while others are still on their way, so that the next turn has only the last to prefill.

    results   1 .............. 2 .............. 3
    model        [prefill 1]      [prefill 2]     [prefill 3, answer]

Only in the order of the calls, since that is the order of the prompt, and only where it pays: the model's server keeps
its cache, something is still running, and there is enough to prefill. One prefill at a time; a failed one only saves
nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from hotloop.agent.model import Ask, Model
from hotloop.agent.tools.dispatch import Pending
from hotloop.core.errors import HotloopError
from hotloop.core.message import Message

log = logging.getLogger(__name__)

MIN_CHARS = 400
"""Less than this is prefilled faster than it is asked for."""


async def read_ahead(model: Model, pending: Sequence[Pending], ask: Callable[[tuple[Message, ...]], Ask]) -> None:
    """Wait for the calls in their order; whenever some are done and others are not, have the model prefill those."""
    num_read = 0
    for i, each in enumerate(pending):
        if not model.can_read_ahead:
            return
        await asyncio.wait({each.task})
        num_done = next((j for j in range(i, len(pending)) if not pending[j].task.done()), len(pending))
        messages = tuple(done.message for done in pending[:num_done])
        num_new = sum(len(message.content) for message in messages[num_read:])
        if num_done < len(pending) and num_new >= MIN_CHARS:
            await _read_until(model, ask(messages), pending[-1].task if num_done == len(pending) - 1 else None)
            num_read = num_done


async def _read_until(model: Model, ask: Ask, last: "asyncio.Task[object] | None") -> None:
    """Have a prompt prefilled; once the last result is here, the real turn does it better."""
    reading = asyncio.create_task(model.read(ask))
    try:
        await asyncio.wait({reading, last} if last else {reading}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        reading.cancel()
        await asyncio.wait({reading})  # not itself: its being cancelled must not pass for ours, nor ours for its
    try:
        if not reading.cancelled():
            reading.result()
    except HotloopError as error:
        log.info("prefilling ahead failed: %s", error)
