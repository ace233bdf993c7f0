"""`python -m benchmarks.agentic`: the scenario's rules, and a run against a real server without a model."""

import json
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from benchmarks.agentic import (
    AgenticFlags,
    Answered,
    Level,
    RecordedSession,
    Users,
    agentic,
    figures_of,
    read_sessions,
    read_turns,
    shuffled,
)
from benchmarks.command import run
from tests.server.serving import MODEL, Serving

from hotloop.core.errors import ConfigError, RemoteError


def entry(at_s: float, api_s: float = 0.0, num_blocks: int = 2, num_output: int = 4) -> dict[str, Any]:
    return {"type": "n", "t": at_s, "api_time": api_s, "hash_ids_rle": [[1, num_blocks]], "out": num_output}


def subagent(at_s: float, *requests: dict[str, Any]) -> dict[str, Any]:
    return {"type": "subagent", "t": at_s, "requests": list(requests)}


def row(name: str, *requests: dict[str, Any]) -> dict[str, Any]:
    return {"id": name, "tool_tokens": 64, "system_tokens": 20, "requests": list(requests)}


def test_long_gaps_between_starts_are_shortened_and_delays_come_after_answers() -> None:
    turns = read_turns([entry(0, 3.0), entry(8, 20.0), entry(100, 4.0), entry(101)])
    assert [turn.start_s for turn in turns] == [0, 8, 18, 19]
    assert [turn.delay_s for turn in turns] == [0, 5, 0, 0], "after 20 s of answering nothing is left of a gap of 10"


def test_a_turn_waits_for_the_sub_agents_in_front_of_it() -> None:
    first, second = subagent(2, entry(0), entry(1)), subagent(3, entry(0, num_blocks=9))
    turns = read_turns([entry(0), first, second, entry(60), subagent(61, entry(0))])
    assert [len(turn.helpers) for turn in turns] == [0, 2], "nobody waits for the last"
    assert [len(helper) for helper in turns[1].helpers] == [2, 1]
    assert turns[1].peak == 9 * 64 + 4, "what a sub-agent reads has to fit as well"


@pytest.mark.parametrize(("share", "turn"), [(0.0, 0), (0.5, 1), (1.0, 1)])
def test_a_first_session_begins_where_a_turn_is_left(share: float, turn: int) -> None:
    assert RecordedSession.of(row("a", entry(0), entry(5), entry(10))).turn_at(share) == turn


def test_sessions_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    rows = [row("long", entry(0), entry(1, num_blocks=100)), row("fits", entry(0), entry(1)), row("one", entry(0))]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert [session.id for session in read_sessions(path, 1000)] == ["fits"]
    with pytest.raises(ConfigError, match="no session of two turns or more within 100 tokens"):
        read_sessions(path, 100)


def test_every_session_comes_once_before_one_comes_again() -> None:
    sessions = [RecordedSession.of(row(name, entry(0))) for name in "abc"]
    drawn = [session.id for session in islice(shuffled(sessions, Random(1)), 6)]
    assert sorted(drawn[:3]) == sorted(drawn[3:]) == ["a", "b", "c"]


async def play(serving: Serving, *rows: dict[str, Any], seconds: int = 60) -> Level:
    """Two users, on a clock that goes on by a second whenever somebody looks."""
    flags, ticks = AgenticFlags(seconds=seconds, vocab=250), count()

    def clock() -> float:
        return float(next(ticks))

    async with httpx.AsyncClient(base_url=serving.url, timeout=60, verify=False) as http:
        sessions = [RecordedSession.of(each) for each in rows]
        return await Users(http, MODEL, sessions, flags, 2, clock).run()


async def test_users_play_one_session_after_the_other() -> None:
    helped = row("a", entry(0), entry(0, num_blocks=3), subagent(0, entry(0, num_output=6)), entry(0, num_blocks=4))
    plain = row("b", entry(0), entry(0, num_blocks=3), entry(0, num_blocks=5))
    with Serving() as serving:
        level = await play(serving, helped, plain)
    assert level.failures == []
    assert level.num_over > 2, "a user had another one after the first"
    assert {each.num_output for each in level.answers} == {4, 6}, "sub-agents were asked for as well"
    figures = figures_of(level, 1)
    assert 0.3 < figures.cached_share < 0.9, "turns found what those before had brought, and new sessions their head"


async def test_failures_are_counted_and_the_next_session_begins() -> None:
    with Serving() as serving:
        level = await play(serving, row("a", entry(0), entry(0, num_blocks=3), entry(0, num_blocks=100)), seconds=20)
    assert level.answers
    assert all("400" in failure for failure in level.failures)
    assert "failed: 400" in figures_of(level, 1).breaks


def test_figures() -> None:
    answers = [Answered(0.5, 0.5 + i, 100, 60, 11) for i in range(1, 11)]
    figures = figures_of(Level(2, answers, [], 1, 1000.0), gpus=2)
    assert figures.output_s_gpu == pytest.approx(110 / 1000 / 2)
    assert figures.total_s_gpu == pytest.approx(1110 / 1000 / 2)
    assert figures.user_tokens_s == pytest.approx((10 / 5 + 10 / 6) / 2)
    assert figures.token_p90_ms > figures.token_p50_ms > 500
    assert (figures.cached_share, figures.breaks) == (0.6, "yes")
    assert figures_of(Level(2, answers, [], 1, 100.0), 1).breaks == "only 100 s"
    with pytest.raises(RemoteError, match="no turn came in time"):
        figures_of(Level(2), 1)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--users", "8,x"], "--users has numbers"),
        (["--users", "0"], "--users has numbers"),
        (["--start-min", "0.9"], "--start-min is at most --start-max"),
    ],
)
def test_what_cannot_be_measured(flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(agentic, ["--url", "http://127.0.0.1:9", "--data", "none.jsonl", *flags]) == 2
    assert complaint in capsys.readouterr().err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps(row("a", entry(0), entry(0.1, num_blocks=3), entry(100))))  # no time for the third
    with Serving() as serving:
        flags = [
            "--start-min",
            "0",
            "--start-max",
            "0",
            "--users",
            "1,2",
            "--seconds",
            "10",
            "--vocab",
            "250",
            "--json",
        ]
        assert run(agentic, ["--url", serving.url, "--data", str(path), *flags]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert {label: each["num_requests"] for label, each in figures.items()} == {"1 users": 1, "2 users": 2}
    assert figures["2 users"]["breaks"].startswith("only ")
