"""What a model thought goes back to it."""

from pathlib import Path

from anthropic.types import message_create_params
from pydantic import TypeAdapter
from tests.agent.wire import streams as wires
from tests.agent.wire.streams import WireServer

from hotloop.agent.agent import Agent
from hotloop.agent.conversation import Conversation
from hotloop.agent.record import record, replay
from hotloop.agent.tools.tool import tool
from hotloop.agent.wire.anthropic import AnthropicModel
from hotloop.agent.wire.openai import OpenAIModel


async def test_a_model_that_thinks_is_given_its_thoughts_back(tmp_path: Path) -> None:
    """As they came, before its calls; in a conversation that was saved, and from a tape, too."""

    @tool
    async def weather(city: str) -> str:
        return "rain"

    thinks = wires.events(
        wires.started(),
        *wires.thought_block(0, "Hm, ", "Paris.", signature="c2ln"),
        *wires.sealed_block(1, "c2VhbGVk"),
        *wires.call_block(2, "toolu_a", "weather", '{"city": "Paris"}'),
        *wires.stopped("tool_use"),
    )
    texts = [wires.ANTHROPIC_TEXT] * 2
    async with WireServer(thinks, *texts) as server:
        agent = Agent(AnthropicModel(server.url, "claude"), [weather])
        result = await record(agent, tmp_path / "tape.jsonl").run("Paris?")
        again = Conversation.from_json(result.conversation.to_json())
        await agent.run("And now?", conversation=again)
        await agent.close()
    for body in server.bodies[1:]:
        TypeAdapter(message_create_params.MessageCreateParamsStreaming).validate_python(body)
        thought, sealed, call = body["messages"][1]["content"]
        assert thought == {"type": "thinking", "thinking": "Hm, Paris.", "signature": "c2ln"}
        assert sealed == {"type": "redacted_thinking", "data": "c2VhbGVk"}
        assert call["type"] == "tool_use"
    assert (await replay(agent, tmp_path / "tape.jsonl").run("Paris?")).output == result.output


async def test_what_an_engine_gives_out_as_reasoning_goes_back_to_it() -> None:
    """Our own linter warns of clients that drop it: the prompt changes where the model thought."""

    @tool
    async def weather(city: str) -> str:
        return "rain"

    thinks = wires.data(
        wires.chunk({"reasoning_content": "Hm, "}),
        wires.chunk({"reasoning_content": "Paris."}),
        wires.opened(0, "a", "weather", '{"city": "Paris"}'),
        wires.chunk(finish="tool_calls"),
    )
    async with WireServer(thinks, wires.OPENAI_TEXT) as server:
        agent = Agent(OpenAIModel(f"{server.url}/v1", "m"), [weather])
        await agent.run("Paris?")
        await agent.close()
    answer = server.bodies[1]["messages"][1]
    assert answer["reasoning_content"] == "Hm, Paris."
    assert answer["tool_calls"][0]["id"] == "a"
