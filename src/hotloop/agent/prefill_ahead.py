"""Results of tools that are prefilled while others are still on their way."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from hotloop.agent.model import Ask, Model
from hotloop.agent.tools.dispatch import Pending
from hotloop.core.errors import HotloopError
from hotloop.core.message import Message

log = logging.getLogger(__name__)

MIN_CHARS = 400
"""Results shorter than this are prefilled faster than it is asked for."""


async def prefill_ahead(model: Model, pending: Sequence[Pending], ask: Callable[[tuple[Message, ...]], Ask]) -> None:
    """Have the model prefill results while others are still on their way: the next turn has only the last to prefill.

    results   1 .............. 2 .............. 3
    model        [prefill 1]      [prefill 2]     [prefill 3, answer]

    In the order of the calls, since that is the order of the prompt, and only where it pays: the model's server keeps
    its cache, something is still running, and there is enough to prefill. A prefill that fails only saves nothing.
    """
    num_read = 0
    for i, each in enumerate(pending):
        if not model.can_prefill_ahead:
            return
        await asyncio.wait({each.task})
        num_done = next((j for j in range(i, len(pending)) if not pending[j].task.done()), len(pending))
        messages = tuple(done.message for done in pending[:num_done])
        num_new = sum(len(message.content) for message in messages[num_read:])
        if num_done < len(pending) and num_new >= MIN_CHARS:
            await read_until(model, ask(messages), pending[-1].task if num_done == len(pending) - 1 else None)
            num_read = num_done


async def read_until(model: Model, ask: Ask, last: "asyncio.Task[object] | None") -> None:
    """Have a prompt prefilled; once the last result is here, the real turn does it better."""
    reading = asyncio.create_task(model.prefill(ask))
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
