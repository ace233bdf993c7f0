"""How much of a prompt each replica is known to hold: what they publish, and the tokens of the prompt.

The tokens come from whoever can tell them, such as a replica's `/tokenize`, and are not waited for: a request that has
to be placed without them is placed by what is probable. Knows no HTTP.
"""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from hotloop.core.errors import HotloopError
from hotloop.router.placement.events import KvEvents
from hotloop.router.placement.exact import ExactIndex

DEADLINE_S = 0.05
"""How long a request waits for its tokens."""
MAX_PROMPTS = 128
"""How many prompts' tokens are remembered."""

_ASKED = ("model", "messages", "tools", "chat_template_kwargs")

Tokenize = Callable[[Mapping[str, Any]], Awaitable[list[int] | None]]
"""The tokens of what vLLM's `/tokenize` takes; None if they cannot be told."""


class ExactState:
    """The replicas that publish what they hold, and what they hold of a prompt."""

    def __init__(self, tokenize: Tokenize, *, deadline_s: float = DEADLINE_S) -> None:
        self.index = ExactIndex()
        self._tokenize = tokenize
        self._deadline_s = deadline_s
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._prompts: OrderedDict[bytes, array[int]] = OrderedDict()

    def add_replica(self, name: str, endpoint: str, replay: str | None = None) -> None:
        """Follow a replica from now on; in a running event loop."""
        events = KvEvents(self.index, name, endpoint, replay)
        self.index.add_replica(name)
        self._followers[name] = asyncio.create_task(events.run(), name=f"kv-events {name}")

    async def remove_replica(self, name: str) -> None:
        follower = self._followers.pop(name, None)
        if follower:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)
            self.index.remove_replica(name)

    async def aclose(self) -> None:
        for name in list(self._followers):
            await self.remove_replica(name)

    @property
    def has_replicas(self) -> bool:
        return bool(self._followers)

    async def matched(self, body: Mapping[str, Any]) -> dict[str, int]:
        """How many tokens of a prompt need not be read, by replica; of those who are not in it nothing is known.

        The body is one of OpenAI's chats or completions. A prompt with a salt shares with nobody who publishes.
        """
        token_ids = await self._token_ids(body)
        return self.index.match(token_ids) if token_ids else {}

    async def matched_shares(self, body: Mapping[str, Any]) -> dict[str, float]:
        """The same as shares of the prompt, for whoever counts tokens otherwise."""
        token_ids = await self._token_ids(body)
        if not token_ids:
            return {}
        return {name: num_matched / len(token_ids) for name, num_matched in self.index.match(token_ids).items()}

    async def _token_ids(self, body: Mapping[str, Any]) -> "array[int] | None":
        if not self._followers or body.get("cache_salt"):
            return None
        question = ask_tokens(body)
        if question is None or isinstance(question, array):
            return question
        key = blake2b(msgspec.json.encode(question), digest_size=16).digest()
        token_ids = self._prompts.get(key)
        if token_ids is None:
            try:
                async with asyncio.timeout(self._deadline_s):
                    told = await self._tokenize(question)
            except (TimeoutError, HotloopError):
                return None
            token_ids = array("i", told or ())
            if not token_ids:
                return None
            self._prompts[key] = token_ids
            if len(self._prompts) > MAX_PROMPTS:
                self._prompts.popitem(last=False)
        self._prompts.move_to_end(key)
        return token_ids


def ask_tokens(body: Mapping[str, Any]) -> "Mapping[str, Any] | array[int] | None":
    """What `/tokenize` is to be asked for the prompt of a body; its tokens if it has them; None if it has no prompt."""
    prompt = body.get("prompt")
    if isinstance(body.get("messages"), list):
        asked = {name: body[name] for name in _ASKED if body.get(name) is not None}
        return {**asked, "add_generation_prompt": True}
    if isinstance(prompt, str):
        return {name: body[name] for name in ("model", "prompt") if name in body}
    if isinstance(prompt, list) and all(isinstance(token_id, int) for token_id in prompt):
        try:
            return array("i", prompt)
        except OverflowError:
            return None
    return None
