"""The probe that goes away: long answers are begun and given up, and it is looked whether the deployment goes on."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hotloop.bench.client import ServerFailed
from hotloop.bench.doctor import prompts
from hotloop.bench.doctor.facts import HungUp
from hotloop.bench.doctor.patient import Patient, make_nonce
from hotloop.bench.doctor.recognise import read_running

_NUM_CLIENTS = 3
_SHORT_TOKENS = 16
_NUM_TIMED = 3
_POLL_S = 0.1
_ONE_BEGUN_S = 5.0  # where answers are held back, none will have
_ALL_BEGUN_S = 2.0  # where they are answered one after the other, not all of them will have


async def probe_hang_up(patient: Patient, notice_s: float = 3.0) -> HungUp:
    """By the deployment's own count where it has one, or else by how long others wait."""
    num_before = await read_running(patient.deployment)
    if num_before is not None:
        hung = await _count(patient, num_before, notice_s)
        if hung.num_during is not None and hung.num_during > num_before:
            return hung
    return await _time(patient)


async def _count(patient: Patient, num_before: int, notice_s: float) -> HungUp:
    async with _listeners(patient):
        num_during = await read_running(patient.deployment)
    left_at = time.perf_counter()
    await _ask_shortly(patient)  # some count only when they compute
    num_after = await read_running(patient.deployment)
    while (num_after or 0) > num_before and time.perf_counter() - left_at < notice_s:
        await asyncio.sleep(_POLL_S)
        num_after = await read_running(patient.deployment)
    return HungUp(_NUM_CLIENTS, num_before, num_during, num_after, time.perf_counter() - left_at)


async def _time(patient: Patient) -> HungUp:
    alone_s = await _time_answers(patient)
    async with _listeners(patient):
        amid_s = await _time_answers(patient)
    following_s = await _time_answers(patient)
    return HungUp(_NUM_CLIENTS, alone_s=alone_s, amid_s=amid_s, following_s=following_s)


async def _time_answers(patient: Patient) -> float:
    return statistics.median([await _ask_shortly(patient) for _ in range(_NUM_TIMED)])


async def _ask_shortly(patient: Patient) -> float:
    heard = await patient.deployment.ask(prompts.long_answer(make_nonce()), max_tokens=_SHORT_TOKENS)
    return heard.total_s


@asynccontextmanager
async def _listeners(patient: Patient) -> AsyncIterator[None]:
    """Within the context, clients listen to long answers, which have begun if they do soon. At its end they hang up."""
    begun = [asyncio.Event() for _ in range(_NUM_CLIENTS)]
    clients = [asyncio.create_task(_listen(patient, has_begun)) for has_begun in begun]
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
        if isinstance(each, ServerFailed):
            raise each


async def _listen(patient: Patient, has_begun: asyncio.Event) -> None:
    """To the beginning of a long answer, and then to nothing more until it is cancelled."""
    try:
        async with (
            patient.deployment.newcomer() as client,
            client.begin(prompts.long_answer(make_nonce()), max_tokens=patient.max_answer),
        ):
            has_begun.set()
            await asyncio.Event().wait()
    finally:
        has_begun.set()
