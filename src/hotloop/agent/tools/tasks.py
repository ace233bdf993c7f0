"""Tasks that are told to stop, and what is said of those that do not."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

log = logging.getLogger(__name__)

_PATIENCE_S = 5.0  # with a tool that does not stop when it is told to


async def stop(running: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel all of them. What does not stop is left behind, and said so."""
    tasks = list(running)
    for task in tasks:
        task.cancel()
    if tasks:
        _, stuck = await asyncio.wait(tasks, timeout=_PATIENCE_S)
        for task in stuck:
            log.warning("%s does not stop when it is cancelled", task.get_name())
