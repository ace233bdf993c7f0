"""What an answer must look like, in all the words clients have for it: the schema each API takes, vLLM's
`structured_outputs` and its older `guided_*` fields, and tools to call. All of it becomes one grammar.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from hotloop.chat.formats import ToolFormat
from hotloop.chat.lark import literal
from hotloop.chat.tools import ToolChoice
from hotloop.core.errors import RequestError
from hotloop.core.grammar import Grammar, json_schema
from hotloop.models.tokenizer import Tokenizer
from hotloop.server.calling import Calling
from hotloop.server.options import Options
from hotloop.server.service import Service
from hotloop.wire.request import ApiRequest

_SHAPE_PARAMS = {"chat": "response_format", "responses": "text.format", "messages": "output_config.format.schema"}
# Formats whose calls begin like any JSON: an answer in JSON could not be told from them.
_UNMARKED = frozenset({"llama3"})
_MAX_BLAMED = 16  # tools looked at one by one when something is wrong with one of them


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar, and the field that asks for it."""

    param: str
    grammar: Grammar


def parse_constraint(request: ApiRequest, options: Options) -> Constraint | None:
    """The one thing the answer must look like; None if it is free. Raises RequestError if there are two."""
    fields = list(_structure_fields(request, options))
    if not fields:
        return None
    if len(fields) > 1:
        raise RequestError(f"{fields[0][0]} and {fields[1][0]} cannot be given together", param=fields[1][0])
    [(param, kind, value)] = fields
    with _blaming(param):
        return Constraint(param, _parse_grammar(kind, value))


def answer_grammar(wanted: Constraint | None, calling: Calling, service: Service) -> Grammar | None:
    """What the answer must look like; `wanted` is what the request demands of one that is not a call. Compiled on this
    thread, so that the engine finds it done. Raises RequestError that names the one tool at fault."""
    tool_format, tokenizer = service.tool_format, service.engine.tokenizer
    try:
        ordered = replace(calling, allowed=service.prompts.order(calling.allowed))
        constraint = constrain(wanted, ordered, tool_format, tokenizer)
        if constraint:
            with _blaming(constraint.param):
                service.engine.grammars.prepare(constraint.grammar)
        return constraint.grammar if constraint else None
    except RequestError:
        for tool in calling.allowed[:_MAX_BLAMED] if calling.is_possible else ():
            with _blaming(calling.places[tool.name]):
                grammar = tool_format.grammar([tool], ToolChoice("required", tool.name), tokenizer)
                assert grammar, "calls that must come have a grammar"
                service.engine.grammars.prepare(grammar)
        raise


def constrain(
    wanted: Constraint | None, calling: Calling, tool_format: ToolFormat, tokenizer: Tokenizer
) -> Constraint | None:
    if not calling.is_possible:
        return wanted
    if wanted is None or calling.is_required:
        with _blaming("tools"):
            grammar = tool_format.grammar(calling.allowed, calling.choice, tokenizer)
        return Constraint("tools", grammar) if grammar else None
    if wanted.grammar.kind != "json_schema" or tool_format.name in _UNMARKED:
        reason = f"{wanted.param} cannot be given together with tools, unless tool_choice is 'none'"
        raise RequestError(reason, param=wanted.param)
    with _blaming("tools"):
        calls = tool_format.grammar(calling.allowed, replace(calling.choice, mode="required"), tokenizer)
    assert calls, "calls that must come have a grammar"
    return Constraint(wanted.param, either(calls, wanted.grammar))


def either(calls: Grammar, answer: Grammar) -> Grammar:
    assert (calls.kind, answer.kind) == ("lark", "json_schema")
    return Grammar("lark", f"start: calls | answer\ncalls: %lark {{\n{calls.text}\n}}\nanswer: %json {answer.text}\n")


@contextmanager
def _blaming(param: str) -> Iterator[None]:
    """What is wrong with a grammar is wrong with the field it came in."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"{param}: {error}", param=param) from None


def _structure_fields(request: ApiRequest, options: Options) -> Iterator[tuple[str, str, Any]]:
    """Every field that asks for a structure: its name, the kind of structure, its value."""
    if request.shape:
        kind = "json_object" if request.shape.schema is None else "json"
        yield _SHAPE_PARAMS[request.api], kind, request.shape.schema
    if options.structured_outputs:
        for kind in ("json", "json_object", "regex", "choice", "grammar"):
            if value := getattr(options.structured_outputs, kind):
                yield f"structured_outputs.{kind}", kind, value
    for kind in ("json", "regex", "choice", "grammar"):
        for param in (f"guided_{kind}", kind):
            if (value := getattr(options, param, None)) is not None:
                yield param, kind, value


def _parse_grammar(kind: str, value: Any) -> Grammar:
    match kind:
        case "json_object":
            return json_schema({"type": "object"})
        case "json":
            return json_schema(value if isinstance(value, dict) else _decode_schema(value))
        case "regex":
            return Grammar("regex", value)
        case "choice":
            return Grammar("lark", "start: " + " | ".join(map(_quote, dict.fromkeys(value))))
        case _:
            return Grammar("lark", value)


def _decode_schema(text: str) -> dict[str, Any]:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise RequestError("the text is not a JSON schema")
    return schema


def _quote(text: str) -> str:
    """Lark takes a string as JSON writes it, but for the one control character that JSON leaves as it is."""
    return literal(text).replace("\x7f", "\\u007f")
