"""Recorded and generated jobs."""

import gzip
import json
from pathlib import Path

import pytest

from hotloop.bench.workload import generate_jobs, read_jobs
from hotloop.core.errors import ConfigError

ROW = {
    "id": "one",
    "system": "Be brief.",
    "tools": [{"type": "function", "function": {"name": "look", "description": "Look it up."}}],
    "messages": [
        {"role": "user", "content": "Hello?"},
        {
            "role": "assistant",
            "content": "One moment.",
            "tool_calls": [{"function": {"name": "look", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "x" * 400},
        {"role": "assistant", "content": "A turn that answers nobody is history, not a request."},
        {"role": "user", "content": "Bye."},
        {"role": "assistant", "content": None},
    ],
}


def write(path: Path, *rows: object) -> Path:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(path: Path, **limits: int):
    return read_jobs(path, **({"max_jobs": 8, "max_turns": 6, "max_output": 64, "max_chars": 28_000} | limits))


@pytest.mark.parametrize("name", ["runs.jsonl", "runs.jsonl.gz"])
def test_every_answer_to_a_user_becomes_a_turn(tmp_path: Path, name: str):
    (job,) = read(write(tmp_path / name, ROW))
    assert [turn.messages[-1]["content"] for turn in job.turns] == ["Hello?", "Tool result:\n42", "Bye."]
    assert job.turns[0].messages[0] == {
        "role": "system",
        "content": 'Be brief.\n\nAvailable tools:\n[{"function": {"description": "Look it up.", "name": "look"}, '
        '"type": "function"}]',
    }
    assert job.turns[1].messages[2]["content"] == 'One moment.[{"name": "look", "arguments": "{}"}]'


def test_outputs_are_as_long_as_recorded_within_bounds(tmp_path: Path):
    (job,) = read(write(tmp_path / "runs.jsonl", ROW))
    assert [turn.num_output for turn in job.turns] == [12, 64, 8]


def test_limits_cut_turns_jobs_and_long_prompts(tmp_path: Path):
    rows = [{**ROW, "system": f"s{i}" + "s" * (1000 if i == 1 else 0)} for i in range(4)]
    jobs = read(write(tmp_path / "runs.jsonl", *rows), max_jobs=2, max_turns=1, max_chars=900)
    assert [(job.id, len(job.turns), job.turns[0].messages[0]["content"][:4]) for job in jobs] == [
        ("job-0", 1, "s0\n\n"),
        ("job-1", 1, "s2\n\n"),
    ]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{]\n", "line 1 is not a transcript: JSON is malformed"),
        (b'{"messages": []}\n[]\n', "line 2 is not a transcript"),
        (b'{"messages": [{"role": "assistant"}]}\n', "has no transcript shorter than"),
        (b'{"tools": ' + b"[" * 5000 + b"]" * 5000 + b"}", "line 1 is not a transcript"),
        (b'{"messages": ["hello"]}\n', "line 1 is not a transcript"),
        (b'{"messages": [{"role": "assistant", "tool_calls": [{}]}]}\n', "line 1 is not a transcript"),
        (gzip.compress(b"{}\n", mtime=0), "is not a text file"),
    ],
)
def test_a_file_that_is_no_transcript_is_refused_in_one_line(tmp_path: Path, data: bytes, reason: str):
    path = tmp_path / "runs.jsonl"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=reason):
        read(path)


def test_a_missing_or_broken_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"cannot read .*none\.jsonl: No such file"):
        read(tmp_path / "none.jsonl")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(json.dumps(ROW).encode())[:60])
    with pytest.raises(ConfigError, match=r"cannot read .*cut\.jsonl\.gz"):
        read(tmp_path / "cut.jsonl.gz")


def test_generated_jobs_are_the_same_every_time_and_differ_by_seed():
    make = {"num_jobs": 3, "num_turns": 4, "num_output": 16}
    assert generate_jobs(**make) == generate_jobs(**make)
    assert generate_jobs(**make) != generate_jobs(**make, seed=1)


def test_generated_jobs_share_a_system_prompt_and_grow_by_appending():
    jobs = generate_jobs(num_jobs=3, num_turns=4, num_output=16, system_chars=6000)
    assert len({job.turns[0].messages[0]["content"] for job in jobs}) == 1
    assert 6000 <= len(jobs[0].turns[0].messages[0]["content"]) < 6500
    assert len({job.turns[0].messages[1]["content"] for job in jobs}) == 3
    for job in jobs:
        for before, after in zip(job.turns, job.turns[1:], strict=False):
            assert after.messages[: len(before.messages)] == before.messages
            assert [message["role"] for message in after.messages[-3:]] == ["user", "assistant", "user"]
