"""Twelve agents through a router to two servers, one store: every run is one account, and everybody counts the same.

Nothing here asserts how long anything took, only that the parts make up the whole.
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest
from tests.server.calls import write_call
from tests.server.serving import Serving, until

from hotloop.agent.agent import Agent, Result
from hotloop.agent.open_model import open_model
from hotloop.agent.tool import tool
from hotloop.core.config import RouterConfig
from hotloop.router.config import read_fleet
from hotloop.router.serve import RouterServer
from hotloop.trace import names
from hotloop.trace.ledger import RunLedger, build_ledger
from hotloop.trace.span import Span
from hotloop.trace.store import StoreTracer, TraceStore

NUM_AGENTS = 12
WORDS = "Everything there is to know about the weather of a city, in many words. " * 8
SCRIPT = [
    f"I look. {write_call('weather', city='Paris')}\n{write_call('weather', city='Rome')}",
    write_call("weather", city="Rome"),
    "It is warmer in Rome.",
]


@tool
async def weather(city: str) -> str:
    """The weather of a city."""
    await asyncio.sleep(0.01 if city == "Paris" else 0.03)
    return f"{city}: {WORDS}"


class RoutedFleet:
    """Two servers behind a router, all writing to one store, each through a tracer of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stack = ExitStack()

    def __enter__(self) -> "RoutedFleet":
        servers = [
            self._stack.enter_context(Serving(script=SCRIPT, num_blocks=4096, tracer=self._tracer())) for _ in range(2)
        ]
        urls = tuple(server.url for server in servers)
        settings = RouterConfig(port=0, replica=urls, health_interval_s=0.1, drain_timeout_s=5.0)
        is_ready = Event()
        router = RouterServer(
            read_fleet(settings, None, {}), tracer=self._tracer(), on_ready=lambda url: self._open(url, is_ready)
        )
        thread = Thread(target=router.run)
        thread.start()
        self._stack.callback(thread.join, 30)
        self._stack.callback(router.stop)
        assert is_ready.wait(30)
        until(lambda: len(self._up()) == 2)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _open(self, url: str, is_ready: Event) -> None:
        self.url = url
        is_ready.set()

    def _up(self) -> list[Any]:
        replicas = httpx.get(f"{self.url}/router/replicas").json()["replicas"]
        return [each for each in replicas if each["state"] == "up"]

    def _tracer(self) -> StoreTracer:
        tracer = StoreTracer(self.path)
        self._stack.callback(tracer.close)
        return tracer


async def run_agents(url: str, tracer: StoreTracer) -> list[Result[str]]:
    agents = [
        Agent(open_model(f"{url}/v1"), [weather], f"You are number {number}. {WORDS}", name="scout", tracer=tracer)
        for number in range(NUM_AGENTS)
    ]
    results = await asyncio.gather(*(agent.run("Paris or Rome?") for agent in agents))
    await asyncio.gather(*(agent.close() for agent in agents))
    return results


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Result[str]], dict[str, list[Span]]]]:
    path = tmp_path_factory.mktemp("joined") / "trace.db"
    with RoutedFleet(path) as fleet:
        tracer = StoreTracer(path)
        results = asyncio.run(run_agents(fleet.url, tracer))
        tracer.close()
    with TraceStore(path) as store:
        yield results, {run.session: store.spans(run.trace_id) for run in store.runs()}


def ledgers(joined: Any) -> list[tuple[Result[str], RunLedger, list[Span]]]:
    results, runs = joined
    assert len(runs) == NUM_AGENTS
    spans = [runs[result.conversation.session_id] for result in results]
    return [(result, build_ledger(each), each) for result, each in zip(results, spans, strict=True)]


def test_the_parts_make_up_the_wall_clock_time(joined: Any) -> None:
    for _, ledger, _ in ledgers(joined):
        assert sum(ledger.parts.values()) == pytest.approx(ledger.wall_s, rel=0.02)
        for turn in ledger.turns:
            assert sum(turn.parts.values()) == pytest.approx(turn.wall_s, rel=0.02)
        assert sum(turn.wall_s for turn in ledger.turns) <= ledger.wall_s


def test_everybody_counts_the_same_tokens(joined: Any) -> None:
    for result, ledger, spans in ledgers(joined):
        client = result.spent.usage
        assert (ledger.tokens.prompt, ledger.tokens.cached, ledger.tokens.output) == (
            client.num_prompt,
            client.num_cached,
            client.num_output,
        )
        for kind in (names.CHAT, names.ROUTE, names.REQUEST):
            calls = [span for span in spans if span.name == kind and not is_reading(span, spans)]
            assert len(calls) == 3
            assert sum(span.attributes[names.NUM_PROMPT] for span in calls) == client.num_prompt
            assert sum(span.attributes[names.NUM_CACHED] for span in calls) == client.num_cached
            assert sum(span.attributes[names.NUM_OUTPUT] for span in calls) == client.num_output
        tokens = ledger.tokens
        assert tokens.prompt == tokens.cached + tokens.new + tokens.again
        assert tokens.output == tokens.sampled + tokens.forced + tokens.drafted
        assert sum(tokens.causes.values()) >= tokens.again


def is_reading(span: Span, spans: list[Span]) -> bool:
    """Whether a span is part of reading ahead."""
    by_id = {each.span_id: each for each in spans}
    above: Span | None = span
    while above:
        if above.attributes.get(names.IS_READING):
            return True
        above = by_id.get(above.parent_id or "")
    return False


def test_a_run_is_one_tree_from_the_agent_to_the_engine(joined: Any) -> None:
    parents = {
        names.TURN: names.RUN,
        names.CHAT: names.TURN,
        names.TOOL: names.TURN,
        names.ROUTE: names.CHAT,
        names.REQUEST: names.ROUTE,
        names.QUEUE: names.REQUEST,
        names.PREFILL: names.REQUEST,
        names.DECODE: names.REQUEST,
    }
    for _, ledger, spans in ledgers(joined):
        by_id = {span.span_id: span for span in spans}
        for span in spans:
            if span.name == names.RUN:
                assert span.parent_id is None
            else:
                assert by_id[span.parent_id or ""].name == parents[span.name]
        assert {span.name for span in spans} == {names.RUN, *parents}
        assert len(ledger.turns) == 3
        assert all(turn.replica and turn.reason for turn in ledger.turns)
        assert [len(turn.tools) for turn in ledger.turns] == [2, 1, 0]
        assert ledger.agent == "scout"


def test_the_list_agrees_with_the_ledger(joined: Any, tmp_path: Path) -> None:
    for result, ledger, spans in ledgers(joined):
        path = tmp_path / f"{ledger.trace_id}.db"
        tracer = StoreTracer(path)
        for span in spans:
            tracer.record(span)
        tracer.close()
        with TraceStore(path) as store:
            [run] = store.runs()
        assert (run.num_prompt, run.num_cached, run.num_output) == (
            ledger.tokens.prompt,
            ledger.tokens.cached,
            ledger.tokens.output,
        )
        assert run.num_turns == len(ledger.turns) == result.spent.num_turns
