"""The probe that goes away: long answers are begun and given up, and it is looked whether the deployment goes on."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hotloop.core.errors import RemoteError
from hotloop.doctor import prompts
from hotloop.doctor.facts import HungUp
from hotloop.doctor.recognise import read_running
from hotloop.doctor.target import Target, make_nonce

_NUM_CLIENTS = 3
_SHORT_TOKENS = 16
_NUM_TIMED = 3
_POLL_S = 0.1
_ONE_BEGUN_S = 5.0  # where answers are held back, none will have
_ALL_BEGUN_S = 2.0  # where they are answered one after the other, not all of them will have


async def probe_hang_up(target: Target, notice_s: float = 3.0) -> HungUp:
    """By the deployment's own count where it has one, or else by how long others wait."""
    num_before = await read_running(target.deployment)
    if num_before is not None:
        hung = await _count(target, num_before, notice_s)
        if hung.num_during is not None and hung.num_during > num_before:
            return hung
    return await _time(target)


async def _count(target: Target, num_before: int, notice_s: float) -> HungUp:
    async with _listeners(target):
        num_during = await read_running(target.deployment)
    left_at = time.perf_counter()
    await _ask_shortly(target)  # some count only when they compute
    num_after = await read_running(target.deployment)
    while (num_after or 0) > num_before and time.perf_counter() - left_at < notice_s:
        await asyncio.sleep(_POLL_S)
        num_after = await read_running(target.deployment)
    return HungUp(_NUM_CLIENTS, num_before, num_during, num_after, time.perf_counter() - left_at)


async def _time(target: Target) -> HungUp:
    alone_s = await _time_answers(target)
    async with _listeners(target):
        amid_s = await _time_answers(target)
    following_s = await _time_answers(target)
    return HungUp(_NUM_CLIENTS, alone_s=alone_s, amid_s=amid_s, following_s=following_s)


async def _time_answers(target: Target) -> float:
    return statistics.median([await _ask_shortly(target) for _ in range(_NUM_TIMED)])


async def _ask_shortly(target: Target) -> float:
    heard = await target.deployment.ask(prompts.long_answer(make_nonce()), max_tokens=_SHORT_TOKENS)
    return heard.total_s


@asynccontextmanager
async def _listeners(target: Target) -> AsyncIterator[None]:
    """Within the context, clients listen to long answers, which have begun if they do soon. At its end they hang up."""
    begun = [asyncio.Event() for _ in range(_NUM_CLIENTS)]
    clients = [asyncio.create_task(_listen(target, has_begun)) for has_begun in begun]
    waits = [asyncio.create_task(has_begun.wait()) for has_begun in begun]
    try:
        await asyncio.wait(waits, timeout=_ONE_BEGUN_S, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(waits, timeout=_ALL_BEGUN_S)
        yield
    finally:
        for task in (*clients, *waits):
            task.cancel()
        ended = await asyncio.gather(*clients, return_exceptions=True)
    for each in ended:
        if isinstance(each, RemoteError):
            raise each


async def _listen(target: Target, has_begun: asyncio.Event) -> None:
    """To the beginning of a long answer, and then to nothing more until it is cancelled."""
    try:
        async with (
            target.deployment.newcomer() as client,
            client.begin(prompts.long_answer(make_nonce()), max_tokens=target.max_answer),
        ):
            has_begun.set()
            await asyncio.Event().wait()
    finally:
        has_begun.set()
