"""Probes: each does something to a deployment and says what happened, as facts. No probe judges.

Most ask and listen: what is answered, and how long that takes. One goes away in the middle of long answers, and one
comes as a stranger: who gets an answer, and at which addresses?
"""

import asyncio
import socket
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import takewhile
from urllib.parse import urlsplit

import msgspec

from hotloop.core.errors import RemoteError
from hotloop.core.structs import compiled
from hotloop.doctor import prompts
from hotloop.doctor.deployment import ChatMessages, Deployment, ErrorAnswer
from hotloop.doctor.facts import (
    Batched,
    CallCounts,
    Connected,
    ExposureProbe,
    HungUp,
    KeptPrefix,
    Repeated,
    TimedAnswer,
    TurnsProbe,
)
from hotloop.doctor.target import Target, make_nonce, read_running
from hotloop.wire.field import Json

_NUM_TOGETHER = 8
_NUM_LATER = 3
_NOT_TAKEN = (400, 422)
_CALL_TOKENS = 96  # enough for two calls of the lamp's tool; an answer in words is cut there
_ENOUGH_S = 10.0  # after so long a probe begins no other round
_NUM_CLIENTS = 3
_SHORT_TOKENS = 16
_NUM_TIMED = 3
_POLL_S = 0.1
_NOTICE_S = 3.0  # for the deployment to see that clients went away
_ONE_BEGUN_S = 5.0  # where answers are held back, none will have
_ALL_BEGUN_S = 2.0  # where they are answered one after the other, not all of them will have


@compiled
class _Tokenized(msgspec.Struct):
    tokens: list[int]


async def probe_repeats(target: Target, num_rounds: int = 3) -> list[Repeated]:
    """Of a deployment that is slow, fewer."""
    rounds: list[Repeated] = []
    began_at = time.perf_counter()
    while len(rounds) < num_rounds and (not rounds or time.perf_counter() - began_at < _ENOUGH_S):
        short = await target.deployment.ask(prompts.long_prompt(40, make_nonce()), max_tokens=4)
        messages = prompts.long_prompt(target.prompt_chars, make_nonce())
        first, second = [await target.deployment.ask(messages, max_tokens=4) for _ in range(2)]
        rounds.append(Repeated(first, second, short))
    if rounds[-1].second.num_cached == 0:
        later = [await target.deployment.ask(messages, max_tokens=4) for _ in range(_NUM_LATER)]
        rounds[-1] = Repeated(first, second, short, later)
    return rounds


async def probe_stream(target: Target, num_rounds: int = 2) -> list[TimedAnswer]:
    return [
        await target.deployment.ask(prompts.long_answer(make_nonce()), max_tokens=target.answer_tokens)
        for _ in range(num_rounds)
    ]


async def probe_connection(client: Deployment) -> list[TimedAnswer]:
    messages = [prompts.user("Say yes.")]
    return [await client.ask(messages, max_tokens=4, is_streamed=is_streamed) for is_streamed in (True, False) * 2]


async def watch_idle(client: Deployment, answers: Sequence[TimedAnswer], idle_s: float) -> Connected:
    """Sends nothing, so that others may be busy meanwhile."""
    await asyncio.sleep(idle_s)
    return Connected(len(answers), len({each.client for each in answers}), idle_s, client.is_connected)


async def probe_batching(target: Target, alone: Sequence[TimedAnswer]) -> Batched:
    """`alone` are answers to the same sort of question, one at a time."""

    async def ask() -> TimedAnswer:
        return await target.deployment.ask(prompts.long_answer(make_nonce()), max_tokens=target.answer_tokens)

    began_at = time.perf_counter()
    together = await asyncio.gather(*(ask() for _ in range(_NUM_TOGETHER)))
    return Batched(alone, together, time.perf_counter() - began_at)


async def probe_calls(target: Target) -> tuple[CallCounts, CallCounts]:
    """Calls that are demanded, and calls that the model may make, as agents have it."""
    return await _call(target, prompts.DEMAND_LAMP), await _call(target, prompts.OFFER_LAMP)


