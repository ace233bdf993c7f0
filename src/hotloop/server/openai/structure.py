"""What an answer must look like, in all the words clients have for it: OpenAI's `response_format`, vLLM's
`structured_outputs` and its older `guided_*` fields. Each becomes a grammar; two at once are refused.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hotloop.chat.lark import literal
from hotloop.core.errors import RequestError
from hotloop.core.grammar import Grammar
from hotloop.core.schema import json_schema

MAX_CHOICES = 10_000

Name = Annotated[str, Meta(min_length=1)]
Schema = dict[str, Any] | str
Choices = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=MAX_CHOICES)]


class TextFormat(msgspec.Struct, tag_field="type", tag="text"):
    """Anything."""


class JsonObjectFormat(msgspec.Struct, tag_field="type", tag="json_object"):
    """Any JSON object."""


class SchemaBody(msgspec.Struct, kw_only=True):
    name: Name
    schema: dict[str, Any] | None = None


class JsonSchemaFormat(msgspec.Struct, kw_only=True, tag_field="type", tag="json_schema"):
    json_schema: SchemaBody


FormatBody = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """As vLLM has it. What is not known here is refused: ignored, it would leave the answer without its structure. The
    last four are about how vLLM does it, and change nothing here.
    """

    json: Schema | None = None
    json_object: bool | None = None
    regex: Name | None = None
    choice: Choices | None = None
    grammar: Name | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    disable_fallback: bool | None = None
    whitespace_pattern: str | None = None


class StructureBody(msgspec.Struct, kw_only=True):
    """The fields of a body that say what the answer must look like."""

    response_format: FormatBody | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: Name | None = None
    guided_choice: Choices | None = None
    guided_grammar: Name | None = None
    regex: Name | None = None
    choice: Choices | None = None
    grammar: Name | None = None


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar, and the field that asks for it."""

    param: str
    grammar: Grammar


def parse_constraint(body: StructureBody) -> Constraint | None:
    """The one thing the answer must look like; None if it is free. Raises RequestError if there are two."""
    asked = list(_asked(body))
    if not asked:
        return None
    if len(asked) > 1:
        raise RequestError(f"{asked[0][0]} and {asked[1][0]} cannot be given together", param=asked[1][0])
    [(param, kind, value)] = asked
    with blaming(param):
        return Constraint(param, _parse_grammar(kind, value))


@contextmanager
def blaming(param: str) -> Iterator[None]:
    """What is wrong with a grammar is wrong with the field it came in."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"{param}: {error}", param=param) from None


def either(calls: Grammar, answer: Grammar) -> Grammar:
    """Tool calls, or an answer that follows its schema."""
    assert (calls.kind, answer.kind) == ("lark", "json_schema")
    return Grammar("lark", f"start: calls | answer\ncalls: %lark {{\n{calls.text}\n}}\nanswer: %json {answer.text}\n")


def _asked(body: StructureBody) -> Iterator[tuple[str, str, Any]]:
    """Every field that asks for a structure: its name, the kind of structure, its value."""
    if isinstance(body.response_format, JsonObjectFormat):
        yield "response_format", "json_object", True
    elif isinstance(body.response_format, JsonSchemaFormat):
        yield "response_format", "json", body.response_format.json_schema.schema or {}
    if body.structured_outputs:
        for kind in ("json", "json_object", "regex", "choice", "grammar"):
            if value := getattr(body.structured_outputs, kind):
                yield f"structured_outputs.{kind}", kind, value
    for kind in ("json", "regex", "choice", "grammar"):
        for param in (f"guided_{kind}", kind):
            if (value := getattr(body, param, None)) is not None:
                yield param, kind, value


def _parse_grammar(kind: str, value: Any) -> Grammar:
    match kind:
        case "json_object":
            return json_schema({"type": "object"})
        case "json":
            return json_schema(_parse_schema(value))
        case "regex":
            return Grammar("regex", value)
        case "choice":
            return Grammar("lark", "start: " + " | ".join(map(_quote, dict.fromkeys(value))))
        case _:
            return Grammar("lark", value)


def _parse_schema(value: Schema) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    try:
        schema = json.loads(value)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise RequestError("the text is not a JSON schema")
    return schema


def _quote(text: str) -> str:
    """Lark takes a string as JSON writes it, but for the one control character that JSON leaves as it is."""
    return literal(text).replace("\x7f", "\\u007f")
