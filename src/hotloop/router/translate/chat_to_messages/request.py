"""The body of `/v1/chat/completions` as one of `/v1/messages`."""

from typing import Any

from hotloop.router.translate.chat_to_messages.marks import limit_marks, render_cache
from hotloop.router.translate.chat_to_messages.tools import render_tools
from hotloop.router.translate.chat_to_messages.turns import render_turns
from hotloop.router.translate.field import Field, Json, read_flag
from hotloop.router.translate.notes import Notes

DEFAULT_MAX_TOKENS = 8192
"""Anthropic wants to be told; every model of the last years can write as much."""

# Said here already, or Anthropic's own words, which clients send beside OpenAI's.
_ROUTED = {"priority", "session_id", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"}
_SAME = {"thinking", "top_k"}
_TRANSLATED = {
    *(
        "model",
        "messages",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "max_tokens",
        "max_completion_tokens",
        "stop",
    ),
    *("temperature", "top_p", "stream", "stream_options", "user", "safety_identifier", "response_format", "n"),
    *("reasoning_effort", "service_tier", "cache_control"),
}
# Values that ask for nothing.
_IDLE: dict[str, Any] = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logprobs": False,
    "store": False,
    "logit_bias": {},
    "modalities": ["text"],
    "metadata": {},
    "top_logprobs": 0,
}
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
_SERVICE_TIERS = {"auto": "auto", "default": "standard_only"}


def render_request(body: Field, notes: Notes) -> Json:
    for name in ("functions", "function_call"):
        if old := body.get(name):
            raise old.refuse("is too old to be carried to this replica: use tools")
    _note_unknown(body, notes)
    rendered: Json = {
        "model": body.need("model").text(),
        "max_tokens": _max_tokens(body, notes),
        **render_turns(body, notes),
        **render_tools(body, notes),
        **_render_sampling(body, notes),
        **_render_output(body, notes),
        **_render_service(body, notes),
        **render_cache(body, notes),
        **{name: value for name, value in body.object().items() if name in _SAME and value is not None},
    }
    return limit_marks(rendered, notes)


def _note_unknown(body: Field, notes: Notes) -> None:
    """Anthropic refuses what it does not know."""
    known = _ROUTED | _SAME | _TRANSLATED
    given = {name: value for name, value in body.object().items() if value is not None and name not in known}
    notes.lose(
        [name for name, value in given.items() if name not in _IDLE or value != _IDLE[name]], "the replica's API"
    )
    choices = body.get("n")
    if choices and choices.count() != 1:
        raise choices.refuse("this replica gives one answer at a time")


def _max_tokens(body: Field, notes: Notes) -> int:
    given = body.get("max_completion_tokens") or body.get("max_tokens")
    if given is None:
        notes.add(f"max_tokens is not given: {DEFAULT_MAX_TOKENS}")
        return DEFAULT_MAX_TOKENS
    return given.count()


def _render_sampling(body: Field, notes: Notes) -> Json:
    rendered: Json = {}
    if temperature := body.get("temperature"):
        rendered["temperature"] = min(temperature.number(), 1.0)
        if temperature.number() > 1:
            notes.add(f"temperature: {temperature.number():g} becomes 1, the highest there is")
    if top_p := body.get("top_p"):
        rendered["top_p"] = top_p.number()
    if stop := body.get("stop"):
        texts = [stop.text()] if stop.is_text else [each.text() for each in stop.each()]
        kept = [text for text in texts if text.strip()]
        if len(kept) < len(texts):
            notes.add("stop: white space alone cannot stop an answer there")
        rendered |= {"stop_sequences": kept} if kept else {}
    return rendered


def _render_output(body: Field, notes: Notes) -> Json:
    rendered: Json = {"stream": True} if read_flag(body, "stream") else {}
    config = _render_format(body, notes)
    if effort := body.get("reasoning_effort"):
        if effort.text() == "none":
            rendered["thinking"] = {"type": "disabled"}
        elif effort.text() in _EFFORTS:
            config["effort"] = _EFFORTS[effort.text()]
        else:
            raise effort.refuse("expected none, minimal, low, medium, high, xhigh or max")
    return {**rendered, "output_config": config} if config else rendered


def _render_format(body: Field, notes: Notes) -> Json:
    form = body.get("response_format")
    match form.kind() if form else "text":
        case "json_schema":
            assert form
            schema = dict(form.need("json_schema").need("schema").object())
            return {"format": {"type": "json_schema", "schema": schema}}
        case "json_object":
            notes.lose(["response_format of type json_object"], "the replica's API")
        case "text":
            pass
        case _:
            assert form
            raise form.need("type").refuse("expected text, json_object or json_schema")
    return {}


def _render_service(body: Field, notes: Notes) -> Json:
    rendered: Json = {}
    if user := body.get("user") or body.get("safety_identifier"):
        rendered["metadata"] = {"user_id": user.text()}
    if tier := body.get("service_tier"):
        if tier.text() in _SERVICE_TIERS:
            rendered["service_tier"] = _SERVICE_TIERS[tier.text()]
        else:
            notes.add(f"service_tier: there is no {tier.text()} there")
    return rendered
