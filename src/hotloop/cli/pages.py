"""The page at /ui, put together: the store it reads, and what goes on right now in a server or a router."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from hotloop.cli.lint import lint_spans
from hotloop.cli.tracing import store_path
from hotloop.core.config import TraceConfig
from hotloop.core.errors import ConfigError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from hotloop.core.request import Request
    from hotloop.engine.engine import Engine
    from hotloop.router.app import RouterApp
    from hotloop.trace.store import TraceStore
    from hotloop.ui.source import Live, LiveRequest

_MAX_REQUESTS = 200
"""How many requests are listed."""


@contextmanager
def opened_store(config: TraceConfig) -> "Iterator[TraceStore | None]":
    """What is recorded, to be looked at; None where nothing is."""
    from hotloop.trace.store import TraceStore

    path = store_path(config)
    try:
        store = TraceStore(path) if path else None
    except ConfigError:
        store = None
    with store or nullcontext():
        yield store


def page_of(
    store: "TraceStore", title: str, live: "Callable[[], Live]", *, model: str = "", api_key: str | None = None
) -> "ASGIApp":
    from hotloop.ui.app import create_ui
    from hotloop.ui.store_source import StoreSource

    return create_ui(StoreSource(store, title=title, model=model, live=live, lint=lint_spans), api_key=api_key)


def live_of_engine(engine: "Engine", max_running: int) -> "Live":
    from hotloop.ui.source import KvUse, Live, SessionBlocks, TokenTotals

    stats, requests = engine.stats(), engine.requests()
    used = Counter[str]()
    for request in requests:
        used[request.session_id] += math.ceil(request.num_computed / engine.block_size)
    sessions = tuple(
        SessionBlocks(session=name, num_used=count, num_cached=0) for name, count in used.most_common() if count
    )
    return Live(
        at_s=time.monotonic(),
        num_running=stats.num_running,
        max_running=max_running,
        waiting={priority.name.lower(): count for priority, count in stats.num_waiting.items()},
        totals=TokenTotals(
            num_prompt=stats.num_prompt_tokens,
            num_cached=stats.num_cached_tokens,
            num_output=stats.num_output_tokens,
            num_sampled=stats.num_sampled_tokens,
            num_forced=stats.num_forced_tokens,
            num_drafted=stats.num_drafted_tokens,
            num_accepted=stats.num_accepted_tokens,
        ),
        kv=KvUse(
            num_blocks=stats.num_blocks,
            num_used=stats.num_blocks_used,
            num_cached=stats.num_blocks_cached,
            block_size=engine.block_size,
            sessions=sessions,
        ),
        requests=tuple(map(_live_request, requests[:_MAX_REQUESTS])),
    )


def live_of_router(app: "RouterApp") -> "Live":
    from hotloop.core.request import Priority
    from hotloop.ui.source import Live, LiveReplica, TokenTotals

    fleet = app.fleet
    replicas = tuple(
        LiveReplica(
            name=each.name,
            kind=each.kind.name,
            state=each.state,
            why=each.why,
            models=tuple(sorted(each.models)),
            num_running=each.num_running,
        )
        for each in (*fleet.replicas.values(), *fleet.leaving)
    )
    return Live(
        at_s=time.monotonic(),
        num_running=fleet.num_running,
        waiting={priority.name.lower(): fleet.room.num_waiting(priority) for priority in Priority},
        totals=TokenTotals(num_prompt=app.metrics.num_prompt, num_cached=app.metrics.num_cached),
        replicas=replicas,
    )


def _live_request(request: "Request") -> "LiveRequest":
    from hotloop.ui.source import LiveRequest

    is_reading = request.first_token_at is None
    return LiveRequest(
        session=request.session_id,
        priority=request.priority.name.lower(),
        state="waiting" if request.first_scheduled_at is None else "reading" if is_reading else "writing",
        num_prompt=request.num_prompt,
        num_cached=request.num_cached,
        num_output=request.num_output,
        age_s=time.monotonic() - request.arrived_at,
    )
