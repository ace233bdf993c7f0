"""A file of requests and one of answers: each once, whatever happened in between."""

import asyncio
import json
import resource
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from hotloop.core.errors import ConfigError
from hotloop.http.batch import AnswerFile, BatchAnswer, BatchLine, count_lines, read_batch, run_batch

OK = BatchAnswer(200, b'{"choices":[]}', "req_1")


def line(custom_id: str = "a", **fields: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": {}, **fields})


def write(folder: Path, *lines: str) -> Path:
    path = folder / "batch.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def answered(path: Path) -> list[str]:
    return [json.loads(each)["custom_id"] for each in path.read_text().splitlines()]


def test_requests_are_read_as_they_came(tmp_path: Path) -> None:
    path = write(tmp_path, line("a", body={"x": 1.50}), "", line("b", url="/v1/embeddings"))
    assert [*read_batch(path)] == [
        BatchLine("a", "/v1/chat/completions", b'{"x": 1.5}'),
        BatchLine("b", "/v1/embeddings", b"{}"),
    ]
    assert count_lines(path) == 2


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("{", "line 2 is not a batch request"),
        ("3", "line 2 is not a batch request"),
        ("[" * 100_000, "line 2 is not a batch request"),
        (line(""), "line 2 is not a batch request"),
        (line("b", body=[]), "line 2: a request is a POST"),
        (line("b", url="/metrics"), "line 2: a request is a POST"),
        (line("b", url="http://elsewhere/v1/completions"), "line 2: a request is a POST"),
        (line("b", method="GET"), "line 2: a request is a POST"),
        (line("a"), "'a' is there twice"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, wrong: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        count_lines(write(tmp_path, line("a"), wrong))


def test_files_that_cannot_be(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match="cannot read"):
            count_lines(path)
    with pytest.raises(ConfigError, match="has no request"):
        count_lines(write(tmp_path))
    with pytest.raises(ConfigError, match="its url is"):
        count_lines(write(tmp_path, line()), "/v1/responses")
    with pytest.raises(ConfigError, match="line 1 is not a batch answer"):
        AnswerFile(write(tmp_path, "my diary"))
    assert (tmp_path / "batch.jsonl").read_text() == "my diary\n", "it is left as it was"


async def test_each_is_asked_once_and_several_at_a_time(tmp_path: Path) -> None:
    path, asked, most = write(tmp_path, *(line(str(i)) for i in range(50))), [], [0, 0]

    async def ask(line: BatchLine) -> BatchAnswer:
        most[0] += 1
        most[1] = max(most)
        await asyncio.sleep(0)
        most[0] -= 1
        asked.append(line.custom_id)
        return OK._replace(status=200 if line.custom_id != "7" else 400)

    with AnswerFile(tmp_path / "out") as answers:
        await run_batch(path, answers, ask, concurrency=4)
        assert (len(answers), answers.num_failed) == (50, 1)
    assert sorted(asked) == sorted(answered(tmp_path / "out"))
    assert most[1] == 4
    with AnswerFile(tmp_path / "out") as answers:
        await run_batch(path, answers, ask, concurrency=4)
        assert answers.num_failed == 1
    assert len(asked) == 50, "what is answered is not asked again"


@given(cuts=st.lists(st.floats(0, 1), max_size=4), num_lines=st.integers(1, 12))
async def test_a_file_that_was_cut_anywhere_is_gone_on_with(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[float], num_lines: int
) -> None:
    folder = tmp_path_factory.mktemp("batch")
    path, out = write(folder, *(line(str(i)) for i in range(num_lines))), folder / "out"

    async def ask(line: BatchLine) -> BatchAnswer:
        return OK

    for cut in (*cuts, None):
        with AnswerFile(out) as answers:
            await run_batch(path, answers, ask, concurrency=3)
        assert sorted(answered(out), key=int) == [str(i) for i in range(num_lines)]
        if cut is not None:
            data = out.read_bytes()
            out.write_bytes(data[: int(len(data) * cut)])


def test_two_do_not_write_one_file(tmp_path: Path) -> None:
    with AnswerFile(tmp_path / "out"), pytest.raises(ConfigError, match="written by another"):
        AnswerFile(tmp_path / "out")
    AnswerFile(tmp_path / "out").__exit__()


async def test_what_is_raised_ends_all_and_loses_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, *(line(str(i)) for i in range(20)))

    async def ask(line: BatchLine) -> BatchAnswer:
        await asyncio.sleep(0)
        if line.custom_id == "9":
            raise ConfigError("gone")
        return OK

    with AnswerFile(tmp_path / "out") as answers, pytest.raises(ConfigError, match="gone"):
        await run_batch(path, answers, ask, concurrency=3)
    assert 7 <= len(answered(tmp_path / "out")) < 20
    assert len(asyncio.all_tasks()) == 1


def test_a_full_disk_is_a_clear_error_and_what_was_written_stays_whole(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with AnswerFile(tmp_path / "out") as answers:
        answers.add("a", OK)
        size = (tmp_path / "out").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, before[1]))
        try:
            with pytest.raises(ConfigError, match="run it again once there is room"):
                answers.add("b", OK)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        answers.add("b", OK)
    assert answered(tmp_path / "out") == ["a", "b"]
    with pytest.raises(ConfigError, match="is not a file"):
        AnswerFile(Path("/dev/null"))


@pytest.mark.parametrize("body", [b"<html>", b"\xff\xfe", b'{\n "a": 1\n}', b'{"a":1}', b"", b"[" * 99_999])
def test_any_body_is_one_line(tmp_path: Path, body: bytes) -> None:
    with AnswerFile(tmp_path / "out") as answers:
        answers.add("a", BatchAnswer(500, body))
    (shown,) = map(json.loads, (tmp_path / "out").read_text().splitlines())
    assert shown["response"]["status_code"] == 500
    with AnswerFile(tmp_path / "out") as answers:
        assert (answers.has("a"), answers.num_failed) == (True, 1)
