"""One agent's conversation by chat completions: what is sent, and what comes back and is sent again.

An answer returns exactly as it came. Pure: whoever carries the bodies and the events is elsewhere.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.cache.script import Beat, Heard, Script
from hotloop.wire.field import Json

Event = Mapping[str, Any]

_CALL_TOKENS = 48  # enough for its brackets and names


@dataclass(frozen=True, slots=True)
class Said:
    """What is known of an answer."""

    id: str
    num_prompt: int
    num_cached: int
    num_output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How every turn is asked for. Conversations with another salt share nothing with these.

    `max_tokens` is for texts; a call may have some more, since one that is cut is no call.
    """

    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    salt: str

    def limit(self, beat: Beat) -> int:
        return self.max_tokens + _CALL_TOKENS if beat.tool else self.max_tokens

    def options(self) -> Json:
        return {"temperature": self.temperature, "seed": self.seed, "stream": True, "cache_salt": self.salt}


@dataclass(slots=True)
class ChatDialogue:
    """`messages` is the history as a client keeps it."""

    script: Script
    asking: Asking
    messages: list[Json] = field(default_factory=list)
    path: str = "/v1/chat/completions"

    def __post_init__(self) -> None:
        if self.script.system:
            self.messages.append({"role": "system", "content": self.script.system})

    def ask(self, beat: Beat) -> Json:
        calls = [call["id"] for call in self.messages[-1].get("tool_calls", ())] if self.messages else []
        for heard, call_id in match_calls(beat.news, calls):
            role: Json = {"role": "tool", "tool_call_id": call_id} if call_id else {"role": "user"}
            self.messages.append(role | {"content": heard.text})
        named = {"type": "function", "function": {"name": beat.tool}}
        return {
            "messages": [*self.messages],
            "max_tokens": self.asking.limit(beat),
            "stream_options": {"include_usage": True},
            **offer([*self.script.tools], named if beat.tool else "none"),
            **self.asking.options(),
        }

    def hear(self, events: Sequence[Event]) -> Said:
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        text = "".join(delta.get("content") or "" for delta in deltas)
        calls: list[Json] = []
        for piece in (piece for delta in deltas for piece in delta.get("tool_calls") or ()):
            if piece["index"] == len(calls):
                calls.append({"id": piece["id"], "type": "function", "function": {"name": "", "arguments": ""}})
            for name, more in piece["function"].items():
                calls[piece["index"]]["function"][name] += more or ""
        answer: Json = {"role": "assistant", "content": text or (None if calls else "")}
        self.messages.append(answer | ({"tool_calls": calls} if calls else {}))
        usage = events[-1]["usage"]
        num_cached = usage["prompt_tokens_details"]["cached_tokens"]
        return Said(events[-1]["id"], usage["prompt_tokens"], num_cached, usage["completion_tokens"])


def offer(tools: list[Json], choice: Any) -> Json:
    """OpenAI's words for what may be called."""
    return {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False} if tools else {}


def match_calls(news: Sequence[Heard], call_ids: Iterable[str]) -> Iterable[tuple[Heard, str]]:
    """Every call with its result, first; what belongs to no call is said by the user."""
    results = deque(heard for heard in news if heard.is_result)
    for call_id in call_ids:
        yield results.popleft() if results else Heard("There is no result."), call_id
    for heard in (*results, *(heard for heard in news if not heard.is_result)):
        yield heard, ""
