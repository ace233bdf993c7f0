"""Probes: each does something to a deployment and says what happened, as facts. No probe judges.

Prompts carry a nonce, so that neither an earlier examination nor another probe has warmed anything.
"""

import asyncio
import secrets
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from urllib.parse import urlsplit

import msgspec

from hotloop.bench.client import ServerFailed
from hotloop.bench.doctor import prompts
from hotloop.bench.doctor.facts import Batched, Called, Connected, Exposed, Heard, HungUp, Kept, Repeated, Turned
from hotloop.bench.doctor.wire import ChatMessages, Deployment, Json
from hotloop.router.kinds import Kind, kind_by_metrics, kind_by_url, read_load

_ROUTER = Kind(name="router", running="hotloop_router_running", waiting="hotloop_router_waiting")
_WANTED_TOKENS = 2000  # enough for what hosted APIs cache at all, and for the time to show
_ANSWER_TOKENS = 64
_NUM_TOGETHER = 8
_NUM_HANGING_UP = 3
_MAX_ANSWER = 2000
_POLL_S = 0.1


class _Tokenized(msgspec.Struct):
    tokens: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long probes wait."""

    idle_s: float = 6.0
    """Between two requests, as if a tool ran."""
    notice_s: float = 3.0
    """For the deployment to notice that clients went away."""


@dataclass(frozen=True, slots=True)
class Patient:
    """A deployment and what had to be known of it first."""

    deployment: Deployment
    kind: str
    prompt_chars: int
    """Of a long prompt that leaves room for an answer."""
    max_answer: int


async def meet(deployment: Deployment) -> Patient:
    """A first short request tells whether it answers at all and how long its tokens are."""
    await deployment.find_model()
    text = prompts.long_text(1200, _nonce())
    heard = await deployment.ask([prompts.user(text)], max_tokens=4)
    chars_per_token = len(text) / heard.num_prompt if heard.num_prompt else 4.0
    context = await deployment.find_context() or 3 * _WANTED_TOKENS
    num_tokens = min(_WANTED_TOKENS, context // 3)
    kind = kind_by_url(deployment.url) or kind_by_metrics(await deployment.get_text("/metrics"))
    name = kind.name if kind else "openai_compatible"
    return Patient(deployment, name, int(num_tokens * chars_per_token), min(_MAX_ANSWER, context // 2))


async def probe_repeats(patient: Patient, num_rounds: int = 3) -> list[Repeated]:
    rounds = []
    for _ in range(num_rounds):
        messages = prompts.long_prompt(patient.prompt_chars, _nonce())
        first, second = [await patient.deployment.ask(messages, max_tokens=4) for _ in range(2)]
        rounds.append(Repeated(first, second))
    return rounds


async def probe_stream(patient: Patient, num_rounds: int = 2) -> list[Heard]:
    return [
        await patient.deployment.ask(prompts.long_answer(_nonce()), max_tokens=_ANSWER_TOKENS)
        for _ in range(num_rounds)
    ]


async def probe_connections(patient: Patient, pace: Pace) -> Connected:
    messages = [prompts.user("Say yes.")]
    async with patient.deployment.newcomer() as client:
        heard = [await client.ask(messages, max_tokens=4, is_streamed=is_streamed) for is_streamed in (True, False) * 2]
        await asyncio.sleep(pace.idle_s)
        last = await client.ask(messages, max_tokens=4)
    connections = {each.client for each in heard}
    return Connected(len(heard), len(connections), pace.idle_s, last.client == heard[-1].client)


async def probe_batching(patient: Patient) -> Batched:
    async def ask() -> Heard:
        return await patient.deployment.ask(prompts.long_answer(_nonce()), max_tokens=_ANSWER_TOKENS)

    alone = await ask()
    began_at = time.perf_counter()
    together = await asyncio.gather(*(ask() for _ in range(_NUM_TOGETHER)))
    return Batched(alone, together, time.perf_counter() - began_at)


async def probe_calls(patient: Patient) -> Called:
    heard = [
        await patient.deployment.ask(messages, max_tokens=256, is_streamed=False, **prompts.CALL_LAMP)
        for messages in prompts.wishes()
    ]
    calls = [call for each in heard for call in each.calls]
    invalid = [f"{name} {arguments}" for name, arguments in calls if not prompts.is_lamp_call(name, arguments)]
    return Called(len(heard), len(calls), len(calls) - len(invalid), invalid[0] if invalid else "")


async def probe_turns(patient: Patient) -> Turned:
    messages = prompts.opening(patient.prompt_chars, _nonce())
    first = await patient.deployment.ask(messages, max_tokens=_ANSWER_TOKENS)
    following = prompts.follow(messages, first.text)
    second = await patient.deployment.ask(following, max_tokens=4)
    short = prompts.opening(200, _nonce())
    kept = [
        await _compare(patient.deployment, "an answer", messages, following, {}),
        await _compare(patient.deployment, "a tool call", short, prompts.follow_call(short), {"tools": [prompts.LAMP]}),
    ]
    return Turned(first, second, [each for each in kept if each])


async def _compare(
    deployment: Deployment, what: str, before: ChatMessages, after: ChatMessages, rest: Json
) -> Kept | None:
    """None where the deployment does not show the ids of a chat."""
    model = await deployment.find_model()
    pages = [
        await deployment.post("/tokenize", {"model": model, "messages": messages, **rest}, _Tokenized)
        for messages in (before, after)
    ]
    if not pages[0] or not pages[1]:
        return None
    pairs = zip(pages[0].tokens, pages[1].tokens, strict=False)
    num_common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return Kept(what, len(pages[0].tokens), num_common)


async def probe_hang_up(patient: Patient, pace: Pace) -> HungUp:
    """Begin long answers, go away once one of them has begun, and see whether the deployment goes on with them."""
    deployment = patient.deployment
    alone = await deployment.ask(prompts.long_answer(_nonce()), max_tokens=16)
    num_before = await _read_running(deployment)
    has_begun = asyncio.Event()
    clients = [asyncio.create_task(_listen(patient, has_begun)) for _ in range(_NUM_HANGING_UP)]
    await has_begun.wait()
    num_during = await _read_running(deployment)
    for client in clients:
        client.cancel()
    for ended in await asyncio.gather(*clients, return_exceptions=True):
        if isinstance(ended, ServerFailed):
            raise ended
    left_at = time.perf_counter()
    following = await deployment.ask(prompts.long_answer(_nonce()), max_tokens=16)
    num_after = await _read_running(deployment)
    while num_before is not None and (num_after or 0) > num_before and time.perf_counter() - left_at < pace.notice_s:
        await asyncio.sleep(_POLL_S)
        num_after = await _read_running(deployment)
    waited_s = time.perf_counter() - left_at
    return HungUp(_NUM_HANGING_UP, num_before, num_during, num_after, waited_s, alone.total_s, following.total_s)


async def _listen(patient: Patient, has_begun: asyncio.Event) -> None:
    """To the beginning of a long answer, and then to nothing more until it is cancelled."""
    try:
        async with (
            patient.deployment.newcomer() as client,
            client.begin(prompts.long_answer(_nonce()), max_tokens=patient.max_answer),
        ):
            has_begun.set()
            await asyncio.Event().wait()
    finally:
        has_begun.set()


async def _read_running(deployment: Deployment) -> int | None:
    page = await deployment.get_text("/metrics")
    kinds = [kind for kind in (kind_by_metrics(page), _ROUTER) if kind]
    return next((load for kind in kinds if (load := read_load(kind, page)) is not None), None)


async def probe_exposure(patient: Patient, addresses: Sequence[str] | None = None) -> Exposed:
    """`addresses` are those of this machine that are tried where the deployment runs on it."""
    messages = [prompts.user("Say yes.")]
    parts = urlsplit(patient.deployment.url)
    server = (await patient.deployment.ask(messages, max_tokens=1)).server
    async with patient.deployment.newcomer(has_key=False) as stranger:
        status = await stranger.get_status(messages)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    others = [each for each in (own_addresses() if addresses is None else addresses) if each != server]
    is_here = server in ("127.0.0.1", "::1")
    answering = [each for each in others if is_here and await _answers(each, port)]
    return Exposed(server, parts.scheme == "https", status, answering)


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


def _nonce() -> str:
    return secrets.token_hex(4)
