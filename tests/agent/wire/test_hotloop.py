"""Agents over both APIs of a real server: calls, results, what is cached, what is prefilled ahead, and hanging up."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from tests.agent.runs import listen, of
from tests.server.calls import write_call
from tests.server.serving import Serving, until

from hotloop.agent.agent import Agent
from hotloop.agent.events import Text, TurnFinished
from hotloop.agent.model import Ask, Model
from hotloop.agent.open_model import open_model
from hotloop.agent.tools.tool import tool
from hotloop.agent.wire.anthropic import AnthropicModel
from hotloop.agent.wire.openai import OpenAIModel
from hotloop.core.config import ServerConfig
from hotloop.core.errors import RemoteError
from hotloop.core.message import Message

SCRIPT = [
    f"I look. {write_call('weather', city='Paris')}\n{write_call('clock')}",
    write_call("weather", city="Rome"),
    "It is warmer in Rome.",
]
BOTH = pytest.mark.parametrize("prefix", ["", "anthropic:"], ids=["openai", "anthropic"])


@contextmanager
def saying(*script: str) -> Iterator[Serving]:
    with Serving(script=script) as serving:
        yield serving


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return {"Paris": "12 degrees", "Rome": "20 degrees"}[city]


@tool
async def clock() -> str:
    raise RuntimeError("it stands still")


@pytest.mark.sampled(2)
@BOTH
async def test_an_agent_with_two_tools(prefix: str) -> None:
    with saying(*SCRIPT) as serving:
        agent = Agent(open_model(prefix + serving.url + "/v1"), [weather, clock], "Be brief.")
        result = await agent.run("Paris or Rome?")
        again = await agent.run("And?", conversation=result.conversation)
        await agent.close()
    assert result.output == "It is warmer in Rome."
    results = [message.content for message in result.conversation.messages if message.role == "tool"]
    assert results == ["12 degrees", "Error: RuntimeError: it stands still", "20 degrees"]
    assert result.spent.usage.num_cached > result.spent.usage.num_prompt / 3
    assert again.output == ""  # the script is over


@BOTH
async def test_nothing_that_was_read_is_read_again(prefix: str) -> None:
    with saying(*SCRIPT) as serving:
        agent = Agent(open_model(prefix + serving.url + "/v1"), [weather, clock], "Be brief. " * 5)
        turns = of(TurnFinished, await listen(agent))
        await agent.close()
    for before, after in pairwise(turns):
        assert after.usage.num_cached >= before.usage.num_prompt - 16


@BOTH
def test_runs_without_an_event_loop_of_their_own(prefix: str) -> None:
    with saying("Hello.") as serving:
        agent = Agent(prefix + serving.url + "/v1")
        assert [agent.run_sync("go").output for _ in range(2)] == ["Hello."] * 2


@BOTH
async def test_results_are_prefilled_ahead(prefix: str) -> None:
    """The second result comes only when the first has been read."""
    long, num_read = "x" * 1000, []

    class Watched:
        """A model, and what it was given to read."""

        def __init__(self, model: Model) -> None:
            self.stream, self.close, self._model = model.stream, model.close, model
            self.find_window = model.find_window
            self.name = "watched"
            self.has_read = asyncio.Event()

        @property
        def can_prefill_ahead(self) -> bool:
            return self._model.can_prefill_ahead

        async def prefill(self, ask: Ask) -> None:
            await self._model.prefill(ask)
            num_read.append(len(ask.messages))
            self.has_read.set()

    @tool
    async def first() -> str:
        return long

    @tool
    async def second() -> str:
        await model.has_read.wait()
        return "short"

    with saying(f"{write_call('first')}\n{write_call('second')}", "Done.") as serving:
        model = Watched(open_model(prefix + serving.url + "/v1"))
        assert not model.can_prefill_ahead
        events = await listen(Agent(model, [first, second]))
        assert model.can_prefill_ahead
        await model.close()
    assert num_read == [3]
    one, two = of(TurnFinished, events)
    assert two.usage.num_cached >= one.usage.num_prompt + len(long)  # a token is a byte


@BOTH
async def test_cancelling_a_run_stops_the_server(prefix: str) -> None:
    with Serving() as serving:
        agent = Agent(open_model(prefix + serving.url + "/v1"), extra={"ignore_eos": True, "max_tokens": 3000})
        events = agent.stream("go")
        async for event in events:
            if isinstance(event, Text):
                break
        await events.aclose()
        await asyncio.to_thread(until, lambda: serving.engine.stats().num_finished["abort"] == 1)
        await agent.close()


@BOTH
async def test_what_the_server_refuses(prefix: str) -> None:
    with Serving(ServerConfig(port=0, api_key="k")) as serving:
        for key, words, status in ((None, "key", 401), ("wrong", "key", 401), ("k", "no-such-model", 404)):
            model = open_model(f"{prefix}{serving.url}/v1#no-such-model", api_key=key)
            with pytest.raises(RemoteError, match=words) as caught:
                await anext(model.stream(Ask(messages=(Message("user", "hi"),))))
            assert caught.value.status == status
            await model.close()


async def test_a_server_of_another_kind_is_not_asked_to_prefill_ahead() -> None:
    assert not OpenAIModel("http://localhost").can_prefill_ahead
    assert not AnthropicModel("http://localhost").can_prefill_ahead
