"""What a run has to call: an answer of a type, which is a call itself, or any tool before it answers."""

from typing import Any

import pydantic

from hotloop.agent.agent import Agent
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import tool


@tool(read_only=True)
def double(n: int) -> int:
    """Twice as much."""
    return 2 * n


class Answer(pydantic.BaseModel):
    value: int
    why: str = ""


async def test_an_answer_of_a_type() -> None:
    script = [
        [ScriptedCall("double", n=2)],
        [ScriptedCall("final_answer", value="four")],
        [ScriptedCall("final_answer", value=4)],
    ]
    model = ScriptedModel(script)
    result = await Agent(model, [double], output=Answer).run("Twice 2?")
    assert result.output == Answer(value=4)
    assert {ask.choice for ask in model.asks} == {"required"}
    roles = [message.role for message in result.conversation.messages]
    assert roles == ["user"] + ["assistant", "tool"] * 3
    assert result.conversation.messages[4].content.startswith("Error: the answer is wrong: value: ")


async def test_a_run_may_have_to_begin_with_a_call() -> None:
    model = ScriptedModel([[ScriptedCall("double", n=2)], "Four."])
    agent = Agent(model, [double], tool_choice="required")
    result = await agent.run("Twice 2?")
    assert (result.output, [ask.choice for ask in model.asks]) == ("Four.", ["required", "auto"])
    model = ScriptedModel(["There is nothing to call."])
    await Agent(model, tool_choice="required").run("Twice 2?")
    assert [ask.choice for ask in model.asks] == ["auto"]


async def test_an_answer_that_is_no_object() -> None:
    result: Any = await Agent(ScriptedModel([[ScriptedCall("final_answer", value=[1, 2])]]), output=list[int]).run("go")
    assert result.output == [1, 2]


async def test_a_model_that_only_talks_is_told_to_answer() -> None:
    model = ScriptedModel(["It is four.", [ScriptedCall("final_answer", value=4)]])
    assert (await Agent(model, output=Answer).run("Twice 2?")).output.value == 4
    assert model.asks[1].messages[-1].content == "Give the answer by calling final_answer."
