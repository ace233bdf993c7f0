"""What is read before the turn it is for."""

import asyncio

from tests.agent.runs import listen

from hotloop.agent.agent import Agent
from hotloop.agent.model import Ask
from hotloop.agent.prefill_ahead import MIN_CHARS
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import tool
from hotloop.core.errors import RequestError

LONG = "x" * MIN_CHARS


class Reader(ScriptedModel):
    """Tells when it has prefilled ahead."""

    def __init__(self, script: list[object], *, fails: bool = False) -> None:
        super().__init__(script)  # type: ignore[arg-type]
        self.has_read = asyncio.Event()
        self._fails = fails

    async def prefill(self, ask: Ask) -> None:
        await super().prefill(ask)
        self.has_read.set()
        if self._fails:
            raise RequestError("not now")


def agent_of(model: Reader, text: str, *, waits: bool = True) -> Agent[str]:
    @tool
    async def quick() -> str:
        return text

    @tool
    async def late() -> str:
        if waits:
            await model.has_read.wait()
        return "late"

    return Agent(model, [quick, late])


async def test_the_first_result_is_read_while_the_second_is_on_its_way() -> None:
    for fails in (False, True):
        model = Reader([[ScriptedCall("quick"), ScriptedCall("late")], "ok"], fails=fails)
        await listen(agent_of(model, LONG))
        [read] = model.reads
        assert [message.role for message in read.messages] == ["user", "assistant", "tool"]
        assert model.asks[1].messages[:3] == read.messages, "what was read begins the next prompt"
        assert read.tools == model.asks[1].tools


async def test_only_in_the_order_of_the_calls() -> None:
    model = Reader([[ScriptedCall("late"), ScriptedCall("quick")], "ok"])
    await listen(agent_of(model, LONG, waits=False))
    assert not model.reads


async def test_not_for_a_few_words() -> None:
    model = Reader([[ScriptedCall("quick"), ScriptedCall("late")], "ok"])
    await listen(agent_of(model, "short", waits=False))
    assert not model.reads


async def test_it_can_be_switched_off() -> None:
    model = Reader([[ScriptedCall("quick"), ScriptedCall("late")], "ok"])
    agent = agent_of(model, LONG, waits=False)
    plain = Agent(model, agent.tools, can_prefill_ahead=False)
    await listen(plain)
    assert not model.reads


async def test_a_run_that_is_cancelled_while_a_reading_stops_is_cancelled() -> None:
    """The one must not pass for the other: nothing may run any more."""
    is_reading, is_stopping, may_stop = asyncio.Event(), asyncio.Event(), asyncio.Event()
    written: list[str] = []

    class Slow(ScriptedModel):
        async def prefill(self, ask: Ask) -> None:
            is_reading.set()
            try:
                await asyncio.Event().wait()
            finally:
                is_stopping.set()
                await may_stop.wait()

    @tool
    async def quick() -> str:
        return LONG

    @tool
    async def late() -> None:
        await is_reading.wait()

    @tool
    async def write() -> None:
        written.append("")

    agent = Agent(
        Slow([[ScriptedCall("quick"), ScriptedCall("late")], ScriptedCall("write"), "ok"]), [quick, late, write]
    )
    task = asyncio.create_task(agent.run("go"))
    await is_stopping.wait()
    task.cancel()
    for _ in range(5):  # until it has reached the run
        await asyncio.sleep(0)
    may_stop.set()
    await asyncio.wait({task})
    assert (task.cancelled(), written) == (True, [])
