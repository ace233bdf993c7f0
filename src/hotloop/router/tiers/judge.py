"""Whether a whole chat completion will do, or a larger model should be asked. Pure: an answer, its request, a verdict.

Invalid is what a client could not use: cut off, empty, JSON that does not parse or does not follow its schema, a call
that nobody offered.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hotloop.http.json_schema import first_violation
from hotloop.router.tiers.config import CascadeConfig
from hotloop.router.tiers.features import has_shape

Fields = Mapping[str, Any]


def judge(answer: Fields | None, request: Fields, config: CascadeConfig) -> str:
    """Why an answer will not do; empty if it will. What is wrong first, then what is uncertain."""
    if answer is None:
        return "no answer"
    if not _is_completion(answer):
        return "not a chat completion"
    if "invalid_output" in config.on and (fault := _find_fault(answer["choices"][0], request)):
        return fault
    return find_doubt(answer, request, config) if config.minds_confidence(request) else ""


def _is_completion(answer: Fields) -> bool:
    """Whether it can be looked through: what a replica sends may be anything."""
    match answer:
        case {"choices": [{"message": dict() as message}, *_] as choices}:
            text, calls = message.get("content") or "", message.get("tool_calls") or []
            is_readable = isinstance(text, str) and isinstance(calls, list)
            return is_readable and all(isinstance(each, dict) for each in (*choices, *calls))
    return False


def find_doubt(answer: Fields, request: Fields, config: CascadeConfig) -> str:
    """How uncertain the model was, if too much; an answer without probabilities is taken for certain. Where it has a
    shape to follow, a token that was not the likeliest was imposed by it, and says nothing about what was meant."""
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
    least = min((logprob - max(others) for logprob, others in tokens if others), default=config.min_margin)
    return f"margin {least:.2f}" if least < config.min_margin else ""


def _tokens(answer: Fields) -> Iterator[tuple[float, Sequence[float]]]:
    match answer:
        case {"choices": [{"logprobs": {"content": list() as content}}, *_]}:
            for each in content:
                match each:
                    case {"token": token, "logprob": int() | float() as logprob}:
                        yield logprob, [other for name, other in top_logprobs(each) if name != token]


def top_logprobs(token: Fields) -> Iterator[tuple[str, float]]:
    tops = token.get("top_logprobs")
    for top in tops if isinstance(tops, list) else ():
        match top:
            case {"token": str(name), "logprob": int() | float() as logprob}:
                yield name, logprob


def _find_fault(choice: Fields, request: Fields) -> str:
    if choice.get("finish_reason") == "length":
        return "cut off"
    message, tools = choice["message"], request.get("tools") or []
    if calls := message.get("tool_calls"):
        return next(filter(None, (_fault_of_call(call, tools) for call in calls)), "")
    match request.get("tool_choice"):
        case "required" | {"type": "function"} if tools:
            return "no call"
    text = message.get("content") or message.get("refusal")
    return _fault_of_text(text, request) if text else "empty"


def _fault_of_call(call: Any, tools: Sequence[Any]) -> str:
    match call:
        case {"function": {"name": str(name), "arguments": str(arguments)}}:
            for tool in tools:
                match tool:
                    case {"function": {"name": offered, **rest}} if offered == name:
                        given = rest.get("parameters")
                        schema = {"type": "object", **(given if isinstance(given, dict) else {})}
                        return _fault_of_json(arguments or "{}", schema, f"the arguments of {name}", "are")
            return f"there is no tool {name}"
    return "a call without a name or arguments"


def _fault_of_text(text: str, request: Fields) -> str:
    match request.get("response_format"):
        case {"type": "json_object"}:
            return _fault_of_json(text, {"type": "object"}, "the answer", "is")
        case {"type": "json_schema", "json_schema": {"schema": dict() as schema}}:
            return _fault_of_json(text, schema, "the answer", "is")
    outputs = request.get("structured_outputs")
    nested = outputs.get("choice") if isinstance(outputs, dict) else None
    choices = request.get("choice") or request.get("guided_choice") or nested
    return "none of the choices" if isinstance(choices, list) and text not in choices else ""


def _fault_of_json(text: str, schema: Fields, what: str, verb: str) -> str:
    try:
        misfit = first_violation(json.loads(text), schema)
    except (ValueError, RecursionError):
        return f"{what} {verb} not JSON"
    return f"{what}: {misfit}" if misfit else ""
