"""Many requests in a file, and their answers in another, as OpenAI's batches have them; gone on with after a kill.

    in    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
    out   {"id": "batch_req_…", "custom_id": "a", "response": {"status_code": 200, "request_id": …, "body": …},
           "error": null}

An answer is written as a whole line, and what the answers have is not asked again: a line that a kill cut off is cut
away when the file is opened. Of the requests only those under way are in memory; of the others eight bytes each.
"""

import asyncio
import fcntl
import hashlib
import os
import secrets
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import msgspec
from msgspec import Meta, Raw

from hotloop.core.errors import ConfigError
from hotloop.core.files import named_errors
from hotloop.core.structs import compiled

MAX_LINE_BYTES = 16 << 20
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages", "/v1/responses")


@compiled
class _Line(msgspec.Struct):
    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    url: str
    body: Raw
    method: str = "POST"


@compiled
class _Answered(msgspec.Struct):
    custom_id: str


class BatchLine(NamedTuple):
    custom_id: str
    url: str
    body: bytes


class BatchAnswer(NamedTuple):
    status: int
    body: bytes
    request_id: str = ""


def read_batch(path: Path, endpoint: str = "") -> Iterator[BatchLine]:
    """Each request. Raises ConfigError, which names the line, for what is none, or is not for the `endpoint`."""
    with named_errors("read", path), path.open("rb") as file:
        number = 0
        while raw := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if raw.strip():
                yield _parse_line(raw, f"{path}, line {number}", endpoint)


def _parse_line(raw: bytes, place: str, endpoint: str) -> BatchLine:
    if len(raw) > MAX_LINE_BYTES:
        raise ConfigError(f"{place} has more than {MAX_LINE_BYTES} bytes")
    try:
        line = msgspec.json.decode(raw, type=_Line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place} is not a batch request: {error}") from None
    if line.method != "POST" or line.url not in ENDPOINTS or not bytes(line.body).startswith(b"{"):
        raise ConfigError(f"{place}: a request is a POST of an object to one of {', '.join(ENDPOINTS)}")
    if endpoint and line.url != endpoint:
        raise ConfigError(f"{place}: its url is {line.url}, and the batch's endpoint {endpoint}")
    return BatchLine(line.custom_id, line.url, bytes(line.body))


def count_lines(path: Path, endpoint: str = "") -> int:
    """How many requests a file has, all of them read once. Raises ConfigError where one is wrong or there twice."""
    known: set[int] = set()
    for number, line in enumerate(read_batch(path, endpoint), 1):
        known.add(_digest(line.custom_id))
        if len(known) < number:
            raise ConfigError(f"{path}: the custom_id {line.custom_id!r:.100} is there twice")
    if not known:
        raise ConfigError(f"{path} has no request")
    return len(known)


class AnswerFile:
    """Answers as they come, one run at a time. Raises ConfigError where the file is another's, or cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_failed = 0
        with named_errors("write", path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise ConfigError(f"{path} is not a file that answers can be kept in")
            self._lock()
            self._known, self._size = self._read()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def __len__(self) -> int:
        return len(self._known)

    def has(self, custom_id: str) -> bool:
        return _digest(custom_id) in self._known

    def add(self, custom_id: str, answer: BatchAnswer) -> None:
        assert not self.has(custom_id), "it is answered already"
        shown = {
            "id": f"batch_req_{secrets.token_hex(12)}",
            "custom_id": custom_id,
            "response": {"status_code": answer.status, "request_id": answer.request_id, "body": _as_json(answer.body)},
            "error": None,
        }
        self._append(msgspec.json.encode(shown) + b"\n")
        self._known.add(_digest(custom_id))
        self.num_failed += answer.status != 200

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{self.path} is being written by another batch") from None

    def _read(self) -> tuple[set[int], int]:
        """What is answered already, and where the last whole line ends; behind that nothing is left."""
        known, size = set[int](), 0
        with os.fdopen(os.dup(self._file), "rb") as lines:
            lines.seek(0)
            for number, raw in enumerate(lines, 1):
                if not raw.endswith(b"\n"):
                    break
                try:
                    answered = msgspec.json.decode(raw, type=_Answered)
                except (ValueError, RecursionError):
                    raise ConfigError(f"{self.path}, line {number} is not a batch answer: name another file") from None
                self.num_failed += b'"status_code":200,' not in raw[:2000]
                known.add(_digest(answered.custom_id))
                size += len(raw)
        with named_errors("write", self.path):
            os.truncate(self._file, size)
        return known, size

    def _append(self, data: bytes) -> None:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            with suppress(OSError):
                os.truncate(self._file, self._size)
            raise ConfigError(f"cannot write {self.path}: {error.strerror}; run it again once there is room") from None
        self._size += len(data)


Ask = Callable[[BatchLine], Awaitable[BatchAnswer]]


async def run_batch(
    path: Path, answers: AnswerFile, ask: Ask, *, concurrency: int, on_answer: Callable[[], None] = lambda: None
) -> None:
    """Ask what is not answered, several at a time, until all is. Whatever is raised ends it, with nothing lost."""
    left = (line for line in read_batch(path) if not answers.has(line.custom_id))

    async def work() -> None:
        for line in left:
            answer = await ask(line)
            answers.add(line.custom_id, answer)
            on_answer()

    workers = [asyncio.create_task(work()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


def _as_json(body: bytes) -> Any:
    """The body as it came, to the byte, if it is JSON on one line; else as a text."""
    try:
        value = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")
    return value if b"\n" in body else Raw(body)


def _digest(custom_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
