"""Results that are not fetched twice, and never older than a write."""

import asyncio
import itertools
import time
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.agent.runs import end_of, listen, of

from hotloop.agent.agent import Agent
from hotloop.agent.conversation import Conversation
from hotloop.agent.events import CallDispatched, CallFinished, CallOpened
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.outcome import Outcome
from hotloop.agent.tools.results import ResultCache
from hotloop.agent.tools.tool import AgentTool, Context, ToolError, ToolOptions, tool
from hotloop.core.errors import ConfigError

TURNS = st.lists(
    st.lists(st.tuples(st.sampled_from(["read", "peek", "write"]), st.integers(0, 1), st.integers(0, 4)), max_size=4),
    max_size=5,
)


class Store:
    """Two values that count up with each write, and tools for them; `ticks` is how long a call takes."""

    def __init__(self, group: str = "", write_group: str = "", **options: Any) -> None:
        self.versions = [0, 0]
        self.num_reads = 0
        self.written: list[tuple[float, int, int]] = []  # when a write had ended, of what, and its version

        @tool(read_only=True, group=group, **options)
        async def read(key: int, ticks: int = 0) -> int:
            """Reads when it begins."""
            self.num_reads += 1
            version = self.versions[key]
            await self._pass(ticks)
            return version

        @tool(read_only=True, group=group, **options)
        async def peek(key: int, ticks: int = 0) -> int:
            """Reads when it ends."""
            self.num_reads += 1
            await self._pass(ticks)
            return self.versions[key]

        @tool(group=write_group)
        async def write(key: int, ticks: int = 0) -> str:
            """Writes in the middle."""
            await self._pass(ticks)
            self.versions[key] += 1
            version = self.versions[key]
            await self._pass(ticks)
            self.written.append((time.monotonic(), key, version))
            return "written"

        self.tools: list[AgentTool] = [read, peek, write]

    async def _pass(self, ticks: int) -> None:
        for _ in range(ticks):
            await asyncio.sleep(0)

    def least(self, key: int, at: float) -> int:
        """What a call made at that time may not be older than."""
        return max((version for ended_at, of, version in self.written if of == key and ended_at < at), default=0)


@given(turns=TURNS, group=st.sampled_from(["", "a"]), write_group=st.sampled_from(["", "a"]), data=st.data())
async def test_no_read_is_older_than_a_write_that_had_ended(
    turns: list[list[tuple[str, int, int]]], group: str, write_group: str, data: st.DataObject
) -> None:
    """Unless the write is said to be of another group."""
    scope = data.draw(st.sampled_from(["run", "session", "tenant"]))
    store = Store(group, group if group else write_group, cache_s=1000, cache_scope=scope)
    script = [[ScriptedCall(name, key=key, ticks=ticks) for name, key, ticks in turn] for turn in turns if turn]
    conversation, agent = Conversation(), Agent(ScriptedModel([*script, "done", *script, "done"]), tools=store.tools)
    for _ in range(2):
        events = await listen(agent, conversation=conversation)
        assert end_of(events).end == "done"
        opened = {event.call_id: event.at for event in of(CallOpened, events)}
        keys = {each.call_id: ('"key": 1' in each.arguments) for each in of(CallDispatched, events)}
        for event in of(CallFinished, events):
            if event.name != "write":
                assert int(event.result) >= store.least(keys[event.call_id], opened[event.call_id]), "a stale read"


async def calls(store: Store, *names: str, **fields: Any) -> list[str]:
    """How each call was answered, one call a turn."""
    agent = Agent(ScriptedModel([*([ScriptedCall(name, key=0)] for name in names), "done"]), tools=store.tools)
    return [event.reused for event in of(CallDispatched, await listen(agent, **fields))]


async def test_a_result_answers_the_same_call_until_a_write() -> None:
    store = Store(cache_s=60)
    assert await calls(store, "read", "read", "write", "read", "read") == ["", "cached", "", "", "cached"]
    assert store.num_reads == 2
    assert await calls(Store(), "read", "read") == ["", ""], "without a lifetime nothing is kept"
    assert await calls(Store(cache_s=60), "read", "read", fresh=True) == ["", ""]


async def test_a_write_of_another_group_drops_nothing() -> None:
    assert await calls(Store("a", "b", cache_s=60), "read", "write", "read") == ["", "", "cached"]
    assert await calls(Store("a", "", cache_s=60), "read", "write", "read") == ["", "", ""]
    assert await calls(Store("", "b", cache_s=60), "read", "write", "read") == ["", "", ""]


