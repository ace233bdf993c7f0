"""One replica of the engine deployment: Serve makes it, asks it, watches it, and lets it finish before it ends."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hotloop.ray.processes import OpenProcess
from hotloop.ray.tickets import AnswerHead, Outline
from hotloop.router.placement.policy import ReplicaChoice
from hotloop.router.upstream.wire import UpstreamRequest
from ray import serve

_MAX_JOBS = 32  # prompts and grammars in the making, as in a server


class EngineReplica:
    """Serve calls `__init__` on the event loop that will answer, and `__del__` once, when all is answered."""

    def __init__(self, open_process: OpenProcess) -> None:
        executor = ThreadPoolExecutor(_MAX_JOBS, thread_name_prefix="hotloop-job")
        asyncio.get_running_loop().set_default_executor(executor)
        self._name: str = serve.get_replica_context().replica_id.unique_id
        self._process = open_process()

    async def answer(
        self, ask: UpstreamRequest, outline: Outline, choice: ReplicaChoice | None = None
    ) -> AsyncIterator[AnswerHead | bytes]:
        """The head, then the body as it is written. `outline` was for the placement, which added its `choice`."""
        answer = await self._process.send(ask)
        try:
            yield AnswerHead(answer.status, answer.headers, self._name, choice)
            async for chunk in answer:
                yield chunk
        finally:
            await answer.aclose()

    def check_health(self) -> None:
        self._process.check()

    def record_replica_metadata(self) -> dict[str, Any]:
        return {"capacity_tokens": self._process.capacity_tokens}

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self._process.close()
