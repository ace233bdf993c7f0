"""Functions as tools: what the model is told, what the function is given, and how failures are worded."""

import enum
import json
import threading
from dataclasses import dataclass
from typing import Any, Literal

import jsonschema
import pydantic
import pytest

from hotloop.agent.agent import Agent
from hotloop.agent.conversation import Conversation
from hotloop.agent.limits import Run
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import Context, FunctionTool, RunContext, ToolCrashed, ToolError, ToolOptions, tool
from hotloop.core.errors import ConfigError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


class Person(pydantic.BaseModel):
    name: str


class Database:
    name = "shop"


async def run(subject: FunctionTool, *things: Any, **arguments: Any) -> Any:
    return await subject.run(json.dumps(arguments), RunContext(things))


@tool(read_only=True, timeout_s=5)
def paint(
    what: str,
    where: Point,
    colour: Colour = Colour.RED,
    coats: Literal[1, 2] = 1,
    owner: Person | None = None,
    *,
    tags: list[str] | None = None,
) -> dict[str, Any]:
    """Paint something.

    It dries by itself.

    Args:
        what: the thing
        where: its place
    """
    return {"what": what, "where": where, "colour": colour, "coats": coats, "owner": owner, "tags": tags}


def test_the_schema_says_what_the_signature_says() -> None:
    spec = paint.spec
    assert (spec.name, spec.description) == ("paint", "Paint something.\n\nIt dries by itself.")
    properties = spec.parameters["properties"]
    assert list(properties) == ["what", "where", "colour", "coats", "owner", "tags"]
    assert properties["what"] == {"type": "string", "description": "the thing"}
    assert (properties["coats"]["enum"], properties["coats"]["default"]) == ([1, 2], 1)
    assert (spec.parameters["required"], spec.parameters["additionalProperties"]) == (["what", "where"], False)
    assert "title" not in json.dumps(spec.parameters)
    jsonschema.Draft202012Validator.check_schema(spec.parameters)
    assert paint.options == ToolOptions(read_only=True, timeout_s=5)


async def test_arguments_arrive_as_the_types_of_the_signature() -> None:
    words = {"what": "a", "where": {"x": 1}, "colour": "blue", "coats": 2, "owner": {"name": "n"}, "tags": ["t"]}
    values = {"where": Point(1), "colour": Colour.BLUE, "owner": Person(name="n")}
    assert await run(paint, **words) == words | values
    least = await run(paint, what="a", where={"x": 1, "y": 2})
    assert (least["colour"], least["owner"]) == (Colour.RED, None)


def test_it_is_still_the_function() -> None:
    assert paint("a", Point(1))["where"] == Point(1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"what": 1, "where": {"x": 1}}', "what: Input should be a valid string"),
        ('{"what": "a"}', "where: Field required"),
        ('{"what": "a", "where": {"x": 1}, "zest": 1}', "zest: Extra inputs"),
        ('{"what": ', "Invalid JSON"),
        ("[]", "object"),
        ('{"what": "a", "where": {"x": 1}, "coats": 3}', "coats"),
    ],
)
async def test_wrong_arguments_are_told_in_one_line(arguments: str, words: str) -> None:
    with pytest.raises(ToolError, match="the arguments are wrong") as caught:
        await paint.run(arguments, RunContext())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, ToolCrashed), "trying again would not help"


async def test_names_that_pydantic_keeps_for_itself() -> None:
    @tool
    def odd(schema: int, _id: str = "x", model_config: int = 1, json: int = 2) -> list[Any]:
        return [schema, _id, model_config, json]

    assert list(odd.spec.parameters["properties"]) == ["schema", "_id", "model_config", "json"]
    assert await run(odd, schema=5, _id="y") == [5, "y", 1, 2]


async def test_context_is_found_by_type_and_hidden_from_the_model() -> None:
    @tool
    def where(city: str, db: Context[Database], here: Context[Run]) -> list[str]:
        return [city, db.name, here.id]

    assert list(where.spec.parameters["properties"]) == ["city"]
    assert await run(where, "something else", Database(), Run("r1", "s"), city="Rome") == ["Rome", "shop", "r1"]
    with pytest.raises(ConfigError, match="Database"):
        await run(where, city="Rome")


async def test_what_does_not_await_runs_in_a_thread() -> None:
    @tool
    def here() -> int:
        return threading.get_ident()

    @tool
    async def there() -> int:
        return threading.get_ident()

    assert await run(here) != threading.get_ident()
    assert await run(there) == threading.get_ident()


async def test_what_a_function_raises_is_told_in_words() -> None:
    @tool
    def crash() -> None:
        raise ValueError("no such city")

    @tool
    def refuse() -> None:
        raise ToolError("closed on Sundays")

    @tool
    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(ToolCrashed, match="ValueError: no such city"):
        await run(crash)
    with pytest.raises(ToolError, match=r"^closed on Sundays$") as caught:
        await run(refuse)
    assert not isinstance(caught.value, ToolCrashed)
    with pytest.raises(SystemExit):
        await run(leave)


def test_what_cannot_be_a_tool() -> None:
    def positional(a: int, /) -> None: ...

    def many(*args: int) -> None: ...

    def opaque(lock: threading.Lock) -> None: ...

    for function in (positional, many, opaque):
        with pytest.raises(ConfigError):
            FunctionTool(function)
    with pytest.raises(ConfigError, match="timeout_s"):
        ToolOptions(timeout_s=0)
    with pytest.raises(ConfigError, match="max_concurrency"):
        ToolOptions(max_concurrency=0)


async def test_a_run_whose_context_lacks_something_does_not_begin() -> None:
    """It is for whoever wrote the program to read, and not for the model."""

    @tool
    def look(database: Context[Database]) -> str:
        return database.name

    model, conversation = ScriptedModel([[ScriptedCall("look")], "done"]), Conversation()
    inner = Agent(ScriptedModel([[ScriptedCall("look")], "done"]), [look]).as_tool("inner", "Looks.")
    for wanting in (look, inner, Agent(model, [inner]).as_tool("outer", "Asks.")):
        name = wanting.spec.name
        with pytest.raises(ConfigError, match=f"the tool '{name}' wants a Database, and the run's context has none"):
            await Agent(model, [wanting]).run("go", conversation=conversation)
        assert not len(conversation)
    assert not model.asks
    assert (await Agent(model, [look]).run("go", context=[Database()])).output == "done"


def test_a_method_is_no_tool_but_a_bound_one_is() -> None:
    class Shop:
        def find(self, name: str) -> str:
            """Find it."""
            return name

    with pytest.raises(ConfigError, match=r"find is a method.*tool\(thing\.find\)"):
        tool(Shop.find)
    with pytest.raises(ConfigError, match="find is a method"):
        Agent(ScriptedModel([]), [Shop.find])
    with pytest.raises(ConfigError, match="look is a method"):

        class Clerk:
            @tool
            def look(self, name: str) -> str:
                return name

    assert list(tool(Shop().find).spec.parameters["properties"]) == ["name"]
    assert Agent(ScriptedModel([]), [Shop().find]).tools


@pytest.mark.parametrize("kind", [Database | None, Any])
def test_a_context_that_is_not_a_class_is_refused_where_the_tool_is_made(kind: Any) -> None:
    def look(database: Any) -> str:
        return "nothing"

    look.__annotations__["database"] = Context[kind]
    with pytest.raises(ConfigError, match="the context of 'database' must be a class"):
        tool(look)
