"""How much of a tool's schema is found to be enforceable, and how many compilations that takes."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.engine.tiny import TOKENIZER

from hotloop.chat.formats import HermesFormat
from hotloop.chat.schema_relaxer import Relaxed, SchemaRelaxer
from hotloop.core.grammar import Grammar
from hotloop.core.message import Tool
from hotloop.engine.grammar.matcher import Grammars

ODD = {"type": "object", "$ref": "#/nowhere"}
PLAIN = {"type": "string"}


class CountedGrammars(Grammars):
    num_prepared = 0

    def prepare(self, grammar: Grammar) -> Any:
        self.num_prepared += 1
        return super().prepare(grammar)


@pytest.fixture
def grammars() -> CountedGrammars:
    return CountedGrammars(TOKENIZER, TOKENIZER.vocab_size)


def relax(tools: Sequence[Tool], grammars: Grammars, **limits: float) -> dict[str, Relaxed]:
    return SchemaRelaxer(HermesFormat(TOKENIZER), grammars, **{"max_trial_s": 60, **limits}).relax(tools)


def make_tool(name: str, **properties: Any) -> Tool:
    return Tool(name, "", {"type": "object", "properties": properties}, True)


def test_few_of_many_properties_are_found_in_few_compilations(grammars: CountedGrammars) -> None:
    odd = {"p70": ODD}
    found = relax([make_tool("many", **{f"p{i}": PLAIN for i in range(128)} | odd)], grammars)["many"]

    assert found.dropped == ("properties.p70",)
    assert found.tool.parameters["properties"]["p70"] == {"type": "object"}
    assert found.tool.parameters["properties"]["p71"] == PLAIN
    assert grammars.num_prepared <= 20


def test_only_the_tool_at_fault_is_relaxed(grammars: CountedGrammars) -> None:
    tools = [make_tool(f"t{i}", a=PLAIN) for i in range(64)]
    tools[40] = make_tool("t40", a=ODD, b=PLAIN)

    assert {name: found.dropped for name, found in relax(tools, grammars).items()} == {"t40": ("properties.a",)}
    assert grammars.num_prepared <= 20


def test_when_the_time_is_up_nothing_more_is_compiled(grammars: CountedGrammars) -> None:
    tools = [make_tool(f"t{i}", **{f"p{j}": ODD for j in range(100)}) for i in range(10)]
    found = relax(tools, grammars, max_trial_s=0)

    assert {name: each.dropped for name, each in found.items()} == {tool.name: ("the whole schema",) for tool in tools}
    assert grammars.num_prepared == 0


def test_what_was_not_tried_in_time_is_tried_again(grammars: CountedGrammars) -> None:
    relaxer = SchemaRelaxer(HermesFormat(TOKENIZER), grammars, max_trial_s=0)
    tool = make_tool("t", a=ODD, b=PLAIN)
    relaxer.relax([tool])

    assert relaxer.look_at(tool) == Relaxed(tool)


def test_a_schema_too_large_to_be_looked_at_is_not_enforced(grammars: CountedGrammars) -> None:
    deep: Any = PLAIN
    for _ in range(100):
        deep = {"type": "object", "properties": {"a": deep}}
    relaxer, tool = SchemaRelaxer(HermesFormat(TOKENIZER), grammars), make_tool("t", deep=deep, plain=PLAIN)

    assert relaxer.look_at(tool).dropped == ("the whole schema",)
