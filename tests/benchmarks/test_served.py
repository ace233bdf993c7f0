"""`python -m benchmarks.gpu.served` as it is run: a process of its own, at a real server without a model."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.claims.agents import read_run
from benchmarks.gpu.served import Play, busy_share, plays
from tests.server.serving import Serving

from hotloop import __version__
from hotloop.core.errors import ConfigError


def write(path: Path, *sessions: dict[str, Any]) -> Path:
    with gzip.open(path, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(each) + "\n" for each in sessions)
    return path


def session(name: str, num_turns: int, size: int = 128) -> dict[str, Any]:
    turn = {"type": "n", "in": size, "out": 300, "think_time": 0.01, "hash_ids_rle": [[1, 1], [40, 1]]}
    return {"id": name, "tool_tokens": 64, "system_tokens": 0, "requests": [turn] * num_turns}


def test_sessions_of_enough_turns_that_fit_are_played(tmp_path: Path) -> None:
    data = write(tmp_path / "a.gz", session("few", 7), session("long", 8, 200_000), session("a", 9), session("b", 8))
    first, second = plays(data, "service", 2, 100.0)
    assert (first.name, second.name) == ("a-100.0", "b-100.0"), "tokens of a run are its own"
    assert (first.begins_at, second.begins_at) == (100.0, 100.05)
    assert first.turns == ((0.01, ((1, 1), (40, 1)), 160),) * 8
    with pytest.raises(ConfigError, match="2 sessions of 8 turns, not 3"):
        plays(data, "service", 3, 100.0)


def test_figures_of_each_server_are_added_to_the_file(tmp_path: Path) -> None:
    data = write(tmp_path / "a.gz", *(session(f"s{i}", 8) for i in range(3)))
    out = tmp_path / "run.json"
    with Serving() as server:
        for name in ("one", "other"):
            command = [
                "benchmarks.gpu.served",
                "--url",
                server.url,
                "--name",
                name,
                "--out",
                str(out),
                *("--vocab", "200", "--about", "a null model", "--machine", "a machine", "--commit", "c0ffee"),
            ]
            flags = ["--only", "service", "--service", str(data), "--service-agents", "3"]
            subprocess.run([sys.executable, "-m", *command, *flags], check=True, capture_output=True)
    run = read_run(out)
    assert run
    assert run.where.startswith(f"a null model; one {__version__}, other {__version__}")
    assert run.when.startswith("a machine; commit c0ffee, ")
    [(row, figures)] = run.rows.items()
    assert row == "3 service agents"
    assert set(figures) == {"one", "other"}
    for each in figures.values():
        assert (each["done"], len(each["ends_s"]), each["ends_s"][-1]) == (3, 3, each["seconds"])
        assert each["mean_session_s"] > 0
        assert each["cached"] <= each["cacheable"] == 1.0, "the second prompt of a session is the first again"


def test_what_can_be_found_is_what_the_turn_before_begins_with_too() -> None:
    turns = ((0.0, ((1, 2), (40, 3)), 8), (0.0, ((1, 2), (40, 2), (90, 5)), 8))
    play = Play("a", 0.0, 1, turns)
    assert play.names(0) == ["head:1", "a:2", "a:40", "a:41", "a:42"]
    assert play.found(1) == 4 * 64


def test_a_card_is_watched_from_when_the_first_session_began() -> None:
    assert busy_share([0.0, 0.0, 0.0, 90.0, 100.0], 1.5) == {"busy": pytest.approx(0.95)}
    assert busy_share([], 2.0) == busy_share([50.0], 2.0) == {}
