"""Agents with slow tools against a server: what they send, and what is counted."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.cache.gaps import Errand, GapReport, ToolTimes, read_errands, run_gaps
from tests.server.serving import Serving

from hotloop.bench.client import ChatClient
from hotloop.core.config import EngineConfig
from hotloop.core.errors import ConfigError


def write(path: Path, num_rows: int, num_turns: int) -> Path:
    said = [{"role": role, "content": f"{role} {i}"} for i in range(num_turns) for role in ("user", "assistant")]
    row: dict[str, Any] = {"id": "x", "system": "Be kind.", "tools": [], "messages": said}
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for _ in range(num_rows))
    return path


def test_errands_are_the_same_every_time_and_begin_differently(tmp_path: Path) -> None:
    path = write(tmp_path / "runs.jsonl.gz", 3, 4)
    errands = read_errands(path, num_agents=3, max_turns=4)
    assert errands == read_errands(path, num_agents=3, max_turns=4)
    assert errands[0].results == ("user 0", "user 1", "user 2", "user 3")
    assert len({errand.system for errand in errands}) == 3
    assert len({errand.tool_times_s for errand in errands}) == 3
    with pytest.raises(ConfigError, match="only 3 transcripts"):
        read_errands(path, num_agents=4, max_turns=4)
    with pytest.raises(ConfigError, match="only 0 transcripts"):
        read_errands(path, num_agents=1, max_turns=9)


def test_tool_times_have_the_median_they_are_asked_for() -> None:
    times = sorted(ToolTimes(2.0).draw("a", 1001))
    assert 1.7 < times[500] < 2.3
    assert times[-1] > 10


async def run(serving: Serving, errands: list[Errand], turns: list[str]) -> GapReport:
    async with ChatClient(serving.url) as client:
        return await run_gaps(client, errands, "tiny", turns.append)


@pytest.mark.asyncio
async def test_every_turn_is_a_call_and_the_last_an_end(tmp_path: Path) -> None:
    times = ToolTimes(median_s=0.001)
    errands = read_errands(write(tmp_path / "runs.jsonl.gz", 2, 3), num_agents=2, max_turns=3, times=times)
    turns: list[str] = []
    with Serving(engine_config=EngineConfig(debug_checks=True)) as serving:
        report = await run(serving, errands, turns)
    assert report.errors == []
    assert sorted(turns) == ["agent 1"] * 3 + ["agent 2"] * 3
    assert report.num_turns == 6
    assert len(report.job_times_s) == 2
    assert report.num_cached_tokens > report.num_prompt_tokens / 3
    assert report.num_recomputed_tokens < 6 * 2 * 16, "nothing but the incomplete block at the end of a turn"
    assert report.to_json()["job_mean_s"] >= 0


@pytest.mark.asyncio
async def test_a_job_that_fails_is_told_and_has_no_time(tmp_path: Path) -> None:
    [errand] = read_errands(write(tmp_path / "runs.jsonl.gz", 1, 3), num_agents=1, max_turns=3)
    with Serving(num_blocks=4) as serving:
        report = await run(serving, [errand], [])
    assert report.job_times_s == []
    assert len(report.errors) == 1
    assert report.errors[0].startswith("agent 1: ")
    assert report.job_mean_s == 0
