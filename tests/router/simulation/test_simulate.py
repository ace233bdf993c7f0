"""Recorded traffic, small enough to reckon by hand, and the command around it."""

import json
import re
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from hotloop.cli.main import run
from hotloop.core.errors import ConfigError
from hotloop.router.simulation.simulate import SIMULATED, SimulatedReplicas, Simulation
from hotloop.router.simulation.trace import read_trace


def session(number: int, num_turns: int) -> dict[str, Any]:
    requests = [
        {"t": 10.0 * i, "type": "n", "in": 64 * (10 + i), "out": 10, "think_time": 1.0, "hash_ids_rle": [[1, 10 + i]]}
        for i in range(num_turns)
    ]
    return {"id": f"trace_{number}", "block_size": 64, "requests": requests}


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    path = tmp_path / "sessions.jsonl"
    path.write_text("\n".join(json.dumps(session(i, 5)) for i in range(20)))
    return path


def test_with_room_for_all_only_what_is_new_is_read(sessions: Path) -> None:
    trace = read_trace(sessions)
    assert (trace.num_requests, trace.block_tokens) == (100, 64)
    alone = Simulation(trace, SimulatedReplicas(num_replicas=1), "prefix").run(100)
    assert alone.num_requests == 100
    assert alone.hit_rate == alone.ideal_rate == pytest.approx(46 / 60), "60 blocks a session, 14 of them new"
    assert alone.imbalance == 1
    figures = Simulation(trace, SimulatedReplicas(num_replicas=4), "prefix").run(100)
    assert figures.hit_rate == pytest.approx(figures.ideal_rate, abs=0.02)
    scattered = Simulation(trace, SimulatedReplicas(num_replicas=4), "round_robin").run(100)
    assert scattered.hit_rate < figures.hit_rate
    assert scattered.ideal_rate == figures.ideal_rate


def test_the_same_seed_gives_the_same_figures(sessions: Path) -> None:
    trace = read_trace(sessions)
    one, other = (Simulation(trace, SimulatedReplicas(num_replicas=3), "prefix", seed=5).run(250) for _ in range(2))
    assert one == other
    assert one.num_requests == 250


TURN = st.tuples(st.integers(0, 6), st.integers(1, 4), st.integers(0, 63))  # blocks kept, blocks added, tokens beyond


def random_session(turns: list[tuple[int, int, int]]) -> dict[str, Any]:
    """Each prompt keeps some blocks of the one before it and goes on, and ends within a block."""
    kept: list[int] = []
    requests, fresh = [], count(1)
    for num_kept, num_new, num_beyond in turns:
        kept = kept[:num_kept] + [next(fresh) for _ in range(num_new)]
        runs = [[each, 1] for each in kept]
        requests.append({"in": 64 * len(kept) + num_beyond, "out": 5, "think_time": 1.0, "hash_ids_rle": runs})
    return {"block_size": 64, "requests": requests}


@given(st.lists(st.lists(TURN, min_size=1, max_size=6), min_size=1, max_size=4), st.integers(1, 3))
@settings(max_examples=examples(50))
def test_no_policy_does_better_than_ideal(tmp_path: Path, turns: list[list[Any]], num_replicas: int) -> None:
    path = tmp_path / "random.jsonl"
    path.write_text("\n".join(json.dumps(random_session(each)) for each in turns))
    trace = read_trace(path)
    for policy in SIMULATED:
        for num_requests in (trace.num_requests, 2 * trace.num_requests + 1):
            figures = Simulation(trace, SimulatedReplicas(num_replicas=num_replicas), policy).run(num_requests)
            assert figures.num_matched <= figures.num_ideal
            if num_replicas == 1:
                assert figures.num_matched == figures.num_ideal


