"""What agents go through: the course of a recorded run, without the words of its assistant.

A beat is what an agent hears and the kind of answer that was given then: a text, or a call of a certain tool. The model
answers in its own words, and those go back to it; so a conversation is as long and as winding as the recorded one, and
what returns to the server is really what it wrote.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hotloop.bench.questions import ToolQuestion
from hotloop.bench.workflows import generate_workflows
from hotloop.bench.workload import Transcript, read_transcripts
from hotloop.core.errors import ConfigError
from hotloop.wire.field import Json


@dataclass(frozen=True, slots=True)
class Heard:
    """What a user said, or a tool gave back."""

    text: str
    is_result: bool = False


@dataclass(frozen=True, slots=True)
class Beat:
    """One turn: what is heard, and the tool that the answer has to call; without one it is a text."""

    news: tuple[Heard, ...]
    tool: str = ""


class Script(NamedTuple):
    """One agent's run. Tools are OpenAI's; ids are ours, unique and plain."""

    id: str
    system: str
    tools: tuple[Json, ...]
    beats: tuple[Beat, ...]

    @property
    def num_chars(self) -> int:
        """Of all that is known beforehand."""
        return len(self.system) + len(str(self.tools)) + sum(len(h.text) for beat in self.beats for h in beat.news)


def read_scripts(path: Path, *, max_scripts: int, max_turns: int, max_chars: int) -> list[Script]:
    """The first runs of a transcript file that have at least two turns and fewer characters than `max_chars`."""
    plans = (plan(f"run-{i}", row, max_turns) for i, row in enumerate(read_transcripts(path)))
    fitting = (script for script in plans if len(script.beats) > 1 and script.num_chars < max_chars)
    scripts = [*islice(fitting, max_scripts)]
    if not scripts:
        raise ConfigError(f"{path} has no run of two turns and fewer than {max_chars} characters")
    return scripts


def generate_scripts(*, max_scripts: int, max_turns: int) -> list[Script]:
    """The workflows of a small office: see `bench.workflows`."""
    workflows = (list(group) for _, group in groupby(generate_workflows(0), lambda q: q.id.rpartition("-")[0]))
    return [
        plan(f"run-{i}", _transcript_of(questions[-1]), max_turns)
        for i, questions in enumerate(islice(workflows, max_scripts))
    ]


def plan(id_: str, transcript: Transcript, max_turns: int) -> Script:
    """A call of a tool that the transcript does not list counts as text, and its result as the user's words."""
    names = {_name_of(tool) for tool in transcript.tools}
    beats = islice(_beats(transcript, names), max_turns)
    return Script(id_, transcript.system, tuple(transcript.tools), tuple(beats))


def _beats(transcript: Transcript, names: set[str]) -> Iterator[Beat]:
    news: list[Heard] = []
    for recorded in transcript.messages:
        if recorded.role != "assistant":
            news.append(Heard(recorded.content or "", recorded.role == "tool"))
        elif news:
            called = (call.function.get("name") for call in recorded.tool_calls or ())
            yield Beat(tuple(news), next((name for name in called if name in names), ""))
            news = []


def _name_of(tool: Any) -> str:
    try:
        return str(tool["function"]["name"])
    except (KeyError, TypeError):
        raise ConfigError(f"a transcript has a tool without a name: {tool!r:.100}") from None


def _transcript_of(question: ToolQuestion) -> Transcript:
    """The history before a question, and the call it asks for."""
    system, *history = question.messages
    calls: Iterable[Json] = ({"function": {"name": name}} for call in question.expected for name in call)
    answer: Json = {"role": "assistant", "tool_calls": [*calls]}
    fields = {"system": system["content"], "tools": [*question.tools], "messages": [*history, answer]}
    return msgspec.convert(fields, Transcript)
