"""Engines over one opened backend, and what they answered.

Opening a backend takes longer than most of what is asked of it here, and an engine closes its own: so it is lent.
"""

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rich.console import Console

from hotloop.backends.backend import Backend, Batch, Copy, Flight
from hotloop.core.request import FinishReason, Request, TokenEvent, Usage
from hotloop.engine.engine import Engine

PATIENCE_S = 120.0  # without any event: then something hangs


class LentBackend:
    """A backend that outlives its engine; it may say that it has fewer blocks than it has."""

    def __init__(self, inner: Backend, num_blocks: int | None = None) -> None:
        self._inner = inner
        self.depth = inner.depth
        self.step_tokens = inner.step_tokens
        self.max_alone = inner.max_alone
        self.block_size = inner.block_size
        self.num_blocks = min(num_blocks or inner.num_blocks, inner.num_blocks)
        self.vocab_size = inner.vocab_size
        self.max_context = inner.max_context
        self.block_bytes = inner.block_bytes
        self.num_states, self.state_bytes = inner.num_states, inner.state_bytes
        self.num_window_blocks, self.window = inner.num_window_blocks, inner.window
        self.kv_layout = inner.kv_layout
        self.host_memory = inner.host_memory

    def launch(self, batch: Batch) -> Flight:
        return self._inner.launch(batch)

    def read_blocks(self, block_ids: Sequence[int]) -> Copy:
        return self._inner.read_blocks(block_ids)

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        self._inner.write_blocks(block_ids, data)

    def read_state(self, slot: int) -> Copy:
        return self._inner.read_state(slot)

    def write_state(self, slot: int, data: memoryview) -> None:
        self._inner.write_state(slot, data)

    def close(self) -> None:
        """The lender closes it."""


@dataclass(slots=True)
class Answer:
    """What came of one request."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    usage: Usage | None = None

    def take(self, event: TokenEvent) -> None:
        self.token_ids += event.token_ids
        self.text += event.text
        self.finish_reason = event.finish_reason
        self.usage = event.usage


def ask(engine: Engine, agents: Sequence[Sequence[Request]]) -> dict[str, Answer]:
    """All agents at once, each of which asks its requests one after another. Returns when the engine is idle again."""
    events: SimpleQueue[TokenEvent] = SimpleQueue()
    left = {request.id: deque(requests) for requests in agents for request in requests[:1]}
    answers = {request.id: Answer() for requests in agents for request in requests}
    engine.submit([requests.popleft() for requests in left.values()], events.put)
    while left:
        event = events.get(timeout=PATIENCE_S)
        if event.error:
            raise event.error
        answers[event.request_id].take(event)
        if event.finish_reason is None:
            continue
        requests = left.pop(event.request_id)
        if requests:
            request = requests.popleft()
            left[request.id] = requests
            engine.submit([request], events.put)
    wait_until_idle(engine)
    return answers


def wait_until_idle(engine: Engine, timeout_s: float = PATIENCE_S) -> None:
    if not engine._idle.wait(timeout_s):
        raise TimeoutError(f"the engine is still busy after {timeout_s:g} s")


def tell(report: Mapping[str, Any], show: Callable[[Mapping[str, Any], Console], None], path: Path | None) -> int:
    """Show a report, and write it down if that is wanted; the exit code."""
    if path:
        path.write_text(json.dumps(report))
    show(report, Console(width=140))
    return 0 if report["passed"] else 1