def test_single_requests(tmp_path: Path) -> None:
    path = tmp_path / "singles.jsonl"
    rows = [{"timestamp": i, "input_length": 1024, "output_length": 5, "hash_ids": [0, i]} for i in range(1, 9)]
    path.write_text("\n".join(map(json.dumps, rows)))
    figures = Simulation(read_trace(path), SimulatedReplicas(num_replicas=1), "least_load").run(8)
    assert figures.hit_rate == figures.ideal_rate == pytest.approx(7 / 16), "the first block is everybody's"
    again = Simulation(read_trace(path), SimulatedReplicas(num_replicas=1), "least_load").run(20)
    assert again.num_requests == 20
    assert again.hit_rate == pytest.approx(17 / 40), "played again they are other people's"


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "[" * 100_000, '{"requests": []}', '{"hash_ids": 3}', '{"block_size": 1, "requests": [1]}'),
        '{"block_size": 1e999, "requests": []}',
        '{"block_size": 1, "requests": [{"in": 1, "out": 1, "hash_ids_rle": [[0, 1099511627776]]}]}',
    ],
)
def test_what_is_no_trace(tmp_path: Path, text: str) -> None:
    (tmp_path / "trace.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=r"trace\.jsonl"):
        read_trace(tmp_path / "trace.jsonl")


@pytest.mark.parametrize(
    "line",
    [
        {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
        {"timestamp": 1, "input_length": 900, "output_length": 3},
        {"block_size": 64, "messages": []},
        {"hash_ids": [1, 2]},
    ],
)
def test_a_file_of_another_format_is_told_what_is_wanted(tmp_path: Path, line: dict[str, Any]) -> None:
    (tmp_path / "requests.jsonl").write_text(json.dumps(line))
    with pytest.raises(ConfigError, match=r"requests\.jsonl.*`hash_ids_rle`.*`hash_ids`.*docs/routing\.md"):
        read_trace(tmp_path / "requests.jsonl")


@pytest.mark.parametrize("number", [0, 1])
def test_the_documented_examples_can_be_played(tmp_path: Path, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "routing.md").read_text()
    example = re.findall(r"```jsonl\n(.*?)```", page, re.DOTALL)[number]
    (tmp_path / "trace.jsonl").write_text(example)
    assert run(["simulate", str(tmp_path / "trace.jsonl"), "--replicas", "2", "--policy", "prefix", "--json"]) == 0
    [figures] = json.loads(capsys.readouterr().out)["policies"]
    assert figures["requests"] == (2, 3)[number]
    assert figures["hit_rate"] > 0


def test_the_command(sessions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "routing.svg"
    argv = ["simulate", str(sessions), "--replicas", "4", "--policy", "prefix,round_robin", "--svg", str(picture)]
    assert run([*argv, "--json"]) == 0
    better, worse = json.loads(capsys.readouterr().out)["policies"]
    assert better["hit_rate"] > worse["hit_rate"]
    assert picture.read_text().count("<rect") == 4, "two bars a policy"
    assert run(argv) == 0
    assert "round_robin" in capsys.readouterr().out
    assert run(["simulate", str(sessions), "--policy", "magic"]) == 2
    assert "there is no policy 'magic'" in capsys.readouterr().err
    assert run(["simulate", str(tmp_path / "none.jsonl")]) == 2


def test_what_cannot_be_kept_is_read_again(sessions: Path) -> None:
    small = SimulatedReplicas(num_replicas=2, capacity_tokens=64 * 30, sessions_per_s=10)
    figures = Simulation(read_trace(sessions), small, "prefix").run(100)
    assert figures.hit_rate < figures.ideal_rate


@pytest.mark.parametrize("policy", sorted(SIMULATED))
def test_every_policy_plays(sessions: Path, policy: str) -> None:
    figures = Simulation(read_trace(sessions), SimulatedReplicas(num_replicas=3), policy).run(60)
    assert figures.num_requests == figures.reasons.total() == len(figures.ttfts_s) == 60
    assert 1 <= figures.imbalance <= 3
