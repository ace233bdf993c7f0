"""How much of a prompt each replica is known to hold: what they publish, and the tokens of the prompt.

The tokens come from whoever can tell them, such as a replica's `/tokenize`, and are not waited for: a request that has
to be placed without them is placed by what is probable. Knows no HTTP.
"""

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from cachetools import FIFOCache

from hotloop.core.errors import HotloopError
from hotloop.router.placement.events import KvEvents
from hotloop.router.placement.exact import HeldBlocks, match

DEADLINE_S = 0.05
MAX_PROMPTS = 128

_TOKENIZED = ("model", "messages", "tools", "chat_template_kwargs")

Tokenize = Callable[[Mapping[str, Any]], Awaitable[list[int] | None]]
"""The tokens of what vLLM's `/tokenize` takes; None if they cannot be told."""


class ExactState:
    """The replicas that publish what they hold, and what they hold of a prompt."""

    def __init__(self, tokenize: Tokenize, *, deadline_s: float = DEADLINE_S) -> None:
        self.held: dict[str, HeldBlocks] = {}
        self._tokenize = tokenize
        self._deadline_s = deadline_s
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._prompts: FIFOCache[bytes, array[int]] = FIFOCache(MAX_PROMPTS)

    def add_replica(self, name: str, endpoint: str, replay: str | None = None) -> None:
        held = HeldBlocks()
        events = KvEvents(held, name, endpoint, replay)
        self.held[name] = held
        self._followers[name] = asyncio.create_task(events.run(), name=f"kv-events {name}")

    def remove_replica(self, name: str) -> Coroutine[Any, Any, None]:
        """At once, so that another may take its name; its sockets are closed when what this returns was awaited."""
        self.held.pop(name, None)
        follower = self._followers.pop(name, None)
        if follower:
            follower.cancel()
        return _end(follower)

    async def aclose(self) -> None:
        for name in list(self._followers):
            await self.remove_replica(name)

    def match(self, token_ids: Sequence[int]) -> dict[str, int]:
        """How many tokens of a prompt are cached, by replica; of those who are not in it nothing is known."""
        return match(self.held, token_ids)

    async def token_ids(self, body: Mapping[str, Any]) -> "array[int] | None":
        """The prompt of one of OpenAI's chats or completions; None if it cannot be told in time, or if it has a salt,
        which it shares with nobody who publishes."""
        if not self.held or body.get("cache_salt"):
            return None
        question = ask_tokens(body)
        if question is None or isinstance(question, array):
            return question
        key = blake2b(msgspec.json.encode(question), digest_size=16).digest()
        token_ids = self._prompts.get(key)
        if token_ids is None:
            try:
                async with asyncio.timeout(self._deadline_s):
                    token_ids = array("i", await self._tokenize(question) or ())
            except (TimeoutError, HotloopError):
                return None
        if token_ids:
            self._prompts[key] = token_ids
        return token_ids or None


async def _end(task: asyncio.Task[None] | None) -> None:
    if task:
        await asyncio.gather(task, return_exceptions=True)


def ask_tokens(body: Mapping[str, Any]) -> "Mapping[str, Any] | array[int] | None":
    """What `/tokenize` is to be asked for the prompt of a body; its tokens if it has them; None if it has no prompt."""
    prompt = body.get("prompt")
    if isinstance(body.get("messages"), list):
        given = {name: body[name] for name in _TOKENIZED if body.get(name) is not None}
        return {**given, "add_generation_prompt": True}
    if isinstance(prompt, str):
        return {name: body[name] for name in ("model", "prompt") if name in body}
    if isinstance(prompt, list) and all(isinstance(token_id, int) for token_id in prompt):
        try:
            return array("i", prompt)
        except OverflowError:
            return None
    return None
