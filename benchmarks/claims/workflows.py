"""Generated office workflows, written out as the transcripts of agents that did them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hotloop.bench.questions import ToolQuestion
from hotloop.bench.workflows import generate_workflows


def write_workflows(path: Path, num_rounds: int = 4) -> None:
    """The generated workflows as transcripts, each round with values of its own."""
    rows = [row for seed in range(num_rounds) for row in _transcripts(generate_workflows(seed))]
    path.write_bytes(b"\n".join(msgspec.json.encode(row) for row in rows))


def _transcripts(questions: Sequence[ToolQuestion]) -> Iterator[dict[str, Any]]:
    """A workflow's last question has all that went before it; behind that come its call, the result and an answer."""
    for question, following in zip(questions, [*questions[1:], None], strict=True):
        if following is None or len(following.messages) <= len(question.messages):
            system, *messages = question.messages
            yield {
                "system": system["content"],
                "tools": question.tools,
                "messages": [*messages, *_closing(question.expected[0])],
            }


def _closing(expected: Mapping[str, Mapping[str, Sequence[Any]]]) -> list[dict[str, Any]]:
    ((name, possible),) = expected.items()
    arguments = msgspec.json.encode({key: values[0] for key, values in possible.items()}).decode()
    call = {"id": "call_last", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_last", "content": '{"status": "done"}'},
        {"role": "assistant", "content": "All of it is done."},
    ]
