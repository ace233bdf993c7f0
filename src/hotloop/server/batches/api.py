"""`/v1/files` and `/v1/batches`: the subset of OpenAI's that batches need."""

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.datastructures import UploadFile
from starlette.requests import Request as HttpRequest
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from hotloop.core.errors import ConfigError, RequestError
from hotloop.core.structs import compiled
from hotloop.http.batch import ENDPOINTS, count_lines
from hotloop.http.keys import Tenant
from hotloop.server.batches.store import BatchRecord, BatchStore, FileRecord, Record
from hotloop.server.border import read_json
from hotloop.server.errors import ApiNotServed, HttpError
from hotloop.server.options import convert, decode
from hotloop.wire.field import Json

if TYPE_CHECKING:
    from hotloop.server.batches.runner import BatchRunner

MAX_FILE_BYTES = 512 << 20
_MAX_BODY = 64 << 10
_MAX_LISTED = 1000
_WINDOW = 24 * 3600  # seconds that OpenAI's only completion window has


@compiled
class BatchBody(msgspec.Struct, kw_only=True):
    input_file_id: str
    endpoint: Literal[ENDPOINTS]  # type: ignore[valid-type]
    completion_window: Annotated[str, Meta(max_length=16)] = "24h"
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None


def _runner(http: HttpRequest) -> "BatchRunner":
    runner: BatchRunner | None = http.app.state.batches
    if runner is None:
        raise ApiNotServed("files and batches are kept in a folder: start the server with --batch-dir")
    return runner


def _store(http: HttpRequest) -> BatchStore:
    return _runner(http).store


def _tenant(http: HttpRequest) -> Tenant:
    tenant: Tenant = http.state.tenant
    return tenant


async def upload(http: HttpRequest) -> Response:
    """A form with `file` and `purpose`. A page of another origin can send a form unasked, but no key with it."""
    store, length = _store(http), http.headers.get("content-length", "")
    if not {"authorization", "x-api-key"} & {*http.headers}:
        raise HttpError(401, "an upload needs an Authorization header, even where no key is required")
    if not length.isascii() or not length.isdigit() or int(length) > MAX_FILE_BYTES:
        raise HttpError(413, f"an upload needs a Content-Length of at most {MAX_FILE_BYTES} bytes")
    if not http.headers.get("content-type", "").startswith("multipart/form-data"):
        raise HttpError(415, "unsupported media type: send a form with file and purpose")
    async with http.form(max_files=1, max_fields=10) as form:
        file, purpose = form.get("file"), form.get("purpose")
        if not isinstance(file, UploadFile):
            raise RequestError("file is missing", param="file")
        if purpose != "batch":
            raise RequestError("purpose must be 'batch'", param="purpose")
        record = await asyncio.to_thread(_keep, store, file, _tenant(http))
    return JSONResponse(_show_file(record))


def _keep(store: BatchStore, file: UploadFile, tenant: Tenant) -> FileRecord:
    """All of it, or nothing."""
    file_id = store.new_id("file-")
    path = store.content(file_id)
    try:
        with path.open("xb") as kept:
            path.chmod(0o600)
            shutil.copyfileobj(file.file, kept)
        return store.add_file(tenant, file.filename or "batch.jsonl", "batch", file_id)
    except (OSError, ConfigError) as error:
        path.unlink(missing_ok=True)
        reason = error.strerror if isinstance(error, OSError) else "there is no room for what is known of it"
        raise HttpError(507, f"the file cannot be saved: {reason}") from None


async def show_file(http: HttpRequest) -> Response:
    return JSONResponse(_show_file(_file(http)))


async def file_content(http: HttpRequest) -> Response:
    return FileResponse(_store(http).content(_file(http).id), media_type="application/jsonl")


async def delete_file(http: HttpRequest) -> Response:
    record = _file(http)
    open_ones = await asyncio.to_thread(_store(http).open_batches)
    if any(record.id in (each.input_file_id, each.output_file_id) for each in open_ones):
        raise RequestError("a batch in progress uses this file: cancel it first", param="id")
    _store(http).remove_file(record)
    return JSONResponse({"id": record.id, "object": "file", "deleted": True})


