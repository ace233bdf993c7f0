"""Reading questions: from folders and files, and from a wheel as pip would leave it."""

import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotloop.bench import bfcl
from hotloop.bench.bfcl import QuestionsMissing, fetch_questions, json_schema_of, read_questions
from hotloop.core.errors import ConfigError

FUNCTION = {
    "name": "area.of",
    "description": "The area.",
    "parameters": {"type": "dict", "properties": {"base": {"type": "float"}}, "required": ["base"]},
}
KEY = [{"area.of": {"base": [3]}}]


def row(number: int, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Area {number}?"}]
    return {"id": f"q{number}", "messages": messages, "functions_raw": [FUNCTION], "ground_truth": KEY, **more}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    text = "\n".join(json.dumps(row) for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_types_become_those_of_json_schema():
    schema = {
        "type": "dict",
        "properties": {
            "type": {"type": "float", "description": "dict"},
            "pair": {"type": "tuple", "items": {"type": "any"}},
            "map": {"type": "dict", "additionalProperties": {"type": "float"}},
        },
    }
    assert json_schema_of(schema) == {
        "type": "object",
        "properties": {
            "type": {"type": "number", "description": "dict"},
            "pair": {"type": "array", "items": {}},
            "map": {"type": "object", "additionalProperties": {"type": "number"}},
        },
    }


def test_a_folder_has_a_file_a_category(tmp_path: Path):
    write(tmp_path / "simple_python.jsonl.gz", [row(i) for i in range(3)])
    write(tmp_path / "parallel.jsonl", [row(i) for i in range(3)])
    questions = read_questions(tmp_path, ["simple", "parallel"], 2)
    assert [(question.category, question.id, question.is_parallel) for question in questions] == [
        ("simple", "q0", False),
        ("simple", "q1", False),
        ("parallel", "q0", True),
        ("parallel", "q1", True),
    ]
    (tool,) = questions[0].tools
    assert tool["function"]["name"] == "area.of"
    assert tool["function"]["parameters"]["properties"] == {"base": {"type": "number"}}
    assert questions[0].messages == ({"role": "user", "content": "Area 0?"},)
    assert questions[0].expected == tuple(KEY)


def test_one_file_is_one_category(tmp_path: Path):
    path = write(tmp_path / "simple_python.jsonl", [row(0)])
    assert [question.category for question in read_questions(path, ["parallel"])] == ["simple"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "has no questions"),
        (b"{}", "line 1 is not a question: .*`id`"),
        (b'\n{"id": "q7"}', "q7 has no messages or no functions"),
        (b"\xff\xff", "is not a text file"),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path: Path, content: bytes, complaint: str):
    (tmp_path / "mine.jsonl").write_bytes(content)
    with pytest.raises(ConfigError, match=complaint):
        read_questions(tmp_path / "mine.jsonl", [])


def test_what_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"has no simple_python\.jsonl"):
        read_questions(tmp_path, ["simple"])
    with pytest.raises(ConfigError, match=r"cannot read .*none.gz: No such file"):
        read_questions(tmp_path / "none.gz", ["simple"])
    (tmp_path / "mine.jsonl.gz").write_bytes(b"plain")
    with pytest.raises(ConfigError, match=r"cannot read .*mine"):
        read_questions(tmp_path / "mine.jsonl.gz", [])


def make_wheel(path: Path) -> None:
    asked = {"id": "q1", "question": [[{"role": "user", "content": "Area?"}]], "function": [FUNCTION]}
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("bfcl_eval/data/BFCL_v4_simple_python.json", json.dumps(asked))
        wheel.writestr(
            "bfcl_eval/data/possible_answer/BFCL_v4_simple_python.json", json.dumps({"id": "q1", "ground_truth": KEY})
        )


def test_a_wheel_that_is_not_the_one_expected_is_not_kept(empty_home: Path):
    num_downloads = 0

    def download(requirement: str, folder: Path, report: Callable[[int], None]) -> None:
        nonlocal num_downloads
        num_downloads += 1
        assert requirement.startswith("bfcl-eval==")
        make_wheel(folder / "some.whl")

    with pytest.raises(QuestionsMissing, match="sha256 differs"):
        fetch_questions(["simple"], download=download)
    assert not list((empty_home / "data").iterdir())
    assert num_downloads == 1


def test_questions_and_key_of_the_wheel_are_joined(tmp_path: Path):
    make_wheel(tmp_path / "some.whl")
    (question,) = bfcl.read_wheel(tmp_path / "some.whl", ["simple"])
    assert (question.id, question.category, question.expected) == ("q1", "simple", tuple(KEY))
    assert question.messages[0]["content"] == "Area?"


def test_a_home_that_cannot_be_written_is_one_clear_line(empty_home: Path):
    empty_home.write_text("a file, not a folder")
    with pytest.raises(QuestionsMissing, match="could not be written"):
        fetch_questions(["simple"], download=lambda *_: None)
