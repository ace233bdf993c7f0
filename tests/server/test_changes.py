"""What is done otherwise than it was asked for is told with the answer, whatever it is, and in bounds."""

from typing import Any

import pytest
from tests.engine.tiny import TOKENIZER
from tests.server.serving import Serving

from hotloop.backends.null import NullBackend
from hotloop.core.config import ServerConfig


def make_roomy() -> Serving:
    backend = NullBackend(block_size=16, num_blocks=40_000, vocab_size=TOKENIZER.vocab_size, max_context=600_000)
    return Serving(backend=backend)


def make_tools(num_tools: int, schema: dict[str, Any]) -> list[Any]:
    return [{"type": "function", "function": {"name": f"t{i}", "parameters": schema}} for i in range(num_tools)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", ["off", "counts", "words"])
def test_changes_are_told_whatever_is_explained(level: Any) -> None:
    with Serving(ServerConfig(port=0, explanations=level)) as serving:
        told = serving.chat(max_tokens=100_000, stop=["e"]).json()["usage"]["hotloop"]["changes"]
    assert [change.partition(":")[0] for change in told] == ["max_tokens"]


def test_of_many_changes_some_are_told() -> None:
    odd = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    with make_roomy() as serving:
        told = serving.chat(tools=make_tools(40, odd)).json()["usage"]["hotloop"]["changes"]
    assert len(told) == 33
    assert told[-1].startswith("and ")


@pytest.mark.long
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_tools_that_are_too_large_together_are_enforced_in_part(choice: str) -> None:
    sizes = [{"enum": ["x" * 100 + str(j) for j in range(300)]}, {"type": "string"}]
    tools = [tool for size in sizes for tool in make_tools(10, {"type": "object", "properties": {"a": size}})]
    for i, tool in enumerate(tools):
        tool["function"]["name"] = f"t{i}"
    with make_roomy() as serving:
        answer = serving.chat(tools=tools, tool_choice=choice)
    assert answer.status_code == 200, answer.text
    told = [change for change in answer.json()["usage"]["hotloop"]["changes"] if "whole schema" in change]
    assert {change.partition("]")[0] for change in told} == {f"tools[{i}" for i in range(10)}
