"""What an agent is asked to keep to: instructions from the context, validators, guards; and mistakes told early."""

import asyncio
import signal
import threading
from dataclasses import dataclass

import pytest
from tests.agent.runs import end_of, listen, of

from hotloop.agent.agent import Agent
from hotloop.agent.checks import GuardTripped
from hotloop.agent.events import CallDispatched, PartialOutput, SubAgentEvent
from hotloop.agent.limits import Limits
from hotloop.agent.model import Ask
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import Context, ToolError, tool
from hotloop.core.errors import ConfigError


@dataclass
class User:
    name: str


@dataclass
class Offer:
    price: int
    text: str = ""


def greet(user: Context[User]) -> str:
    return f"You talk to {user.name}."


async def test_instructions_are_made_of_the_context() -> None:
    model = ScriptedModel(lambda ask: ask.messages[0].content)
    agent = Agent(model, instructions=greet)
    assert (await agent.run("go", context=[User("Ada")])).output == "You talk to Ada."
    assert (await agent.run("go", context=[User("Bob")])).output == "You talk to Bob."
    with pytest.raises(ConfigError, match=r"User is wanted.*run\(\.\.\., context=\[\.\.\.\]\)"):
        await agent.run("go")


async def test_instructions_may_await() -> None:
    async def late() -> str:
        await asyncio.sleep(0)
        return "Be late."

    model = ScriptedModel(lambda ask: ask.messages[0].content)
    assert (await Agent(model, instructions=late).run("go")).output == "Be late."


async def test_an_answer_that_a_validator_refuses_is_given_again() -> None:
    def short(answer: str, user: Context[User]) -> str:
        if len(answer) > 10:
            raise ToolError("too long")
        return f"{answer}, {user.name}"

    model = ScriptedModel(["far too long an answer", "short"])
    result = await Agent(model, validators=[short]).run("go", context=[User("Ada")])
    assert result.output == "short, Ada"
    assert model.asks[1].messages[-1].content == "This answer cannot be accepted: too long. Give another one."


async def test_an_answer_of_a_type_is_validated_too() -> None:
    async def cheap(offer: Offer) -> None:
        if offer.price > 5:
            raise ToolError("at most 5")

    calls = [ScriptedCall("final_answer", price=9), ScriptedCall("final_answer", price=4)]
    result = await Agent(ScriptedModel(calls), output=Offer, validators=[cheap]).run("go")
    assert result.output == Offer(4)
    assert result.conversation.messages[2].content == "Error: at most 5"


async def test_a_model_that_never_does_as_it_is_told_is_given_up() -> None:
    def never(answer: str) -> None:
        raise ToolError("no")

    agent = Agent(ScriptedModel(lambda ask: "answer"), validators=[never], limits=Limits(turns=4))
    assert end_of(await listen(agent)).end == "limit"


async def test_a_guard_runs_beside_the_first_turn_and_effects_wait_for_it() -> None:
    may_judge, written = asyncio.Event(), []

    @tool(read_only=True)
    async def look() -> str:
        may_judge.set()  # a call that changes nothing does not wait for the guard: here the guard waits for it
        return "seen"

    @tool
    def write() -> str:
        written.append("written")
        return "ok"

    async def on_topic(prompt: str) -> str | None:
        await may_judge.wait()
        assert not written
        return "not about birds" if "birds" not in prompt else None

    script = [[ScriptedCall("write"), ScriptedCall("look")], "done"]
    agent = Agent(ScriptedModel(script), [look, write], input_guards=[on_topic])
    assert end_of(await listen(agent, "about birds")).output == "done"
    assert written == ["written"]
    written.clear()
    may_judge.clear()
    events = await listen(agent, "about fish")
    assert str(end_of(events).error) == "the guard on_topic has ended the run: not about birds"
    assert not written
    assert "write" not in [event.name for event in of(CallDispatched, events)]


async def test_a_guard_of_the_answer() -> None:
    def polite(answer: str) -> str | None:
        return "rude" if "damn" in answer else None

    assert (await Agent(ScriptedModel(["fine"]), output_guards=[polite]).run("go")).output == "fine"
    with pytest.raises(GuardTripped) as tripped:
        await Agent(ScriptedModel(["damn"]), output_guards=[polite]).run("go")
    assert (tripped.value.guard, tripped.value.reason) == ("polite", "rude")


