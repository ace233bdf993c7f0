"""Recorded runs become jobs that can be run again."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.agent.recorded import Latency, RecordedTool, read_agent_jobs

from hotloop.agent.tools.tool import RunContext
from hotloop.core.errors import ConfigError


def call(call_id: str, tool: str, **arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}


ROW = {
    "id": "1",
    "system": "Be brief.",
    "tools": [
        {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}
        for name in ("get_user", "book")
    ],
    "messages": [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Who are you?"},
        {"role": "user", "content": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [call("c1", "get_user", name="Ann")]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "assistant", "content": "You are 42."},
        {"role": "user", "content": "Book."},
        {"role": "assistant", "content": None, "tool_calls": [call("c2", "book")]},
    ],
}


@pytest.fixture
def transcripts(tmp_path: Path) -> Path:
    path = tmp_path / "runs.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (ROW, ROW, {**ROW, "system": "x" * 5000})))
    return path


def test_a_job_is_what_the_user_said_and_what_was_answered(transcripts: Path) -> None:
    job, _ = read_agent_jobs(transcripts, max_chars=4000)
    assert (job.system, [tool.name for tool in job.tools]) == ("Be brief.", ["get_user", "book"])
    assert [episode.prompt for episode in job.episodes] == ["Hello", "Ann"], "the last call has no result"
    assert [len(episode.answers) for episode in job.episodes] == [1, 2]
    assert (job.num_turns, job.num_calls) == (3, 1)


def test_some_are_left_out(transcripts: Path) -> None:
    assert [job.id for job in read_agent_jobs(transcripts, max_chars=4000, skip=1)] == ["job-1"]
    assert len([*read_agent_jobs(transcripts, max_chars=10_000)]) == 3


async def test_a_tool_gives_what_it_gave_then(transcripts: Path) -> None:
    job, _ = read_agent_jobs(transcripts, max_chars=4000)
    latency = Latency(median_s=0.0)
    tools = {spec.name: RecordedTool(job, spec, latency) for spec in job.tools}
    assert await tools["get_user"].run('{ "name":"Ann" }', RunContext()) == "42"
    assert await tools["get_user"].run('{"name": "Bob"}', RunContext()) == "nothing was found"
    assert (tools["get_user"].options.read_only, tools["book"].options.read_only) == (True, False)


def test_the_same_call_always_takes_the_same_time() -> None:
    latency = Latency(median_s=0.4, sigma=0.5)
    times = [latency.of("job-1", "get_user", arguments) for arguments in ("a", "a", "b")]
    assert times[0] == times[1] != times[2]
    many = sorted(latency.of("job-1", "get_user", str(i)) for i in range(1000))
    assert many[0] > 0
    assert many[500] == pytest.approx(0.4, rel=0.1)


@pytest.mark.parametrize("text", ["[1]", "{", '{"messages": [{"role": 1}]}'])
def test_what_is_no_transcript(tmp_path: Path, text: str) -> None:
    (tmp_path / "runs.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=r"runs\.jsonl"):
        list(read_agent_jobs(tmp_path / "runs.jsonl", max_chars=1000))
    with pytest.raises(ConfigError, match="cannot read"):
        list(read_agent_jobs(tmp_path / "none.jsonl", max_chars=1000))
