"""The dashboard at /ui, put together: the store it reads, and what goes on right now in a server or a router.

Its code is imported when somebody looks at it first: no start waits for it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from hotloop.cli.tracing import load_prices
from hotloop.core.config import TraceConfig
from hotloop.core.errors import ConfigError, Overloaded
from hotloop.core.home import store_path
from hotloop.core.request import Priority, Request
from hotloop.http.keys import ApiKeys
from hotloop.http.page import Application
from hotloop.trace.runs import TraceStore

if TYPE_CHECKING:
    from hotloop.engine.engine import Engine
    from hotloop.engine.snapshot import EngineSnapshot
    from hotloop.router.app import RouterApp
    from hotloop.ui.source import KvUse, Live, LiveRequest

_MAX_LISTED = 200
"""How many requests are listed, and how many sessions; those that have the most of the memory."""
_PATIENCE_S = 10.0
"""How long the step may take after which it is seen what goes on."""


@contextmanager
def opened_store(config: TraceConfig) -> Iterator[TraceStore | None]:
    """What is recorded, to be looked at; None where nothing is."""
    path, prices = store_path(config), load_prices(None)
    try:
        store = TraceStore(path, prices=prices) if path else None
    except ConfigError:
        store = None
    with store or nullcontext():
        yield store


def page_of(
    store: TraceStore,
    title: str,
    live: "Callable[[], Awaitable[Live]]",
    *,
    model: str = "",
    keys: ApiKeys | None = None,
    names: Sequence[str] = (),
) -> Application:
    prices, made = load_prices(None), list[Application]()

    def make() -> None:
        from hotloop.cli.advice.linting import lint_spans
        from hotloop.ui.app import create_ui
        from hotloop.ui.store_source import StoreSource

        source = StoreSource(store, title=title, model=model, live=live, lint=lint_spans, prices=prices)
        made.append(create_ui(source, keys=keys, names=names))

    async def page(scope: Any, receive: Any, send: Any) -> None:
        if not made:
            await asyncio.to_thread(make)
        await made[0](scope, receive, send)

    return page


async def live_of_engine(engine: "Engine", *, patience_s: float = _PATIENCE_S) -> "Live":
    from hotloop.ui.source import Live

    seen = asyncio.shield(asyncio.wrap_future(engine.snapshot()))  # others may wait for the same
    try:
        snapshot = await asyncio.wait_for(seen, patience_s)
    except TimeoutError:
        raise Overloaded(f"the engine has not finished its current step for {patience_s:g} s") from None
    stats = snapshot.stats
    return Live(
        at_s=snapshot.at_s,
        num_running=stats.num_running,
        max_running=engine.max_running,
        waiting={priority.name.lower(): count for priority, count in stats.num_waiting.items()},
        totals=snapshot.totals._asdict(),
        kv=_kv_use(snapshot, engine.block_size),
        requests=tuple(_live_request(each, snapshot.above[each.id]) for each in snapshot.requests[:_MAX_LISTED]),
    )


def _kv_use(snapshot: "EngineSnapshot", block_size: int) -> "KvUse":
    from hotloop.ui.source import KvUse, SessionBlocks

    sessions = sorted(
        (
            SessionBlocks(session=name, num_used=each.num_used, num_cached=each.num_kept)
            for name, each in snapshot.blocks.items()
        ),
        key=lambda each: (-each.num_used - each.num_cached, each.session or ""),
    )
    return KvUse(
        num_blocks=snapshot.stats.num_blocks,
        num_used=snapshot.stats.num_blocks_used,
        num_cached=snapshot.stats.num_blocks_cached,
        block_size=block_size,
        sessions=tuple(sessions[:_MAX_LISTED]),
    )


async def live_of_router(app: "RouterApp") -> "Live":
    from hotloop.ui.source import Live, LiveReplica

    replica_set = app.replica_set
    replicas = tuple(
        LiveReplica(
            name=each.name,
            kind=each.kind.name,
            state=each.state,
            why=each.why,
            models=tuple(sorted(each.models)),
            num_running=each.num_running,
        )
        for each in (*replica_set.replicas.values(), *replica_set.leaving)
    )
    return Live(
        at_s=time.monotonic(),
        num_running=replica_set.num_running,
        waiting={priority.name.lower(): replica_set.room.num_waiting(priority) for priority in Priority},
        totals={"num_prompt": app.metrics.num_prompt, "num_cached": app.metrics.num_cached},
        replicas=replicas,
    )


def _live_request(request: Request, above: tuple[str, ...]) -> "LiveRequest":
    from hotloop.ui.source import LiveRequest

    is_prefilling = request.first_token_at is None
    return LiveRequest(
        session=request.session_id,
        priority=request.priority.name.lower(),
        state="waiting" if request.first_scheduled_at is None else "prefill" if is_prefilling else "decode",
        num_prompt=request.num_prompt,
        num_cached=request.num_cached,
        num_output=request.num_output,
        age_s=time.monotonic() - request.arrived_at,
        above=above,
    )
