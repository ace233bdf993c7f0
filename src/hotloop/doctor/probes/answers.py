"""The probes that listen: what is asked, how it is answered, and how long that takes."""

import asyncio
import time
from collections.abc import Sequence
from itertools import takewhile

import msgspec

from hotloop.doctor import prompts
from hotloop.doctor.facts import Batched, Called, Connected, Heard, KeptPrefix, Repeated, Turned
from hotloop.doctor.target import Target, make_nonce
from hotloop.doctor.wire.deployment import Answered, ChatMessages, Deployment, Json

_NUM_TOGETHER = 8
_NUM_LATER = 3
_NOT_TAKEN = (400, 422)
_CALL_TOKENS = 96  # two of the lamp's; a model that would rather talk is not heard out
_ENOUGH_S = 10.0  # after so long a probe begins no other round


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


async def probe_stream(target: Target, num_rounds: int = 2) -> list[Heard]:
    return [
        await target.deployment.ask(prompts.long_answer(make_nonce()), max_tokens=target.answer_tokens)
        for _ in range(num_rounds)
    ]


async def probe_connection(client: Deployment) -> list[Heard]:
    """Requests one after the other, streamed and whole."""
    messages = [prompts.user("Say yes.")]
    return [await client.ask(messages, max_tokens=4, is_streamed=is_streamed) for is_streamed in (True, False) * 2]


async def watch_idle(client: Deployment, heard: Sequence[Heard], idle_s: float) -> Connected:
    """Sends nothing, so that others may be busy meanwhile."""
    await asyncio.sleep(idle_s)
    return Connected(len(heard), len({each.client for each in heard}), idle_s, client.is_connected)


async def probe_batching(target: Target, alone: Sequence[Heard]) -> Batched:
    """`alone` are answers to the same sort of question, one at a time."""

    async def ask() -> Heard:
        return await target.deployment.ask(prompts.long_answer(make_nonce()), max_tokens=target.answer_tokens)

    began_at = time.perf_counter()
    together = await asyncio.gather(*(ask() for _ in range(_NUM_TOGETHER)))
    return Batched(alone, together, time.perf_counter() - began_at)


async def probe_calls(target: Target) -> tuple[Called, Called]:
    """Calls that are demanded, and calls that the model may make, as agents have it."""
    return await _call(target, prompts.DEMAND_LAMP), await _call(target, prompts.OFFER_LAMP)


async def _call(target: Target, options: Json) -> Called:
    """Of a deployment that is slow, fewer."""
    heard: list[Heard] = []
    began_at = time.perf_counter()
    for messages in prompts.wishes():
        if heard and time.perf_counter() - began_at > _ENOUGH_S:
            break
        try:
            heard += [await target.deployment.ask(messages, max_tokens=_CALL_TOKENS, is_streamed=False, **options)]
        except Answered as error:
            if error.status not in _NOT_TAKEN:
                raise
            return Called(len(heard) + 1, 0, 0, refusal=str(error))
    calls = [call for each in heard for call in each.calls]
    invalid = [f"{name} {arguments}" for name, arguments in calls if not prompts.is_lamp_call(name, arguments)]
    return Called(len(heard), len(calls), len(calls) - len(invalid), invalid[0] if invalid else "")


async def probe_turns(target: Target) -> Turned:
    messages = prompts.opening(target.prompt_chars, make_nonce())
    first = await target.deployment.ask(messages, max_tokens=target.answer_tokens)
    following = prompts.follow(messages, first.text)
    second = await target.deployment.ask(following, max_tokens=4)
    short = prompts.opening(200, make_nonce())
    kept = [
        await _compare(target.deployment, "an answer", messages, following, {}),
        await _compare(target.deployment, "a tool call", short, prompts.follow_call(short), {"tools": [prompts.LAMP]}),
    ]
    return Turned(first, second, [each for each in kept if each])


async def _compare(
    deployment: Deployment, what: str, before: ChatMessages, after: ChatMessages, rest: Json
) -> KeptPrefix | None:
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
    return KeptPrefix(what, len(pages[0].tokens), num_common)
