"""Several models for one agent: whoever is down, busy or refuses is passed over, and the ledger has the reason."""

from collections.abc import AsyncGenerator

import pytest
from tests.agent.runs import end_of, listen, of

from hotloop.agent.agent import Agent
from hotloop.agent.events import ModelPassedOver, TurnRestarted
from hotloop.agent.fallback import FallbackModel
from hotloop.agent.model import Ask
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import tool
from hotloop.core.errors import ConfigError, RemoteError
from hotloop.trace import names
from hotloop.trace.tracer import ListTracer
from hotloop.wire.event import Event as WireEvent


class Failing(ScriptedModel):
    """Says so much of its first answer, and then fails; and so on, as long as there are errors."""

    def __init__(self, name: str, answer: str, *errors: RemoteError, after: int = 0) -> None:
        super().__init__(lambda ask: answer)
        self.name = name
        self.errors = list(errors)
        self.after = after

    async def stream(self, ask: Ask) -> AsyncGenerator[WireEvent, None]:
        error = self.errors.pop(0) if self.errors else None
        number = 0
        async for event in super().stream(ask):
            if error and number == self.after:
                raise error
            number += 1
            yield event


DOWN = RemoteError("nobody is there", can_retry=True)
BUSY = RemoteError("too many requests", status=429, can_retry=True, retry_after_s=5)
REFUSED = RemoteError("the model refused to answer")


@pytest.mark.parametrize(("error", "kind"), [(DOWN, "unreachable"), (BUSY, "rate limited"), (REFUSED, "refused")])
async def test_the_next_model_answers_and_the_reason_is_kept(error: RemoteError, kind: str) -> None:
    tracer = ListTracer()
    first, second = Failing("first", "one", error), Failing("second", "two")
    events = await listen(Agent([first, second], tracer=tracer))
    assert end_of(events).output == "two"
    [passed] = of(ModelPassedOver, events)
    assert (passed.turn, passed.model, passed.reason) == (1, "first", str(error))
    assert second.asks[0].messages == first.asks[0].messages
    [turn] = [span for span in tracer.spans if span.name == names.TURN]
    assert turn.attributes[names.PASSED_OVER] == [{"model": "first", "kind": kind}]
    [chat] = [span for span in tracer.spans if span.name == names.CHAT]
    assert chat.attributes[names.MODEL] == "second"


async def test_one_that_failed_is_left_alone_for_a_while() -> None:
    now = 100.0
    first, second = Failing("first", "one", BUSY), Failing("second", "two")
    agent = Agent(FallbackModel([first, second], clock=lambda: now))
    assert [(await agent.run("go")).output for _ in range(2)] == ["two", "two"]
    assert len(first.asks) == 1
    now += 5.1  # as the server said
    assert (await agent.run("go")).output == "one"


async def test_an_answer_that_breaks_off_is_begun_anew_by_the_next() -> None:
    first, second = Failing("first", "one\nand more\n", REFUSED, after=1), Failing("second", "two")
    events = await listen(Agent([first, second]))
    assert end_of(events).output == "two"
    assert [event.reason for event in of(TurnRestarted, events)] == ["the model refused to answer"]


async def test_a_question_that_is_wrong_is_nobody_else_s() -> None:
    first, second = Failing("first", "one", RemoteError("bad", status=400)), Failing("second", "two")
    assert end_of(await listen(Agent([first, second]))).end == "failed"
    assert not second.asks


async def test_where_all_fail_the_last_says_why() -> None:
    agent = Agent([Failing("first", "one", DOWN), Failing("second", "two", RemoteError("me neither"))])
    with pytest.raises(RemoteError, match="me neither"):
        await agent.run("go")


async def test_the_conversation_goes_on_with_another_model() -> None:
    @tool
    def look() -> str:
        return "seen"

    first = Failing("first", "never")
    first._script = lambda ask: ScriptedCall("look") if len(ask.messages) == 1 else "never"
    second = Failing("second", "two")

    class DownLater(Failing):
        async def stream(self, ask: Ask) -> AsyncGenerator[WireEvent, None]:
            if len(ask.messages) > 1:
                raise DOWN
            async for event in first.stream(ask):
                yield event

    result = await Agent([DownLater("first", "x"), second], [look]).run("go")
    assert result.output == "two"
    assert [message.content for message in second.asks[0].messages] == ["go", "", "seen"]


async def test_the_smallest_window_counts() -> None:
    models = [ScriptedModel([], window_tokens=size) for size in (9000, 4000)]
    assert await FallbackModel([*models, ScriptedModel([])]).find_window() == 4000
    with pytest.raises(ConfigError, match="at least one model"):
        Agent([])
