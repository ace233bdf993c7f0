"""What clients do that breaks a prefix, as pure functions on the body of a chat request.

Each is given the number of the request, so that what changes with every request does, and is the same in every run.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from hotloop.wire.field import Json

Break = Callable[[Json, int], Json]
"""The body as it is sent instead, in the request of that number."""

_BEGAN_AT = datetime(2026, 6, 9, 10, 0, tzinfo=UTC)
_VALUES = ("enum", "const", "default", "examples")
_LATE = "The customer has been verified. Keep your answers short from now on."


@dataclass(frozen=True, slots=True)
class Breaker:
    """`group` is what it is asked for by. Whether hotloop can help, and at which temperature answers are written."""

    name: str
    group: str
    apply: Break
    can_help: bool = True
    temperature: float = 0.0


def leave(body: Json, number: int) -> Json:
    """Nothing is broken."""
    return body


def top(word: Callable[[datetime], str], body: Json, number: int) -> Json:
    """Something with the time in it before everything else in the system message."""
    line = word(_BEGAN_AT + timedelta(seconds=37 * number))
    system, rest = _split_system(body["messages"])
    return body | {"messages": [{"role": "system", "content": line + system}, *rest]}


def shuffle_tools(body: Json, number: int) -> Json:
    """The tools in another order every time, as they come out of a set or several servers at once."""
    tools = [*body.get("tools", ())]
    random.Random(number).shuffle(tools)
    return body | {"tools": tools} if tools else body


def shuffle_keys(body: Json, number: int) -> Json:
    """The keywords of each schema in another order every time; names of properties keep theirs."""
    rng = random.Random(number)
    tools = [_with_parameters(tool, partial(_shuffle_schema, rng)) for tool in body.get("tools", ())]
    return body | {"tools": tools} if tools else body


def say_late(body: Json, number: int) -> Json:
    """A system message before the user's second turn; it stays there."""
    messages: list[Json] = body["messages"]
    answered = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    place = next((i for i in range(answered, len(messages)) if messages[i]["role"] == "user"), None)
    if place is None:
        return body
    return body | {"messages": [*messages[:place], {"role": "system", "content": _LATE}, *messages[place:]]}


def offer_late(body: Json, number: int) -> Json:
    """A third of the tools are there from the second turn on only; any may be called, or none."""
    tools = body.get("tools", ())
    is_first = all(message["role"] != "assistant" for message in body["messages"])
    shown = tools[: -(-2 * len(tools) // 3)] if is_first else tools
    return body | {"tools": shown, "tool_choice": "auto"} if tools else body


def rewrite_arguments(body: Json, number: int) -> Json:
    """Arguments parsed and written anew, with other spaces than the model's."""
    return body | {"messages": [_rewrite_message(message) for message in body["messages"]]}


def _one_line(now: datetime) -> str:
    return f"Current date and time: {now:%A, %B %d, %Y, %I:%M:%S %p} +00:00\n\n"


def _billing(now: datetime) -> str:
    return (
        f"x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli; cch={int(now.timestamp()) % 0xFFFFF:05x};\n"
    )


def _unlisted(now: datetime) -> str:
    return f"[{now:%H:%M:%S} request {int(now.timestamp()) % 0xFFFF:04x}]\n\n"


BREAKERS = (
    Breaker("none", "none", leave),
    Breaker("time, one line", "timestamp", partial(top, _one_line)),
    Breaker("billing header", "timestamp", partial(top, _billing)),
    Breaker("time, unlisted", "timestamp", partial(top, _unlisted), can_help=False),
    Breaker("tools shuffled", "tools", shuffle_tools),
    Breaker("schema keys shuffled", "tools", shuffle_keys),
    Breaker("tools late", "late-tools", offer_late),
    Breaker("late system turn", "late-system", say_late),
    Breaker("arguments rewritten", "retokenised", rewrite_arguments),
    # Hot enough that a model cuts words otherwise than its tokenizer would; cold ones seldom do.
    Breaker("retokenised", "retokenised", leave, temperature=1.5),
)


def _split_system(messages: list[Json]) -> tuple[str, list[Json]]:
    if messages and messages[0]["role"] == "system":
        return messages[0]["content"], messages[1:]
    return "", messages


def _with_parameters(tool: Json, change: Callable[[Any], Any]) -> Json:
    function = tool["function"]
    return tool | {"function": function | {"parameters": change(function.get("parameters"))}}


def _shuffle_schema(rng: random.Random, schema: Any) -> Any:
    if isinstance(schema, list):
        return [_shuffle_schema(rng, part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    keywords = [*schema]
    rng.shuffle(keywords)
    return {keyword: _shuffle_part(rng, keyword, schema[keyword]) for keyword in keywords}


def _shuffle_part(rng: random.Random, keyword: str, part: Any) -> Any:
    if keyword == "properties" and isinstance(part, Mapping):
        return {name: _shuffle_schema(rng, inner) for name, inner in part.items()}
    if keyword == "required" and isinstance(part, list):
        return rng.sample(part, len(part))
    return part if keyword in _VALUES else _shuffle_schema(rng, part)


def _rewrite_message(message: Json) -> Json:
    if not message.get("tool_calls"):
        return message
    return message | {"tool_calls": [_rewrite_call(call) for call in message["tool_calls"]]}


def _rewrite_call(call: Json) -> Json:
    function = call["function"]
    try:
        arguments = json.dumps(json.loads(function["arguments"]), separators=(",", ":"))
    except ValueError:  # it was cut off
        return call
    return call | {"function": function | {"arguments": arguments}}