async def _call(target: Target, options: Json) -> CallCounts:
    answers: list[TimedAnswer] = []
    began_at = time.perf_counter()
    for messages in prompts.wishes():
        if answers and time.perf_counter() - began_at > _ENOUGH_S:
            break
        try:
            answers += [await target.deployment.ask(messages, max_tokens=_CALL_TOKENS, is_streamed=False, **options)]
        except ErrorAnswer as error:
            if error.status not in _NOT_TAKEN:
                raise
            return CallCounts(len(answers) + 1, 0, 0, refusal=str(error))
    calls = [call for each in answers for call in each.calls]
    invalid = [f"{name} {arguments}" for name, arguments in calls if not prompts.is_lamp_call(name, arguments)]
    return CallCounts(len(answers), len(calls), len(calls) - len(invalid), invalid[0] if invalid else "")


async def probe_turns(target: Target) -> TurnsProbe:
    messages = prompts.opening(target.prompt_chars, make_nonce())
    first = await target.deployment.ask(messages, max_tokens=target.answer_tokens)
    following = prompts.follow(messages, first.text)
    second = await target.deployment.ask(following, max_tokens=4)
    short = prompts.opening(200, make_nonce())
    kept = [
        await _compare(target.deployment, "an answer", messages, following, {}),
        await _compare(target.deployment, "a tool call", short, prompts.follow_call(short), {"tools": [prompts.LAMP]}),
    ]
    return TurnsProbe(first, second, [each for each in kept if each])


async def _compare(
    deployment: Deployment, what: str, before: ChatMessages, after: ChatMessages, rest: Json
) -> KeptPrefix | None:
    """None where the deployment does not show the ids of a chat."""
    model = await deployment.find_model()
    pages = [
        await deployment.get("/tokenize", _Tokenized, {"model": model, "messages": messages, **rest})
        for messages in (before, after)
    ]
    if not pages[0] or not pages[1]:
        return None
    pairs = zip(pages[0].tokens, pages[1].tokens, strict=False)
    num_common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return KeptPrefix(what, len(pages[0].tokens), num_common)


async def probe_hang_up(target: Target) -> HungUp:
    """By the deployment's own count where it has one, or else by how long others wait."""
    num_before = await read_running(target.deployment)
    if num_before is not None:
        hung = await _count(target, num_before)
        if hung.num_during is not None and hung.num_during > num_before:
            return hung
    return await _time(target)


async def _count(target: Target, num_before: int) -> HungUp:
    async with _listeners(target):
        num_during = await read_running(target.deployment)
    left_at = time.perf_counter()
    await _ask_shortly(target)  # some count only when they compute
    num_after = await read_running(target.deployment)
    while (num_after or 0) > num_before and time.perf_counter() - left_at < _NOTICE_S:
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
    answer = await target.deployment.ask(prompts.long_answer(make_nonce()), max_tokens=_SHORT_TOKENS)
    return answer.total_s


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


async def probe_exposure(target: Target, addresses: Sequence[str] | None = None) -> ExposureProbe:
    """`addresses` are those of this machine that are tried where the deployment runs on it."""
    messages = [prompts.user("Say yes.")]
    parts = urlsplit(target.deployment.url)
    server = (await target.deployment.ask(messages, max_tokens=1)).server
    async with target.deployment.newcomer(has_key=False) as stranger:
        status = await stranger.get_status(messages)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    others = [each for each in (own_addresses() if addresses is None else addresses) if each != server]
    is_here = server in ("127.0.0.1", "::1")
    answering = [each for each in others if is_here and await _answers(each, port)]
    return ExposureProbe(server, parts.scheme == "https", status, answering)


async def _answers(address: str, port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), timeout=1.0)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True


def own_addresses() -> list[str]:
    """The address that this machine would be seen with. Connecting a datagram socket sends nothing."""
    found = []
    for family, documentation in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((documentation, 9))
            found.append(str(probe.getsockname()[0]))
    return found
