"""A run as the requests that it was made of, and one that was broken: with the places where that must be found.

Everything is a chat of OpenAI's shape; what only another API has is translated by whoever breaks it. Pure: bodies are
never changed in place.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec

from hotloop.bench.workflows import generate_workflows
from hotloop.bench.workload import read_transcripts

Json = dict[str, Any]

_WORKFLOWS = 3  # that a generated run goes through

RULES = "\n".join(f"Rule {i}: whoever asks for {i} parcels is told to wait for {i} days and a bit." for i in range(60))
SYSTEM = f"You are the agent of a shop.\n{RULES}"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} something, whatever it may be, and say what came of it",
            "parameters": {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "description": f"which one to {name}"},
                    "why": {"type": "string"},
                },
                "required": ["id", "why"],
            },
        },
    }
    for name in ("cancel", "find", "get_order", "refund", "track")
]


@dataclass(frozen=True, slots=True)
class Turn:
    """A request and what was answered; `response` is the whole answer where there is more to it than its message."""

    body: Json
    answer: Json
    response: Json | None = None

    @property
    def messages(self) -> list[Json]:
        return [*self.body["messages"]]

    def say(self, messages: Sequence[Json]) -> "Turn":
        return Turn(self.body | {"messages": [*messages]}, self.answer, self.response)


Talk = list[Turn]


@dataclass(frozen=True, slots=True)
class Spot:
    """Something that must be found: in this request of the run, at this path and, if `end`, within these characters."""

    number: int
    path: str
    begin: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Broken:
    talk: Talk
    spots: list[Spot]
    api: Literal["chat", "messages"] = "chat"


@dataclass(frozen=True, slots=True)
class Breaker:
    """`apply` gives None for a run in which it cannot be done. `also` are rules that are then right too."""

    name: str
    rule: str
    apply: Callable[[Talk, Random], Broken | None]
    also: frozenset[str] = field(default_factory=frozenset)
    is_between_runs: bool = False
    """Only seen beside another run: the first one is clean."""


def read_talks(path: Path) -> list[Talk]:
    """Every run of a file of transcripts, with a system text and tools, whether or not it had any."""
    talks = []
    for transcript in read_transcripts(path):
        given = (msgspec.to_builtins(recorded) for recorded in transcript.messages)
        messages = [{name: part for name, part in message.items() if part is not None} for message in given]
        talks.append(make_talk(transcript.system or SYSTEM, [*transcript.tools] or TOOLS, messages))
    return [talk for talk in talks if talk]


def generate_talks(num_talks: int) -> list[Talk]:
    """An agent of a small office goes through several workflows, each time others with other values."""
    talks = []
    for i in range(num_talks):
        groups = groupby(generate_workflows(i), lambda question: question.id.rpartition("-")[0])
        histories = [[*group][-1].messages for _, group in groups]
        said: list[Json] = []
        for _, goal, *rest in Random(i).sample(histories, _WORKFLOWS):
            said += [goal, *rest, {"role": "assistant", "content": f"This is done: {goal['content']}"}]
        talks.append(make_talk(f"{histories[0][0]['content']}\n{RULES}", TOOLS, said))
    return talks


def make_talk(system: str, tools: Sequence[Json], messages: Iterable[Json]) -> Talk:
    said: list[Json] = [{"role": "system", "content": system}]
    talk: Talk = []
    for message in messages:
        if message["role"] == "assistant" and len(said) > 1:
            talk.append(Turn({"model": "tiny", "messages": [*said], "tools": [*tools]}, message))
        said.append(message)
    return talk


def system_of(turn: Turn) -> str:
    return str(turn.messages[0]["content"])


def with_system(turn: Turn, text: str) -> Turn:
    first, *rest = turn.messages
    return turn.say([first | {"content": text}, *rest])


def with_tools(turn: Turn, tools: Sequence[Json]) -> Turn:
    return Turn(turn.body | {"tools": [*tools]}, turn.answer, turn.response)


def say_more(talk: Talk, messages: Sequence[Json]) -> Talk:
    """The run goes on with these, after a last answer that is no call."""
    last = talk[-1]
    said = [*last.messages, {"role": "assistant", "content": "That was all."}]
    more = []
    for message in messages:
        if message["role"] == "assistant":
            more.append(Turn(last.body | {"messages": [*said]}, message))
        said.append(message)
    return [*talk, *more]
