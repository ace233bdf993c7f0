"""Recorded agent runs, to be run again: the model's answers and the tools' results are those of the record.

A job is a conversation: each of its episodes begins with words of the user's and goes on until there are no
more calls. How long a tool takes is drawn from a log-normal, the same for the same call whoever asks.
"""

import asyncio
import gzip
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hotloop.agent.context import Surroundings
from hotloop.agent.tool import Traits
from hotloop.core.errors import ConfigError
from hotloop.core.message import Message, Tool, ToolCall

READ_ONLY = ("get_", "search_", "list_", "find_", "calculate", "think")
"""How the names of tools begin that change nothing."""


@dataclass(frozen=True, slots=True)
class Episode:
    prompt: str
    answers: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class AgentJob:
    """One agent's run."""

    id: str
    system: str
    tools: tuple[Tool, ...]
    episodes: tuple[Episode, ...]
    results: Mapping[tuple[str, str], str]
    """By the tool's name and its arguments."""

    @property
    def num_turns(self) -> int:
        return sum(len(episode.answers) for episode in self.episodes)

    @property
    def num_calls(self) -> int:
        return sum(len(answer.tool_calls) for episode in self.episodes for answer in episode.answers)


@dataclass(frozen=True, slots=True)
class Latency:
    """How long tools take: a log-normal."""

    median_s: float = 0.4
    sigma: float = 0.5

    def of(self, job_id: str, name: str, arguments: str) -> float:
        dice = random.Random(f"{job_id}/{name}/{arguments}")
        return self.median_s * math.exp(dice.gauss(0.0, self.sigma))


class RecordedTool:
    """A tool of a job: takes its time, and gives what it gave then."""

    def __init__(self, job: AgentJob, spec: Tool, latency: Latency) -> None:
        self.spec = spec
        self.traits = Traits(read_only=spec.name.startswith(READ_ONLY), timeout_s=None)
        self._job = job
        self._latency = latency

    async def run(self, arguments: str, surroundings: Surroundings) -> str:
        key = (self.spec.name, canonical(arguments))
        await asyncio.sleep(self._latency.of(self._job.id, *key))
        return self._job.results.get(key, "nothing was found")


def canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except ValueError:
        return arguments


def read_agent_jobs(path: Path, *, max_chars: int, skip: int = 0) -> Iterator[AgentJob]:
    """The jobs of a transcript file that have fewer characters, all in all; the first `skip` lines are left out."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                if number >= skip and line.strip() and len(line) < max_chars:
                    job = _parse_job(f"job-{number}", msgspec.json.decode(line, type=_Transcript))
                    if job.episodes:
                        yield job
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is not a transcript: {error}") from None


class _Function(msgspec.Struct):
    name: str
    arguments: str = "{}"


class _Call(msgspec.Struct):
    id: str
    function: _Function


class _Recorded(msgspec.Struct):
    role: str
    content: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None


class _Transcript(msgspec.Struct):
    messages: list[_Recorded]
    system: str = ""
    tools: list[dict[str, Any]] = []


def _parse_job(job_id: str, row: _Transcript) -> AgentJob:
    calls = {call.id: call.function for message in row.messages for call in message.tool_calls or ()}
    results = {
        (calls[message.tool_call_id].name, canonical(calls[message.tool_call_id].arguments)): message.content or ""
        for message in row.messages
        if message.tool_call_id in calls
    }
    tools = tuple(
        Tool(each["function"]["name"], each["function"].get("description", ""), each["function"].get("parameters", {}))
        for each in row.tools
    )
    return AgentJob(job_id, row.system, tools, tuple(_episodes(row.messages)), results)


def _episodes(messages: Sequence[_Recorded]) -> Iterator[Episode]:
    """Split at the user's words. A last answer with calls whose results are missing is left out."""
    prompt: str | None = None
    answers: list[Message] = []
    for message in [*messages, _Recorded("user")]:
        if message.role == "user":
            while answers and answers[-1].tool_calls:
                answers.pop()
            if prompt is not None and answers:
                yield Episode(prompt, tuple(answers))
            prompt, answers = message.content or "", []
        elif message.role == "assistant":
            made = tuple(ToolCall(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ())
            answers.append(Message("assistant", message.content or "", tool_calls=made))