async def test_a_guard_that_fails_lets_nothing_through() -> None:
    def broken(prompt: str) -> None:
        raise RuntimeError("oh")

    with pytest.raises(GuardTripped, match="it failed"):
        await Agent(ScriptedModel(["fine"]), input_guards=[broken]).run("go")


async def test_an_answer_of_a_type_is_told_as_it_is_written() -> None:
    call = ScriptedCall("final_answer", price=7, text="a long enough text to be told of several times over")
    events = await listen(Agent(ScriptedModel([call]), output=Offer))
    values = [event.value for event in of(PartialOutput, events)]
    assert len(values) > 2
    assert values[-1]["price"] == 7
    assert all(call.arguments.find(str(value.get("text", ""))) >= 0 for value in values)


async def test_events_say_how_long_after_the_beginning_they_are() -> None:
    inner = Agent(ScriptedModel(["inner"])).as_tool("ask", "asks")
    events = await listen(Agent(ScriptedModel([ScriptedCall("ask", prompt="x"), "done"]), [inner]))
    assert 0 <= events[0].at_s <= events[-1].at_s
    assert [event.at_s for event in events] == sorted(event.at_s for event in events)
    assert of(SubAgentEvent, events)[0].inner.at_s < 60


async def test_run_sync_in_a_loop_that_runs() -> None:
    """As in a notebook."""
    model = ScriptedModel(lambda ask: "done")
    assert Agent(model).run_sync("go").output == "done"


def test_mistakes_are_told_where_they_are_made() -> None:
    @tool
    def look() -> None: ...

    def two(a: str, b: str) -> None: ...

    with pytest.raises(ConfigError, match=r"two tools named 'look'.*tool\(name="):
        Agent(ScriptedModel([]), [look, look])
    with pytest.raises(ConfigError, match="the validator two must take 1 argument beside"):
        Agent(ScriptedModel([]), validators=[two])
    with pytest.raises(ConfigError, match="the instructions two must take no arguments"):
        Agent(ScriptedModel([]), instructions=two)


async def test_a_tool_that_nobody_can_approve_is_told_before_the_model_is_asked() -> None:
    @tool(needs_approval=True)
    def pay() -> None: ...

    model = ScriptedModel(lambda ask: "done")
    with pytest.raises(ConfigError, match=r"'pay' needs approval.*approve="):
        await Agent(model, [pay]).run("go")
    clerk = Agent(ScriptedModel([ScriptedCall("pay"), "paid"]), [pay])
    with pytest.raises(ConfigError, match=r"'ask: pay' needs approval.*approve="):
        await Agent(model, [clerk.as_tool("ask", "Asks.")]).run("go")
    asks: list[Ask] = model.asks
    assert asks == []


@pytest.mark.parametrize("role", ["validators", "input_guards", "output_guards"])
async def test_a_context_that_a_function_misses_is_told_before_the_model_is_asked(role: str) -> None:
    def look(text: str, user: Context[User]) -> None: ...

    model = ScriptedModel(lambda ask: "done")
    agent = Agent(model, **{role: [look]})
    lead = Agent(model, [agent.as_tool("ask", "Asks.")])
    for each, who in ((agent, "look"), (lead, "'ask'")):
        with pytest.raises(ConfigError, match=rf"{who} wants a User.*context="):
            await each.run("go")
    assert model.asks == []
    assert (await agent.run("go", context=[User("Ada")])).output == "done"


async def test_tools_of_a_sub_agent_are_approved_by_its_caller() -> None:
    paid: list[int] = []

    @tool(needs_approval=True)
    def pay(amount: int) -> None:
        paid.append(amount)

    clerk = Agent(ScriptedModel([ScriptedCall("pay", amount=5), "paid"]), [pay])
    script = [ScriptedCall("ask", prompt="pay"), "done"]
    lead = Agent(ScriptedModel(script), [clerk.as_tool("ask", "Asks.")], approve=lambda call: True)
    assert (await lead.run("go")).output == "done"
    assert paid == [5]


def test_an_interrupted_run_sync_cancels_the_run() -> None:
    """As a notebook's stop button does."""
    ended, main = list[str](), threading.get_ident()

    @tool(timeout_s=None)
    async def wait() -> None:
        try:
            signal.pthread_kill(main, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def cell() -> None:
        Agent(ScriptedModel([[ScriptedCall("wait")], "done"]), [wait]).run_sync("go")

    loop = asyncio.new_event_loop()
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(cell())
    loop.close()
    assert ended == ["cancelled"]
