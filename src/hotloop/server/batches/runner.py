"""Runs the batches of a folder, each line as a request of its owner in the background class.

A batch that was under way when the server ended goes on when it starts again. Of several processes that serve one
folder the one that holds the lock of the answers runs a batch; the others look again from time to time.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, MutableMapping
from typing import Any

import httpx
from starlette.types import ASGIApp

from hotloop.core.errors import ConfigError
from hotloop.http.batch import AnswerFile, BatchAnswer, BatchLine, run_batch
from hotloop.http.keys import Tenant
from hotloop.server.batches.store import OPEN, BatchRecord, BatchStore, Status
from hotloop.wire.hints import PRIORITY_HEADER, TASK_HEADER

log = logging.getLogger(__name__)

CONCURRENCY = 16
LOOK_S = 5.0
_SAVED_S = 1.0
_BUSY = frozenset({429, 503, 529})
_MAX_PAUSE_S = 5.0
_HEADERS = {"content-type": "application/json", PRIORITY_HEADER: "background", TASK_HEADER: "batch"}


class BatchRunner:
    """`app` is the API without keys: whose a request is stands in its scope."""

    def __init__(self, store: BatchStore, app: ASGIApp) -> None:
        self.store = store
        self._app = app
        self._running: dict[str, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._looking = asyncio.create_task(self._look())

    async def close(self) -> None:
        """Stop; what is answered is kept, and the rest goes on when the server is back."""
        tasks = [*self._running.values(), *([self._looking] if self._looking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def run(self, record: BatchRecord) -> None:
        if record.id not in self._running:
            task = self._running[record.id] = asyncio.create_task(self._run(record), name=record.id)
            task.add_done_callback(lambda _: self._running.pop(record.id, None))

    async def cancel(self, record: BatchRecord) -> BatchRecord:
        """What is answered stays. Another process that runs it sees that it is over when it next saves."""

        def end(known: BatchRecord) -> None:
            if known.status == OPEN:
                known.status, known.ended_at = "cancelled", int(time.time())

        record = await asyncio.to_thread(self.store.change, record.id, end)
        if task := self._running.get(record.id):
            task.cancel()
            await asyncio.wait({task})
        return record

    async def _look(self) -> None:
        while True:
            try:
                for record in await asyncio.to_thread(self.store.open_batches):
                    self.run(record)
            except ConfigError as error:
                log.warning("batches cannot be listed: %s", error)
            await asyncio.sleep(LOOK_S)

    async def _run(self, record: BatchRecord) -> None:
        try:
            answers = AnswerFile(self.store.content(record.output_file_id))
        except ConfigError as error:
            log.debug("batch %s: %s", record.id, error)
            return
        with answers:
            status: Status = "failed"
            try:
                await self._ask_all(record, answers)
                status = "completed"
            except asyncio.CancelledError:
                status = OPEN
                raise
            except ConfigError as error:
                record.error = str(error)
                log.warning("batch %s failed: %s", record.id, error)
            except Exception:
                record.error = "internal server error; see the server log"
                log.exception("batch %s failed", record.id)
            finally:
                self._save(record, answers, status)

    async def _ask_all(self, record: BatchRecord, answers: AnswerFile) -> None:
        saved_at = time.monotonic()

        def on_answer() -> None:
            nonlocal saved_at
            if time.monotonic() - saved_at >= _SAVED_S:
                saved_at = time.monotonic()
                self._save(record, answers, OPEN)

        async with self._client(Tenant(record.owner, is_apart=record.is_apart)) as client:

            async def ask(line: BatchLine) -> BatchAnswer:
                return await _ask(client, line)

            path = self.store.content(record.input_file_id)
            await run_batch(path, answers, ask, concurrency=CONCURRENCY, on_answer=on_answer)

    def _save(self, record: BatchRecord, answers: AnswerFile, status: Status) -> None:
        """Unless it was cancelled meanwhile, here or by another process."""

        def note(known: BatchRecord) -> None:
            if known.status == OPEN:
                known.status, known.error = status, record.error
                known.ended_at = None if status == OPEN else int(time.time())
            elif task := asyncio.current_task():
                task.cancel()
            known.num_answered, known.num_failed = len(answers), answers.num_failed

        with contextlib.suppress(ConfigError):
            self.store.change(record.id, note)

    def _client(self, tenant: Tenant) -> httpx.AsyncClient:
        async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
            scope["state"] = {"tenant": tenant}
            try:
                await self._app(scope, receive, send)
            except Exception:
                log.exception("a request of a batch failed")
                raise

        transport = httpx.ASGITransport(app, raise_app_exceptions=False)  # its line's answer says so
        return httpx.AsyncClient(transport=transport, base_url="http://batch", headers=_HEADERS, timeout=None)


async def _ask(client: httpx.AsyncClient, line: BatchLine) -> BatchAnswer:
    """The answer; as long as the server is busy it is asked again."""
    pause_s = 0.25
    while True:
        response = await client.post(line.url, content=line.body)
        if response.status_code not in _BUSY:
            return BatchAnswer(response.status_code, response.content, _request_id(response.headers))
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)


def _request_id(headers: Mapping[str, str]) -> str:
    return headers.get("x-request-id", "")
