"""Recorded agent runs, to be run again: the model's answers and the tools' results are those of the record.

A job is a conversation: each of its episodes begins with words of the user's and goes on until there are no
more calls. How long a tool takes is drawn from a log-normal, the same for the same call whoever asks.
"""

import asyncio
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hotloop.agent.tools.tool import RunContext, ToolOptions
from hotloop.bench.workload import Recorded, Transcript, read_transcripts
from hotloop.core.message import Message, Tool, ToolCall

READ_ONLY = ("get_", "search_", "list_", "find_", "calculate", "think")
"""How the names of tools begin that change nothing."""


@dataclass(frozen=True, slots=True)
class Episode:
    prompt: str
    answers: tuple[Message, ...]


class AgentJob(NamedTuple):
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
        rng = random.Random(f"{job_id}/{name}/{arguments}")
        return self.median_s * math.exp(rng.gauss(0.0, self.sigma))


class RecordedTool:
    """A tool of a job: takes its time, and gives what it gave then."""

    wants = ()

    def __init__(self, job: AgentJob, spec: Tool, latency: Latency) -> None:
        self.spec = spec
        self.options = ToolOptions(read_only=spec.name.startswith(READ_ONLY), timeout_s=None)
        self._job = job
        self._latency = latency

    def check(self, arguments: str) -> None:
        """Whatever was asked then is asked again."""

    async def run(self, arguments: str, run_context: RunContext) -> str:
        key = (self.spec.name, canonical(arguments))
        await asyncio.sleep(self._latency.of(self._job.id, *key))
        return self._job.results.get(key, "nothing was found")


def canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except ValueError:
        return arguments


def read_agent_jobs(path: Path, *, max_chars: int, skip: int = 0) -> Iterator[AgentJob]:
    """The jobs of a transcript file that have fewer characters, all in all; the first `skip` runs are left out."""
    for number, row in enumerate(read_transcripts(path)):
        if number >= skip and len(msgspec.json.encode(row)) < max_chars:
            job = _parse_job(f"job-{number}", row)
            if job.episodes:
                yield job


def message_of(recorded: Recorded) -> Message:
    calls = tuple(
        ToolCall(call.id, str(call.function.get("name", "")), str(call.function.get("arguments", "{}")))
        for call in recorded.tool_calls or ()
    )
    role: Any = recorded.role
    return Message(role, recorded.content or "", tool_calls=calls, tool_call_id=recorded.tool_call_id)


def _parse_job(job_id: str, row: Transcript) -> AgentJob:
    messages = [message_of(each) for each in row.messages]
    calls = {call.id: call for message in messages for call in message.tool_calls}
    results = {
        (call.name, canonical(call.arguments)): message.content
        for message in messages
        if (call := calls.get(message.tool_call_id or ""))
    }
    tools = tuple(
        Tool(each["function"]["name"], each["function"].get("description", ""), each["function"].get("parameters", {}))
        for each in row.tools
    )
    return AgentJob(job_id, row.system, tools, tuple(_episodes(messages)), results)


def _episodes(messages: Sequence[Message]) -> Iterator[Episode]:
    """Split at the user's words. A last answer with calls whose results are missing is left out."""
    prompt: str | None = None
    answers: list[Message] = []
    for message in [*messages, Message("user")]:
        if message.role == "user":
            while answers and answers[-1].tool_calls:
                answers.pop()
            if prompt is not None and answers:
                yield Episode(prompt, tuple(answers))
            prompt, answers = message.content, []
        elif message.role == "assistant":
            answers.append(message)