async def create_batch(http: HttpRequest) -> Response:
    body = convert(decode(await read_json(http, _MAX_BODY)), BatchBody)
    store, tenant = _store(http), _tenant(http)
    file = store.find(body.input_file_id, FileRecord, tenant)
    try:
        num_lines = await asyncio.to_thread(count_lines, store.content(file.id), body.endpoint)
    except ConfigError as error:
        reason = str(error).replace(str(store.content(file.id)), file.filename)
        raise RequestError(reason, param="input_file_id") from None
    batch_id, output_id = store.new_id("batch_"), store.new_id("file-")
    store.content(output_id).touch(mode=0o600)
    store.add_file(tenant, f"{batch_id}_output.jsonl", "batch_output", output_id)
    record = BatchRecord(
        id=batch_id,
        owner=tenant.id,
        is_apart=tenant.is_apart,
        endpoint=body.endpoint,
        input_file_id=file.id,
        output_file_id=output_id,
        completion_window=body.completion_window,
        metadata=body.metadata,
        created_at=int(time.time()),
        num_lines=num_lines,
    )
    store.save(record)
    _runner(http).run(record)
    return JSONResponse(_show_batch(record))


async def show_batch(http: HttpRequest) -> Response:
    return JSONResponse(_show_batch(_batch(http)))


async def cancel_batch(http: HttpRequest) -> Response:
    return JSONResponse(_show_batch(await _runner(http).cancel(_batch(http))))


def _file(http: HttpRequest) -> FileRecord:
    return _store(http).find(http.path_params["id"], FileRecord, _tenant(http))


def _batch(http: HttpRequest) -> BatchRecord:
    return _store(http).find(http.path_params["id"], BatchRecord, _tenant(http))


def _show_file(record: FileRecord) -> Json:
    about = {"id": record.id, "object": "file", "bytes": record.num_bytes, "created_at": record.created_at}
    return {**about, "filename": record.filename, "purpose": record.purpose, "status": "processed"}


def _show_batch(record: BatchRecord) -> Json:
    ended = {f"{status}_at": record.ended_at if record.status == status else None for status in _ENDS}
    errors = {"object": "list", "data": [{"code": "failed", "message": record.error}]} if record.error else None
    return {
        "id": record.id,
        "object": "batch",
        "endpoint": record.endpoint,
        "errors": errors,
        "input_file_id": record.input_file_id,
        "completion_window": record.completion_window,
        "status": record.status,
        "output_file_id": record.output_file_id,
        "error_file_id": None,
        "created_at": record.created_at,
        "in_progress_at": record.created_at,
        "expires_at": record.created_at + _WINDOW,
        **ended,
        "request_counts": {
            "total": record.num_lines,
            "completed": record.num_answered - record.num_failed,
            "failed": record.num_failed,
        },
        "metadata": record.metadata,
    }


_ENDS = ("completed", "failed", "cancelled")


def _list(kind: type[Record], show: Callable[[Record], Json]) -> Callable[[HttpRequest], Awaitable[Response]]:
    async def show_list(http: HttpRequest) -> Response:
        found = await asyncio.to_thread(_store(http).newest, kind, _tenant(http))
        data = [show(each) for each in found[:_MAX_LISTED]]
        ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
        return JSONResponse({"object": "list", "data": data, **ends, "has_more": False})

    return show_list


ROUTES = (
    Route("/v1/files", upload, methods=["POST"]),
    Route("/v1/files", _list(FileRecord, _show_file)),
    Route("/v1/files/{id}", show_file),
    Route("/v1/files/{id}", delete_file, methods=["DELETE"]),
    Route("/v1/files/{id}/content", file_content),
    Route("/v1/batches", create_batch, methods=["POST"]),
    Route("/v1/batches", _list(BatchRecord, _show_batch)),
    Route("/v1/batches/{id}", show_batch),
    Route("/v1/batches/{id}/cancel", cancel_batch, methods=["POST"]),
)
