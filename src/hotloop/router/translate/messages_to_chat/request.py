"""The body of `/v1/messages` as one of `/v1/chat/completions`."""

import hashlib

from hotloop.router.translate.field import Field, Json, read_flag
from hotloop.router.translate.messages_to_chat.tools import render_tools
from hotloop.router.translate.messages_to_chat.turns import render_turns
from hotloop.router.translate.messages_to_chat.writing import Writing

MAX_USER_CHARS = 64
"""Of `user`, to OpenAI; the hash that stands for a longer one has as many."""

# Said here already: the router has read them.
_ROUTED = {"priority", "session_id"}
_TRANSLATED = {
    *("model", "messages", "system", "tools", "tool_choice", "max_tokens", "stop_sequences", "stream", "temperature"),
    *("top_p", "top_k", "metadata", "thinking", "output_config", "service_tier", "cache_control"),
}
# Anthropic's own, which nobody else means anything by.
_HOSTED = {
    *("container", "context_management", "diagnostics", "inference_geo", "mcp_servers", "speed", "user_profile_id"),
    *("workspace_id", "betas", "fallbacks"),
}
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_SERVICE_TIERS = {"auto": "auto", "standard_only": "default"}


def render_request(body: Field, writing: Writing) -> Json:
    if thread := body.get("thread"):
        raise thread.refuse("no conversation is kept here: send all of it, without thread")
    return {
        **_render_unknown(body, writing),
        "model": body.need("model").text(),
        "messages": render_turns(body, writing),
        **render_tools(body, writing),
        **_render_sampling(body, writing),
        **_render_output(body, writing),
        **_render_thinking(body, writing),
        **_render_user(body, writing),
    }


def _render_unknown(body: Field, writing: Writing) -> Json:
    """Engines take many fields of their own, and ignore the rest; OpenAI refuses what it does not know."""
    given = {name: value for name, value in body.object().items() if value is not None}
    unknown = {name: value for name, value in given.items() if name not in _TRANSLATED | _HOSTED | _ROUTED}
    lost = [name for name in given if name in _HOSTED]
    if writing.is_strict:
        lost += unknown
        unknown = {}
    writing.notes.lose(lost, "the replica's API")
    return writing.mark(body, unknown)


def _render_sampling(body: Field, writing: Writing) -> Json:
    limit = "max_completion_tokens" if writing.is_strict else "max_tokens"
    num_asked = body.need("max_tokens").count()
    if num_asked == 0:
        writing.notes.add("max_tokens: 0 becomes 1, since a chat cannot only be read")
    rendered: Json = {limit: num_asked or 1}
    for name in ("temperature", "top_p"):
        if given := body.get(name):
            rendered[name] = given.number()
    if top_k := body.get("top_k"):
        if writing.is_strict:
            writing.notes.lose(["top_k"], "the replica's API")
        else:
            rendered["top_k"] = top_k.count()
    if stops := body.get("stop_sequences"):
        texts = [stop.text() for stop in stops.each()]
        rendered |= {"stop": texts} if texts else {}
    return rendered


def _render_output(body: Field, writing: Writing) -> Json:
    rendered: Json = {}
    if read_flag(body, "stream"):
        rendered = {"stream": True, "stream_options": {"include_usage": True}}
    if tier := body.get("service_tier"):
        rendered["service_tier"] = _SERVICE_TIERS.get(tier.text(), "auto")
    config = body.get("output_config")
    shape = config and config.get("format")
    if shape:
        if shape.kind() != "json_schema":
            raise shape.need("type").refuse("expected json_schema")
        schema = {"name": "answer", "schema": dict(shape.need("schema").object()), "strict": True}
        rendered["response_format"] = {"type": "json_schema", "json_schema": schema}
    effort = config and config.get("effort")
    if effort:
        rendered["reasoning_effort"] = _EFFORTS.get(effort.text(), "high")
        if rendered["reasoning_effort"] != effort.text():
            writing.notes.add(f"output_config.effort: {effort.text()} becomes {rendered['reasoning_effort']}")
    return rendered


def _render_thinking(body: Field, writing: Writing) -> Json:
    """Models that can think are told when they should not. Whether they do otherwise is up to them."""
    thinking = body.get("thinking")
    if thinking is None:
        return {}
    is_off = thinking.kind() == "disabled"
    if is_off and not writing.is_strict:
        return {"chat_template_kwargs": {**_template_variables(body), "enable_thinking": False}}
    if is_off or thinking.get("budget_tokens"):
        writing.notes.lose(["thinking" if is_off else "thinking.budget_tokens"], "the replica's API")
    return {}


def _template_variables(body: Field) -> Json:
    given = body.get("chat_template_kwargs")
    return dict(given.object()) if given else {}


def _render_user(body: Field, writing: Writing) -> Json:
    """Clients put whole objects into `user_id`; to OpenAI its hash names the same user."""
    metadata = body.get("metadata")
    if metadata is None:
        return {}
    lost = [f"metadata.{name}" for name in metadata.object() if name != "user_id"]
    writing.notes.lose(lost, "the replica's API")
    user = metadata.get("user_id")
    if user is None:
        return {}
    if writing.is_strict and len(user.text()) > MAX_USER_CHARS:
        writing.notes.add("metadata.user_id is too long for the replica's API: its hash is sent")
        return {"user": hashlib.sha256(user.text().encode()).hexdigest()}
    return {"user": user.text()}
