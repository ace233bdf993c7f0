"""Answers that break off in the middle: asked for again where that does no harm, and told once."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest
from tests.agent.runs import end_of, listen, of

from hotloop.agent.agent import Agent
from hotloop.agent.events import (
    CallArguments,
    CallDispatched,
    CallFinished,
    CallOpened,
    Event,
    Text,
    TurnRestarted,
)
from hotloop.agent.model import Ask
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import tool
from hotloop.core.errors import RemoteError
from hotloop.wire.event import Event as WireEvent


class Breaking(ScriptedModel):
    """The first answer of each turn breaks off after so many events; what it says then may be another."""

    def __init__(self, script: Sequence[object], after: int, other: Sequence[object] | None = None) -> None:
        super().__init__(script)  # type: ignore[arg-type]
        self.after = after
        self.other = ScriptedModel(other) if other else None  # type: ignore[arg-type]
        self.can_retry = True
        self._broken: set[int] = set()

    async def stream(self, ask: Ask) -> AsyncGenerator[WireEvent, None]:
        turn = len(ask.messages)
        is_first = turn not in self._broken
        self._broken.add(turn)
        source = self.other if self.other and not is_first else super()
        number = 0
        async for event in source.stream(ask):
            if is_first and number == self.after:
                await asyncio.sleep(0)
                raise RemoteError("the connection broke", can_retry=self.can_retry)
            number += 1
            yield event


class Tools:
    def __init__(self) -> None:
        self.looked: list[str] = []
        self.written: list[str] = []

    async def look(self, at: str) -> str:
        self.looked.append(at)
        return f"{at} is there"

    async def write(self, line: str) -> str:
        self.written.append(line)
        return f"wrote {line}"


def told(events: Sequence[Event]) -> list[object]:
    """What a reader has in the end, piece by piece."""
    shown: list[object] = []
    for event in events:
        match event:
            case Text():
                shown += event.text
            case CallOpened():
                shown.append((event.call_id, event.name))
            case CallArguments():
                shown += event.arguments
            case CallDispatched() | CallFinished():
                shown.append((type(event).__name__, event.call_id))
    return shown


SCRIPT = [["Let me look.\n", "And on.\n", ScriptedCall("look", at="home"), ScriptedCall("look", at="work")], "Fine."]


@pytest.mark.parametrize("after", range(1, 14))
async def test_the_reader_sees_one_clean_sequence(after: int) -> None:
    """Wherever it breaks: all is told once, in the order it would have had."""
    whole_tools, tools = Tools(), Tools()
    whole = await listen(Agent(ScriptedModel(SCRIPT), [tool(read_only=True)(whole_tools.look)]))
    events = await listen(Agent(Breaking(SCRIPT, after), [tool(read_only=True)(tools.look)]))
    assert end_of(events).output == end_of(whole).output == "Fine."
    assert not of(TurnRestarted, events)
    assert sorted(map(repr, told(events))) == sorted(map(repr, told(whole)))
    pieces = (Text, CallOpened, CallArguments)
    assert told([e for e in events if isinstance(e, pieces)]) == told([e for e in whole if isinstance(e, pieces)])
    assert sorted(tools.looked) == ["home", "work"], "what had run was not run again"


async def test_an_answer_that_says_something_else_begins_the_turn_anew() -> None:
    tools = Tools()
    other = [["Something else.\n", ScriptedCall("look", at="work"), ScriptedCall("look", at="home")], "Fine."]
    agent = Agent(Breaking(SCRIPT, after=8, other=other), [tool(read_only=True)(tools.look)])
    events = await listen(agent)
    assert end_of(events).output == "Fine."
    [restart] = of(TurnRestarted, events)
    assert (restart.turn, restart.reason) == (1, "the connection broke")
    after = events[events.index(restart) :]
    assert "".join(event.text for event in of(Text, after)) == "Something else.\nFine."
    assert [event.name for event in of(CallOpened, after)] == ["look", "look"]
    assert sorted(event.result for event in of(CallFinished, after)) == ["home is there", "work is there"]
    assert sorted(tools.looked) == ["home", "work"], "its result is that of the same call before"


async def test_an_answer_that_says_less_is_another() -> None:
    agent = Agent(Breaking([["One.\n", "Two.\n", "Three.\n"]], after=2, other=["One.\n"]))
    events = await listen(agent)
    assert end_of(events).output == "One.\n"
    assert len(of(TurnRestarted, events)) == 1
    assert [event.text for event in of(Text, events)] == ["One.\n", "Two.\n", "One.\n"]


async def test_an_answer_of_a_type_that_is_not_said_again_is_none() -> None:
    tools = Tools()
    first = [[ScriptedCall("final_answer", value=1)], [ScriptedCall("final_answer", value=2)]]
    model = Breaking(first, after=4, other=[[ScriptedCall("look", at="home")], [ScriptedCall("final_answer", value=2)]])
    agent = Agent(model, [tool(read_only=True)(tools.look)], output=int)
    assert (await agent.run("go")).output == 2
    assert tools.looked == ["home"]


async def test_a_turn_that_has_written_is_not_asked_for_again() -> None:
    """It ends where it broke off: the model sees what was done, and goes on."""
    tools = Tools()
    script = [[ScriptedCall("write", line="a"), ScriptedCall("write", line="b")], ScriptedCall("write", line="b"), "ok"]
    model = Breaking(script, after=5)
    events = await listen(Agent(model, [tool(tools.write)]))
    assert end_of(events).output == "ok"
    assert tools.written == ["a", "b"]
    assert [len(ask.messages) for ask in model.asks] == [1, 3, 5]


async def test_what_cannot_go_better_is_not_tried_again() -> None:
    model = Breaking(SCRIPT, after=1)
    model.can_retry = False
    events = await listen(Agent(model, [tool(read_only=True)(Tools().look)]))
    assert (end_of(events).end, len(model.asks)) == ("failed", 1)


async def test_a_server_that_breaks_off_every_time_is_given_up() -> None:
    class Dying(ScriptedModel):
        async def stream(self, ask: Ask) -> AsyncGenerator[WireEvent, None]:
            async for event in super().stream(ask):
                yield event
                raise RemoteError("it died", can_retry=True, retry_after_s=0)

    model = Dying(SCRIPT)
    events = await listen(Agent(model))
    assert (end_of(events).end, str(end_of(events).error), len(model.asks)) == ("failed", "it died", 10)


async def test_who_has_broken_off_and_cannot_be_reached_is_waited_for() -> None:
    """Its process was killed, and is started again."""

    class Restarting(Breaking):
        num_away = 3

        async def stream(self, ask: Ask) -> AsyncGenerator[WireEvent, None]:
            if self.asks and self.num_away:
                self.num_away -= 1
                raise RemoteError("cannot be reached", can_retry=True, retry_after_s=0)
            async for event in super().stream(ask):
                yield event

    model, tools = Restarting(SCRIPT, after=8), Tools()
    events = await listen(Agent(model, [tool(read_only=True)(tools.look)]))
    assert (end_of(events).output, model.num_away) == ("Fine.", 0)
    assert sorted(tools.looked) == ["home", "work"]
