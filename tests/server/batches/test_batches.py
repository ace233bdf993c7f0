"""Files and batches, as OpenAI's client sees them."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from tests.server.serving import Serving, check_error, only, until

from hotloop.core.config import ServerConfig
from hotloop.core.errors import ConfigError
from hotloop.http.keys import Tenant
from hotloop.server.batches.api import _keep
from hotloop.server.batches.runner import BatchRunner
from hotloop.server.batches.store import BatchRecord, BatchStore, FileRecord
from hotloop.server.errors import HttpError

BOUNDARY = "x" * 20


def lines(num_lines: int, **fields: Any) -> bytes:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, **only("a"), **fields}
    rows = (
        {"custom_id": f"r{i}", "method": "POST", "url": "/v1/chat/completions", "body": body} for i in range(num_lines)
    )
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def config(folder: Path, **fields: Any) -> ServerConfig:
    return ServerConfig(port=0, batch_dir=str(folder), **fields)


@pytest.fixture(autouse=True)
def whole_server(request: pytest.FixtureRequest) -> None:
    if Serving.is_routed:
        pytest.skip("a router keeps no files")


def ended(client: Any, batch_id: str) -> Any:
    until(lambda: client.batches.retrieve(batch_id).status != "in_progress")
    return client.batches.retrieve(batch_id)


def test_a_batch_from_upload_to_answers(tmp_path: Path) -> None:
    with Serving(config(tmp_path)) as serving, serving.openai() as client:
        file = client.files.create(file=("in.jsonl", lines(20)), purpose="batch")
        assert (file.filename, file.bytes, file.purpose) == ("in.jsonl", len(lines(20)), "batch")
        made = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"for": "me"}
        )
        batch = ended(client, made.id)
        assert (batch.status, batch.metadata) == ("completed", {"for": "me"})
        assert batch.request_counts.to_dict() == {"total": 20, "completed": 20, "failed": 0}
        answers = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
        assert sorted(each["custom_id"] for each in answers) == sorted(f"r{i}" for i in range(20))
        assert {each["response"]["body"]["choices"][0]["message"]["content"] for each in answers} == {"aa"}
        assert [each.id for each in client.batches.list()] == [batch.id]
        assert {each.purpose for each in client.files.list()} == {"batch", "batch_output"}
        assert client.files.delete(file.id).deleted
        assert len([*client.files.list()]) == 1
        assert (
            'hotloop_requests_total{endpoint="chat",finish_reason="length"} 20.0' in serving.http.get("/metrics").text
        )


def test_what_is_refused_is_an_answer_too(tmp_path: Path) -> None:
    with Serving(config(tmp_path)) as serving, serving.openai() as client:
        file = client.files.create(file=("in.jsonl", lines(3, n=0)), purpose="batch")
        made = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        batch = ended(client, made.id)
        assert batch.request_counts.to_dict() == {"total": 3, "completed": 0, "failed": 3}


def test_a_batch_goes_on_when_the_server_is_back(tmp_path: Path) -> None:
    with Serving(config(tmp_path)) as serving, serving.openai() as client:
        file = client.files.create(file=("in.jsonl", lines(40)), purpose="batch")
        made = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        out = BatchStore(tmp_path).content(made.output_file_id or "")
        until(lambda: out.stat().st_size > 0)
    num_before = out.read_bytes().count(b"\n")
    with Serving(config(tmp_path)) as serving, serving.openai() as client:
        batch = ended(client, made.id)
        assert batch.request_counts.to_dict() == {"total": 40, "completed": 40, "failed": 0}
        ids = [json.loads(line)["custom_id"] for line in out.read_text().splitlines()]
        assert sorted(ids) == sorted({f"r{i}" for i in range(40)})
        assert num_before <= 40


def test_a_batch_that_is_cancelled_keeps_what_is_answered(tmp_path: Path) -> None:
    with Serving(config(tmp_path)) as serving, serving.openai() as client:
        file = client.files.create(file=("in.jsonl", lines(40, max_tokens=3000)), purpose="batch")
        made = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        check_error(serving.http.delete(f"/v1/files/{file.id}"), 400)
        assert client.batches.cancel(made.id).status == "cancelled"
        until(lambda: serving.engine.stats().num_running == 0)
        assert client.batches.retrieve(made.id).status == "cancelled"


def made_batch(store: BatchStore, content: bytes) -> BatchRecord:
    ids = {"input_file_id": store.new_id("file-"), "output_file_id": store.new_id("file-")}
    store.content(ids["input_file_id"]).write_bytes(content)
    about = {"owner": "", "is_apart": False, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch_id = store.new_id("batch_")
    record = BatchRecord(id=batch_id, metadata=None, created_at=0, num_lines=len(content.splitlines()), **ids, **about)
    store.save(record)
    return record


async def test_a_mistake_over_one_line_is_its_answer_and_the_batch_goes_on(tmp_path: Path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("a mistake")

    store = BatchStore(tmp_path)
    record = made_batch(store, lines(5))
    runner = BatchRunner(store, app)
    runner.run(record)
    await asyncio.wait(runner._running.values())
    known = store.find(record.id, BatchRecord, everybody())
    assert (known.status, known.num_answered, known.num_failed) == ("completed", 5, 5)


async def test_a_batch_that_breaks_off_is_not_completed(tmp_path: Path) -> None:
    class Unreadable(BatchStore):
        def content(self, file_id: str) -> Path:
            if file_id == record.input_file_id:
                raise RuntimeError("a mistake")
            return super().content(file_id)

    record = made_batch(BatchStore(tmp_path), lines(5))
    runner = BatchRunner(Unreadable(tmp_path), Starlette())
    runner.run(record)
    await asyncio.wait(runner._running.values())
    known = runner.store.find(record.id, BatchRecord, everybody())
    assert (known.status, known.error) == ("failed", "internal server error; see the server log")


async def test_a_batch_that_ended_meanwhile_is_not_cancelled(tmp_path: Path) -> None:
    store = BatchStore(tmp_path)
    record = made_batch(store, lines(1))
    store.change(record.id, lambda known: setattr(known, "status", "completed"))
    assert (await BatchRunner(store, Starlette()).cancel(record)).status == "completed"
    assert store.find(record.id, BatchRecord, everybody()).status == "completed"


def test_changes_of_one_batch_are_made_one_after_the_other(tmp_path: Path) -> None:
    store, has_begun, may_end = BatchStore(tmp_path), threading.Event(), threading.Event()
    record = made_batch(store, lines(1))

    def count(known: BatchRecord) -> None:
        has_begun.set()
        assert may_end.wait(30)
        known.num_answered = 1

    def cancel(known: BatchRecord) -> None:
        known.status = "cancelled"

    with ThreadPoolExecutor() as pool:
        counting = pool.submit(store.change, record.id, count)
        assert has_begun.wait(30)
        cancelling = pool.submit(BatchStore(tmp_path).change, record.id, cancel)
        may_end.set()
        counting.result(30)
        cancelling.result(30)
    known = store.find(record.id, BatchRecord, everybody())
    assert (known.status, known.num_answered) == ("cancelled", 1)


def test_of_an_upload_that_cannot_be_noted_nothing_stays(tmp_path: Path) -> None:
    class Full(BatchStore):
        def save(self, record: FileRecord | BatchRecord) -> None:
            raise ConfigError(f"cannot write {self.folder}: No space left on device")

    with pytest.raises(HttpError, match="cannot be saved: there is no room"):
        _keep(Full(tmp_path), UploadFile(BytesIO(lines(3)), filename="in.jsonl"), everybody())
    assert not [*tmp_path.iterdir()]


def form(*parts: tuple[str, str, bytes]) -> dict[str, Any]:
    body = b"".join(
        f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + data + b"\r\n"
        for name, more, data in parts
    )
    headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}", "authorization": "Bearer any"}
    return {"content": body + f"--{BOUNDARY}--\r\n".encode(), "headers": headers}


def test_bad_input(tmp_path: Path) -> None:
    file, purpose = ("file", '; filename="../../x"', lines(1)), ("purpose", "", b"batch")
    with Serving(config(tmp_path)) as serving:
        post = serving.http.post
        sent = form(file, purpose)
        uploaded = post("/v1/files", **sent).json()
        assert uploaded["filename"] == "../../x"
        assert sorted(path.name for path in tmp_path.iterdir()) == [f"{uploaded['id']}.json", f"{uploaded['id']}.jsonl"]
        del sent["headers"]["authorization"]
        check_error(post("/v1/files", **sent), 401)
        check_error(post("/v1/files", **form(purpose)), 400)
        check_error(post("/v1/files", **form(file, ("purpose", "", b"vision"))), 400)
        check_error(post("/v1/files", json={}, headers={"authorization": "Bearer any"}), 415)
        for path in ("/v1/files/none", "/v1/files/..%2Fetc", "/v1/batches/batch_" + "0" * 32):
            check_error(serving.http.get(path), 404)
        body = {"input_file_id": uploaded["id"], "endpoint": "/v1/responses"}
        assert "and the batch's endpoint" in check_error(post("/v1/batches", json=body), 400)["message"]
        check_error(post("/v1/batches", json={**body, "endpoint": "/metrics"}), 400)
        check_error(post("/v1/batches", json={**body, "input_file_id": "file-x"}), 404)
    with Serving() as serving:
        assert "--batch-dir" in check_error(serving.http.get("/v1/files"), 404)["message"]


def test_one_tenant_sees_nothing_of_another(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\nboss admin\n")
    with Serving(config(tmp_path / "batches", api_key_file=str(keys))) as serving, ExitStack() as stack:
        one, two, boss = (stack.enter_context(serving.openai(key)) for key in ("one", "two", "boss"))
        file = one.files.create(file=("in.jsonl", lines(2)), purpose="batch")
        made = one.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        assert ended(one, made.id).request_counts.completed == 2
        assert [len([*client.files.list()]) for client in (one, two, boss)] == [2, 0, 2]
        for call in (two.files.retrieve, two.files.content, two.files.delete):
            with pytest.raises(Exception, match="there is no file"):
                call(file.id)
        with pytest.raises(Exception, match="there is no batch"):
            two.batches.retrieve(made.id)
        with pytest.raises(Exception, match="there is no batch"):
            one.batches.retrieve(file.id)
        with pytest.raises(Exception, match="there is no file"):
            one.files.retrieve(made.id)
    (record,) = BatchStore(tmp_path / "batches").newest(BatchRecord, everybody())
    assert record.owner != "one", "a key is not written down"


def everybody() -> Tenant:
    return Tenant("", is_admin=True)
