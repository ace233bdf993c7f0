"""One agent's conversation in the shapes of each API, as `benchmarks.cache.dialogue` has it for chat completions."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.cache.dialogue import Asking, ChatDialogue, Event, Said, match_calls, offer
from benchmarks.cache.script import Beat, Script

from hotloop.core.errors import RemoteError
from hotloop.wire.field import Json


class Dialogue(Protocol):
    path: str

    def ask(self, beat: Beat) -> Json:
        """The body of the next request, when this was heard."""
        ...

    def hear(self, events: Sequence[Event]) -> Said:
        """What was answered; from now on it is part of the conversation."""
        ...


@dataclass(slots=True)
class ResponsesDialogue:
    """The whole input every time or, if `is_chained`, only what is new and the id of the response before."""

    script: Script
    asking: Asking
    is_chained: bool = False
    path: str = "/v1/responses"
    _items: list[Json] = field(default_factory=list)
    _output: list[Json] = field(default_factory=list)
    _last_id: str | None = None

    def ask(self, beat: Beat) -> Json:
        calls = [item["call_id"] for item in self._output if item["type"] == "function_call"]
        self._items = [] if self.is_chained else self._items + self._output
        for heard, call_id in match_calls(beat.news, calls):
            if call_id:
                self._items.append({"type": "function_call_output", "call_id": call_id, "output": heard.text})
            else:
                self._items.append({"role": "user", "content": heard.text})
        tools = [{"type": "function", **tool["function"]} for tool in self.script.tools]
        named = {"type": "function", "name": beat.tool}
        return {
            "input": [*self._items],
            "store": self.is_chained,
            "max_output_tokens": self.asking.limit(beat),
            **({"instructions": self.script.system} if self.script.system else {}),
            **({"previous_response_id": self._last_id} if self.is_chained else {}),
            **offer(tools, named if beat.tool else "none"),
            **self.asking.options(),
        }

    def hear(self, events: Sequence[Event]) -> Said:
        response = events[-1]["response"]
        if response["status"] not in ("completed", "incomplete"):
            raise RemoteError(f"a response {response['status']}: {response['error']}")
        self._output, self._last_id = response["output"], response["id"]
        usage = response["usage"]
        num_cached = usage["input_tokens_details"]["cached_tokens"]
        return Said(response["id"], usage["input_tokens"], num_cached, usage["output_tokens"])


@dataclass(slots=True)
class MessagesDialogue:
    """As Anthropic's client has it: arguments of calls are parsed, and go back as values."""

    script: Script
    asking: Asking
    path: str = "/v1/messages"
    _messages: list[Json] = field(default_factory=list)

    def ask(self, beat: Beat) -> Json:
        last = self._messages[-1]["content"] if self._messages else ()
        calls = [block["id"] for block in last if block["type"] == "tool_use"]
        blocks: list[Json] = []
        for heard, call_id in match_calls(beat.news, calls):
            if call_id:
                blocks.append({"type": "tool_result", "tool_use_id": call_id, "content": heard.text})
            else:
                blocks.append({"type": "text", "text": heard.text})
        self._messages.append({"role": "user", "content": blocks})
        functions = (tool["function"] for tool in self.script.tools)
        tools = [
            {
                "name": f["name"],
                "description": f.get("description", ""),
                "input_schema": f.get("parameters") or _NOTHING,
            }
            for f in functions
        ]
        named = {"type": "tool", "name": beat.tool, "disable_parallel_tool_use": True}
        return {
            "messages": [*self._messages],
            "max_tokens": self.asking.limit(beat),
            **({"system": self.script.system} if self.script.system else {}),
            **({"tools": tools, "tool_choice": named if beat.tool else {"type": "none"}} if tools else {}),
            **self.asking.options(),
        }

    def hear(self, events: Sequence[Event]) -> Said:
        blocks: list[Json] = []
        for event in events:
            if event["type"] == "content_block_start":
                blocks.append(
                    {**event["content_block"], "input": ""} if _is_call(event) else {**event["content_block"]}
                )
            elif event["type"] == "content_block_delta":
                is_text = event["delta"]["type"] == "text_delta"
                name, more = ("text", "text") if is_text else ("input", "partial_json")
                blocks[event["index"]][name] += event["delta"][more]
        for block in blocks:
            if block["type"] == "tool_use":
                block["input"] = _parse_input(block["input"])
        self._messages.append({"role": "assistant", "content": blocks})
        begun = next(event["message"] for event in events if event["type"] == "message_start")
        usage = next(event["usage"] for event in reversed(events) if event["type"] == "message_delta")
        num_cached = usage["cache_read_input_tokens"]
        num_prompt = usage["input_tokens"] + usage["cache_creation_input_tokens"] + num_cached
        return Said(begun["id"], num_prompt, num_cached, usage["output_tokens"])


_NOTHING: Json = {"type": "object", "properties": {}}

APIS: dict[str, Callable[[Script, Asking], Dialogue]] = {
    "chat": ChatDialogue,
    "responses": ResponsesDialogue,
    "responses, chained": lambda script, asking: ResponsesDialogue(script, asking, is_chained=True),
    "messages": MessagesDialogue,
}
"""The ways to hold a conversation."""


def _is_call(event: Event) -> bool:
    return bool(event["content_block"]["type"] == "tool_use")


def _parse_input(text: str) -> Any:
    """The arguments of a call; none of one that was cut off."""
    try:
        return json.loads(text)
    except ValueError:
        return {}
