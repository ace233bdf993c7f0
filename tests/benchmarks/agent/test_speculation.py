"""What guessing is worth, simulated."""

import gzip
import json
from pathlib import Path

import pytest
from benchmarks.agent.speculation import (
    Pace,
    Taken,
    is_read_only,
    measure_predictions,
    read_runs,
)
from tests.agent.predict.talks import clerk, step, user

from hotloop.core.errors import ConfigError
from hotloop.core.message import Message

RUNS = [clerk(number) for number in range(40)]


def write_runs(path: Path, runs: list[list[Message]]) -> Path:
    rows = []
    for run in runs:
        messages = []
        for message in run:
            calls = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.tool_calls
            ]
            row = {"role": message.role, "content": message.content or None, "tool_call_id": message.tool_call_id}
            messages.append(row | ({"tool_calls": calls} if calls else {}))
        rows.append(json.dumps({"id": "x", "messages": messages}))
    data = "\n".join(rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["runs.jsonl", "runs.jsonl.gz"])
def test_runs_are_read_as_they_were(name: str, tmp_path: Path):
    assert read_runs(write_runs(tmp_path / name, RUNS)) == RUNS


@pytest.mark.parametrize("text", ["{", '{"messages": 3}', '{"messages": [{"role": "assistant", "tool_calls": [{}]}]}'])
def test_what_is_no_transcript_is_said(text: str, tmp_path: Path):
    path = tmp_path / "runs.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not a transcript"):
        read_runs(path)


def test_a_missing_file_is_said(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot read"):
        read_runs(tmp_path / "none.jsonl.gz")


def test_what_is_always_so_is_speculative():
    figures = measure_predictions(RUNS, num_learn=30)
    assert figures.num_runs == 10
    assert figures.num_calls == figures.num_read_only == 40
    assert figures.precision > 0.9
    assert figures.coverage > 0.9
    assert 0.5 < figures.hidden <= 1


def test_nothing_is_speculative_without_experience():
    assert measure_predictions(RUNS, num_learn=0).guesses.num_started == 0


def test_the_same_runs_give_the_same_figures():
    assert measure_predictions(RUNS, num_learn=30) == measure_predictions(RUNS, num_learn=30)


def test_tools_that_write_are_never_started():
    def talk(number: int) -> list[Message]:
        return [
            user(f"drop A{number:03}B"),
            *step("drop", {"id": f"A{number:03}B"}, "done", "d"),
            Message("assistant", "ok"),
        ]

    figures = measure_predictions([talk(number) for number in range(40)], num_learn=30, taken=Taken(threshold=0.01))
    assert figures.num_calls == 10
    assert figures.guesses.num_started == figures.num_read_only == 0
    assert figures.hidden == figures.coverage == figures.precision == 0


def test_what_is_trusted_hides_more():
    """The model says something, hears the user, and only then asks for what was expected before."""

    def talk(number: int) -> list[Message]:
        order = f"W{number:03}A1"
        asked = [user(f"find {number}"), *step("list_orders", {}, {"orders": [order]}, "a")]
        pause = [Message("assistant", "This one?"), user("yes")] if number % 2 else []
        return [*asked, *pause, *step("get_order", {"id": order}, "sent", "b")]

    runs = [talk(number) for number in range(60)]
    plain, trusted = (measure_predictions(runs, num_learn=40, taken=Taken(trusted=each)) for each in (False, True))
    assert plain.coverage < trusted.coverage


def test_durations_are_drawn_around_their_median():
    drawn = sorted(Pace().tool_s(f"call {number}") for number in range(2001))
    assert drawn[1000] == pytest.approx(0.4, rel=0.1)


def test_which_tools_count_as_read_only():
    assert all(map(is_read_only, ("get_user_details", "search_direct_flight", "ls", "think")))
    assert not any(map(is_read_only, ("book_reservation", "getaway", "update_list", "")))
