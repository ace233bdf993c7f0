"""The body of `/v1/responses` as one of `/v1/chat/completions`."""

from hotloop.router.translate.field import Field, Json, read_flag
from hotloop.router.translate.notes import Notes
from hotloop.router.translate.responses_to_chat.items import render_items
from hotloop.router.translate.responses_to_chat.tools import Toolbox

# Spelt and meant alike in both.
_SAME = {
    "temperature",
    "top_p",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "service_tier",
}
_ROUTED = {"priority", "session_id"}
_TRANSLATED = {
    *("model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "max_output_tokens", "stream"),
    *("stream_options", "text", "reasoning", "store", "background", "previous_response_id", "conversation", "prompt"),
}
_HOSTED = {"include", "truncation", "metadata", "top_logprobs", "max_tool_calls", "context_management"}
_REFUSALS = {
    "previous_response_id": "the replica keeps no responses: send the whole conversation as input",
    "conversation": "the replica keeps no conversations: send the whole of it as input",
    "prompt": "the replica keeps no prompts: send the instructions themselves",
}


def render_request(body: Field, toolbox: Toolbox, notes: Notes, *, is_strict: bool) -> Json:
    for name, reason in _REFUSALS.items():
        if given := body.get(name):
            raise given.refuse(reason)
    if read_flag(body, "background"):
        raise body.need("background").refuse("the replica answers at once or not at all")
    if read_flag(body, "store"):
        notes.add("store: the replica keeps no responses")
    return {
        **_render_rest(body, notes, is_strict=is_strict),
        "model": body.need("model").text(),
        "messages": render_items(body, notes, is_strict=is_strict),
        **toolbox.fields,
        **_render_output(body, notes, is_strict=is_strict),
    }


def _render_rest(body: Field, notes: Notes, *, is_strict: bool) -> Json:
    """Engines take many fields of their own, and ignore the rest; OpenAI refuses what it does not know."""
    known = _TRANSLATED | _HOSTED | _ROUTED
    given = {name: value for name, value in body.object().items() if value is not None}
    notes.lose([name for name, value in given.items() if name in _HOSTED and value], "the replica's API")
    rest = {name: value for name, value in given.items() if name not in known}
    if not is_strict:
        return rest
    notes.lose([name for name in rest if name not in _SAME], "the replica's API")
    return {name: value for name, value in rest.items() if name in _SAME}


def _render_output(body: Field, notes: Notes, *, is_strict: bool) -> Json:
    rendered: Json = {}
    if limit := body.get("max_output_tokens"):
        rendered["max_completion_tokens" if is_strict else "max_tokens"] = limit.count()
    if read_flag(body, "stream"):
        rendered |= {"stream": True, "stream_options": {"include_usage": True}}
    reasoning, text = body.get("reasoning"), body.get("text")
    if reasoning and (effort := reasoning.get("effort")):
        rendered["reasoning_effort"] = effort.text()
    if reasoning and reasoning.get("summary"):
        notes.lose(["reasoning.summary"], "the replica's API")
    if text and (verbosity := text.get("verbosity")):
        rendered["verbosity"] = verbosity.text()
    return {**rendered, **_render_format(text)}


def _render_format(text: Field | None) -> Json:
    form = text and text.get("format")
    if not form or form.kind() == "text":
        return {}
    if form.kind() == "json_object":
        return {"response_format": {"type": "json_object"}}
    if form.kind() != "json_schema":
        raise form.need("type").refuse("expected text, json_object or json_schema")
    form.need("schema").object()
    schema = {name: value for name, value in form.object().items() if name != "type" and value is not None}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", **schema}}}
