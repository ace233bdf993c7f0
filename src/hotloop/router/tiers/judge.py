"""Whether a whole chat completion will do, or a larger model should be asked. Pure: an answer, its request, a verdict.

Invalid is what a client could not use: cut off, empty, JSON that does not parse or lacks what its schema requires, a
call that nobody offered. Values are not judged, and schemas only by type, `required` and `enum`: a server that
constrains its answers sees to the rest, and one that does not fails mostly at these. Not a whole validator: schemas are
the client's, and one with patterns, branches or references could hold up everybody; this is linear in the answer.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from hotloop.router.tiers.config import CascadeConfig
from hotloop.router.tiers.features import has_shape

Json = Mapping[str, Any]

_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
_MAX_DEPTH = 32


def judge(answer: Json | None, request: Json, config: CascadeConfig) -> str:
    """Why an answer will not do; empty if it will. What is wrong first, then what is uncertain, as far as the cascade
    minds."""
    if answer is None:
        return "no answer"
    choice = _first_choice(answer)
    if choice is None:
        return "not a chat completion"
    if "invalid_output" in config.on and (fault := _find_fault(choice, request)):
        return fault
    return find_doubt(answer, request, config) if config.minds_confidence(request) else ""


def _find_fault(choice: Json, request: Json) -> str:
    """Why a client could not use it; empty if it could."""
    if choice.get("finish_reason") == "length":
        return "cut off"
    message = choice["message"]
    calls = message.get("tool_calls") or []
    if calls:
        return next(filter(None, (_fault_of_call(call, request) for call in calls)), "")
    if _must_call(request):
        return "no call"
    text = message.get("content") or message.get("refusal") or ""
    return _fault_of_text(text, request) if text else "empty"


def find_doubt(answer: Json, request: Json, config: CascadeConfig) -> str:
    """How uncertain the model was, if too much; an answer without probabilities is taken for certain.

    Where the answer has a shape to follow, a token that was not the likeliest was imposed by it: brackets and marks
    that the model would have written otherwise, which say nothing about what it meant.
    """
    tokens = list(_tokens(answer))
    if request.get("tools") or has_shape(request):
        tokens = [(logprob, others) for logprob, others in tokens if logprob >= max(others, default=logprob)]
    if not tokens:
        return ""
    mean = sum(logprob for logprob, _ in tokens) / len(tokens)
    if mean < config.min_logprob:
        return f"mean logprob {mean:.2f}"
    if config.min_margin is None:
        return ""
    margins = [logprob - max(others) for logprob, others in tokens if others]
    least = min(margins, default=config.min_margin)
    return f"margin {least:.2f}" if least < config.min_margin else ""


def _first_choice(answer: Json) -> Json | None:
    match answer:
        case {"choices": [{"message": dict()} as choice, *_]}:
            return cast(Json, choice)
    return None


def _tokens(answer: Json) -> Iterator[tuple[float, Sequence[float]]]:
    """The log probability of each token, and of those it was chosen over."""
    match answer:
        case {"choices": [{"logprobs": {"content": list() as content}}, *_]}:
            for each in content:
                match each:
                    case {"token": token, "logprob": int() | float() as logprob}:
                        yield logprob, list(_others(each.get("top_logprobs"), token))


def _others(tops: Any, token: Any) -> Iterator[float]:
    for top in tops if isinstance(tops, list) else ():
        match top:
            case {"token": other, "logprob": int() | float() as logprob} if other != token:
                yield logprob


def _must_call(request: Json) -> bool:
    choice = request.get("tool_choice")
    is_named = isinstance(choice, dict) and choice.get("type") == "function"
    return bool(request.get("tools")) and (choice == "required" or is_named)


def _fault_of_call(call: Any, request: Json) -> str:
    match call:
        case {"function": {"name": str(name), "arguments": str(arguments)}}:
            pass
        case _:
            return "a call without a name or arguments"
    for tool in request.get("tools") or []:
        match tool:
            case {"function": {"name": offered, **rest}} if offered == name:
                given = rest.get("parameters")
                schema = {"type": "object", **given} if isinstance(given, dict) else {"type": "object"}
                return _fault_of_json(arguments or "{}", schema, f"the arguments of {name}")
    return f"there is no tool {name}"


def _fault_of_text(text: str, request: Json) -> str:
    match request.get("response_format"):
        case {"type": "json_object"}:
            return _fault_of_json(text, {"type": "object"}, "the answer")
        case {"type": "json_schema", "json_schema": {"schema": dict() as schema}}:
            return _fault_of_json(text, schema, "the answer")
    outputs = request.get("structured_outputs")
    nested = outputs.get("choice") if isinstance(outputs, dict) else None
    choices = request.get("choice") or request.get("guided_choice") or nested
    if isinstance(choices, list) and text not in choices:
        return "none of the choices"
    return ""


def _fault_of_json(text: str, schema: Mapping[str, Any], what: str) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return f"{what} are not JSON" if what.startswith("the arguments") else f"{what} is not JSON"
    place = _misfit(value, schema)
    return f"{what}: {place}" if place else ""


def _misfit(value: Any, schema: Any, path: str = "", depth: int = 0) -> str:
    """Where a value has not the shape its schema asks for; empty if it has, as far as is looked at."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return ""
    if not _is_kind(value, schema.get("type")):
        return f"{path or 'it'} is no {schema['type']}"
    if isinstance(schema.get("enum"), list) and value not in schema["enum"]:
        return f"{path or 'it'} is none of its values"
    inner: list[tuple[str, Any, Any]] = []
    if isinstance(value, dict):
        required, properties = schema.get("required"), schema.get("properties")
        for key in required if isinstance(required, list) else ():
            if key not in value:
                return f"{path}.{key} is missing".removeprefix(".")
        known = properties if isinstance(properties, dict) else {}
        inner = [(f"{path}.{key}".removeprefix("."), item, known.get(key)) for key, item in value.items()]
    elif isinstance(value, list):
        inner = [(f"{path}[{i}]", item, schema.get("items")) for i, item in enumerate(value)]
    return next(filter(None, (_misfit(item, known, place, depth + 1) for place, item, known in inner)), "")


def _is_kind(value: Any, kind: Any) -> bool:
    """True is an integer to Python, not to JSON; 1.0 is one to JSON Schema. A type that is not known fits."""
    if isinstance(kind, list):
        return any(_is_kind(value, each) for each in kind)
    if not isinstance(kind, str) or kind not in _KINDS:
        return True
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _KINDS[kind])