async def test_identical_calls_in_flight_are_joined_and_what_they_save_is_counted() -> None:
    store = Store()
    script = [[ScriptedCall("peek", key=0, ticks=50), *[ScriptedCall("peek", ticks=50, key=0)] * 7], "done"]
    events = await listen(Agent(ScriptedModel(script), tools=store.tools))
    assert store.num_reads == 1
    assert sorted(event.reused for event in of(CallDispatched, events)) == [""] + ["joined"] * 7
    assert [event.result for event in of(CallFinished, events)] == ["0"] * 8
    spent = end_of(events).spent
    assert (spent.num_calls, spent.num_reused) == (8, 7)
    assert spent.saved_s == pytest.approx(sum(event.saved_s for event in of(CallFinished, events)))


@pytest.mark.parametrize(("scope", "num_reads"), [("run", 3), ("session", 2), ("tenant", 1)])
async def test_scopes(scope: str, num_reads: int) -> None:
    store = Store(cache_s=60, cache_scope=scope)
    agent = Agent(ScriptedModel([[ScriptedCall("read", key=0)], "done"] * 2), tools=store.tools)
    conversation = Conversation()
    for each in (conversation, conversation, Conversation()):
        await agent.run("go", conversation=each)
    assert store.num_reads == num_reads


async def test_a_sub_agents_write_drops_what_its_caller_has_kept() -> None:
    store = Store(cache_s=60)
    helper = Agent(ScriptedModel([[ScriptedCall("write", key=0)], "done"]), tools=store.tools[2:])
    asked = helper.as_tool("help", "helps", options=ToolOptions(read_only=True, timeout_s=None))
    script = [[ScriptedCall("read", key=0)], [ScriptedCall("help", prompt="x")], [ScriptedCall("read", key=0)], "done"]
    events = await listen(Agent(ScriptedModel(script), tools=[store.tools[0], asked]))
    assert [each.result for each in of(CallFinished, events) if each.name == "read"] == ["0", "1"]


async def test_what_a_sub_agent_reads_is_kept_too() -> None:
    """Its call is no write: only its own calls are."""
    store = Store(cache_s=60)
    read = ScriptedCall("read", key=0)
    helper = Agent(ScriptedModel([[read], [read], "done"]), tools=store.tools[:1])
    asked = helper.as_tool("help", "helps")
    script = [[read], [ScriptedCall("help", prompt="x")], [read], "done"]
    await listen(Agent(ScriptedModel(script), tools=[store.tools[0], asked]))
    assert store.num_reads == 2, "one in each run"


async def test_other_things_of_the_context_are_another_call() -> None:
    class Shop:
        def __init__(self, name: str) -> None:
            self.name = name

    @tool(read_only=True, cache_s=60, cache_scope="tenant")
    def name(shop: Context[Shop]) -> str:
        """Its name."""
        return shop.name

    agent = Agent(ScriptedModel([[ScriptedCall("name")], "done"]), tools=[name])
    for each in ("a", "b"):
        events = [event async for event in agent.stream("go", context=[Shop(each)])]
        assert [event.result for event in of(CallFinished, events)] == [each]


async def test_errors_are_not_kept_and_lifetimes_end() -> None:
    num_calls = itertools.count()

    @tool(read_only=True, cache_s=10)
    def look() -> int:
        """Fails at first."""
        if not (number := next(num_calls)):
            raise ToolError("not yet")
        return number

    now = 0.0
    results = ResultCache(clock=lambda: now)
    agent = Agent(ScriptedModel([[ScriptedCall("look")]] * 3 + ["done"]), tools=[look], results=results)
    told = [event.result for event in of(CallFinished, await listen(agent))]
    assert told == ["Error: not yet", "1", "1"]
    cache = ResultCache(clock=lambda: now, max_chars=2000)

    async def fetch() -> Outcome:
        return Outcome("x" * 600)

    for number in range(9):
        assert cache.find(number, "") is None
        await cache.fetch(number, look, (), fetch)
    assert [number for number in range(9) if cache.find(number, "")] == [8], "the longest unused went"
    now = 11.0
    assert cache.find(8, "") is None


async def test_who_joined_a_call_that_was_broken_off_makes_it_himself() -> None:
    store = Store(cache_s=60, cache_scope="tenant")
    model = ScriptedModel([[ScriptedCall("peek", key=0, ticks=2000)], "done"])
    agent = Agent(model, tools=store.tools)
    first = asyncio.create_task(agent.run("go"))
    while not store.num_reads:  # noqa: ASYNC110  nobody tells when it is so
        await asyncio.sleep(0)
    second = asyncio.create_task(agent.rebuild(agent.settings, store.tools).run("go"))
    for _ in range(50):
        await asyncio.sleep(0)
    first.cancel()
    assert (await second).output == "done"
    assert store.num_reads == 2


@pytest.mark.parametrize("wrong", [{"cache_s": -1}, {"cache_s": 1, "read_only": False}, {"cache_scope": "world"}])
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ToolOptions(**{"read_only": True, **wrong})
