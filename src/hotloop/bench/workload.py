"""What agents ask: recorded transcripts, or generated ones that look alike and are the same on every machine.

A job is one agent's run, a turn one request of it. A turn carries the whole history so far, and the history goes on
with the words of the record, not with the server's: so every server reads identical prompts. Tools stand in the system
text and tool results are user turns, so that a chat template without tools can serve too.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from hotloop.core.errors import ConfigError
from hotloop.core.files import read_lines
from hotloop.core.structs import compiled

T = TypeVar("T")


class RecordedCall(msgspec.Struct):
    function: dict[str, Any]
    id: str = ""


@compiled
class Recorded(msgspec.Struct):
    role: str
    content: str | None = None
    tool_calls: list[RecordedCall] | None = None
    tool_call_id: str | None = None


@compiled
class Transcript(msgspec.Struct):
    messages: list[Recorded]
    system: str = ""
    tools: list[Any] = []


def read_transcripts(path: Path) -> Iterator[Transcript]:
    """Raises ConfigError where the file is none."""
    for number, line in read_lines(path):
        yield parse_line(line, Transcript, f"{path}, line {number} is not a transcript")


def parse_line(line: str, kind: type[T], problem: str) -> T:
    """A line of JSON as such a value. Raises ConfigError with the problem if it is none."""
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"{problem}: {error}") from None


ChatMessage = dict[str, str]
"""A message as it goes over the wire: role and content."""


class WorkloadTurn(NamedTuple):
    """One request: everything said so far, and how many tokens to ask for."""

    messages: tuple[ChatMessage, ...]
    num_output: int

    @property
    def num_chars(self) -> int:
        return sum(len(message["content"]) for message in self.messages)


class AgentJob(NamedTuple):
    """One agent's run; each turn's messages begin with those of the turn before. Ids are ours, unique and plain."""

    id: str
    turns: tuple[WorkloadTurn, ...]


def load_jobs(path: Path | None, *, max_jobs: int, max_turns: int, max_output: int, max_chars: int) -> list[AgentJob]:
    if path is None:
        return generate_jobs(num_jobs=max_jobs, num_turns=max_turns, num_output=max_output)
    return read_jobs(path, max_jobs=max_jobs, max_turns=max_turns, max_output=max_output, max_chars=max_chars)


def read_jobs(path: Path, *, max_jobs: int, max_turns: int, max_output: int, max_chars: int) -> list[AgentJob]:
    """The first `max_jobs` runs of a transcript file whose last prompt is shorter than `max_chars` characters."""
    jobs: list[AgentJob] = []
    for row in read_transcripts(path):
        turns = _turns_of(row, max_output)[:max_turns]
        if turns and turns[-1].num_chars < max_chars:
            jobs.append(AgentJob(f"job-{len(jobs)}", tuple(turns)))
        if len(jobs) == max_jobs:
            break
    if not jobs:
        raise ConfigError(f"{path} has no transcript shorter than {max_chars} characters")
    return jobs


def _turns_of(row: Transcript, max_output: int) -> list[WorkloadTurn]:
    tools = json.dumps(row.tools, sort_keys=True)
    history: list[ChatMessage] = [_message("system", f"{row.system}\n\nAvailable tools:\n{tools}")]
    turns: list[WorkloadTurn] = []
    for recorded in row.messages:
        text = recorded.content or ""
        match recorded.role:
            case "assistant":
                if recorded.tool_calls:
                    text += json.dumps([call.function for call in recorded.tool_calls])
                if history[-1]["role"] == "user":
                    # About as many tokens as the recorded answer had, so that turns differ in length as real ones do.
                    turns.append(WorkloadTurn(tuple(history), max(8, min(max_output, len(text) // 4))))
                history.append(_message("assistant", text))
            case "tool":
                history.append(_message("user", f"Tool result:\n{text}"))
            case _:
                history.append(_message("user", text))
    return turns


def _message(role: str, content: str) -> ChatMessage:
    return {"role": role, "content": content}


def generate_jobs(
    *, num_jobs: int, num_turns: int, num_output: int, system_chars: int = 16_000, seed: int = 0
) -> list[AgentJob]:
    """Agents of one shop: the same long system prompt and tools, different customers, a history that grows by a call
    and its result each turn. Equal arguments give equal jobs."""
    system = _message("system", _system_text(random.Random(seed), system_chars))
    return [
        AgentJob(f"agent-{i}", tuple(_generated_turns(random.Random(f"{seed}/{i}"), system, num_turns, num_output)))
        for i in range(num_jobs)
    ]


_VERBS = ("cancel", "change", "confirm", "delay", "exchange", "find", "refund", "replace", "return", "track", "upgrade")
_THINGS = ("order", "invoice", "parcel", "booking", "voucher", "subscription", "address", "payment", "warranty", "seat")
_REASONS = (
    "it arrived late", "the colour is wrong", "the price has changed", "a part is missing", "the date does not suit",
    "it was ordered twice", "the card was declined", "somebody else signed for it",
)  # fmt: skip
_CHECKS = (
    "look up the customer first", "ask for the order number", "compare both dates", "read the last three notes",
    "make sure that it is not a gift", "check the stock of the nearest shop", "offer a voucher before money",
)  # fmt: skip
_NAMES = ("Ada", "Blaise", "Carl", "Dorothy", "Edsger", "Frances", "Grace", "Hedy", "Ivan", "Joan", "Kurt", "Lise")


def _system_text(rng: random.Random, num_chars: int) -> str:
    tools = [_tool(verb, thing) for verb in _VERBS[:6] for thing in _THINGS[:2]]
    text = "You are an agent of a mail-order shop. You help one customer at a time and call one tool a turn.\n"
    closing = "\n\nAvailable tools:\n" + json.dumps(tools, sort_keys=True)
    number = 0
    while len(text) + len(closing) < num_chars:
        number += 1
        text += (
            f"\nRule {number}. If a customer wants to {rng.choice(_VERBS)} a {rng.choice(_THINGS)} because "
            f"{rng.choice(_REASONS)}, {rng.choice(_CHECKS)}, then {rng.choice(_CHECKS)}; never promise more than "
            f"{rng.randint(2, 90)} days or {rng.randint(5, 500)} euros."
        )
    return text + closing


def _tool(verb: str, thing: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
    function = {"name": f"{verb}_{thing}", "description": f"{verb.capitalize()} the {thing}.", "parameters": parameters}
    return {"type": "function", "function": function}


def _generated_turns(
    rng: random.Random, system: ChatMessage, num_turns: int, num_output: int
) -> Iterator[WorkloadTurn]:
    name, thing = rng.choice(_NAMES), rng.choice(_THINGS)
    history = [
        system,
        _message("user", f"Hello, this is {name}. I want to {rng.choice(_VERBS)} my {thing}: {rng.choice(_REASONS)}."),
    ]
    for _ in range(num_turns):
        yield WorkloadTurn(tuple(history), num_output)
        call = {
            "name": f"{rng.choice(_VERBS)}_{thing}",
            "arguments": {"id": str(rng.randint(10_000, 99_999))},
        }
        history.append(_message("assistant", json.dumps(call)))
        history.append(_message("user", "Tool result:\n" + json.dumps(_tool_result(rng, name, thing), indent=1)))


def _tool_result(rng: random.Random, name: str, thing: str) -> dict[str, Any]:
    notes = [f"{rng.choice(_NAMES)} noted that {rng.choice(_REASONS)}; {rng.choice(_CHECKS)}." for _ in range(4)]
    return {thing: rng.randint(10_000, 99_999), "customer": name, "amount": rng.randint(5, 500), "notes": notes}
