"""What a tier is chosen by, read off a request body once. Any API's shape will do; what is odd counts as absent.

Pure, and forgiving: whether a body is right is for whoever answers it to say.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hotloop.router.tiers.config import Task

_GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
_SHAPES = ("structured_outputs", "choice", "regex", "grammar", "output_format", *_GUIDED)
_FENCE = "```"


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    text: str = ""
    """The newest words of the user."""
    hint: Task | None = None
    num_tokens: int = 0
    num_turns: int = 0
    num_tools: int = 0
    has_shape: bool = False
    has_tool_error: bool = False
    """Whether a call of the model's last answer failed."""
    is_tool_loop: bool = False
    """Whether the newest that was said are results of calls: the model is in the middle of something."""

    @property
    def has_code(self) -> bool:
        return _FENCE in self.text


def look_at(body: Mapping[str, Any], *, num_tokens: int, task: Task = "") -> Features:
    """`task` is what the client says it is; `num_tokens` whatever estimate of the prompt there is."""
    texts, has_tool_error, is_tool_loop = [], False, False
    for item in _items(body):
        if item.get("role") == "assistant" or item.get("type") in ("function_call", "reasoning"):
            has_tool_error = False
        elif _is_failed_result(item):
            has_tool_error = True
        if item.get("role") in ("user", "tool") or item.get("type") == "function_call_output":
            is_tool_loop = _is_result(item)
        if item.get("role") == "user" and (text := _text_of(item.get("content"))):
            texts.append(text)
    tools = body.get("tools")
    return Features(
        text=texts[-1] if texts else "",
        hint=task or None,
        num_tokens=num_tokens,
        num_turns=len(texts),
        num_tools=len(tools) if isinstance(tools, list) else 0,
        has_shape=has_shape(body),
        has_tool_error=has_tool_error,
        is_tool_loop=is_tool_loop,
    )


def has_shape(body: Mapping[str, Any]) -> bool:
    kinds = (_field(body, "response_format", "type"), _field(body, "text", "format", "type"))
    return any(kind not in (None, "text") for kind in kinds) or any(body.get(key) is not None for key in _SHAPES)


def _items(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Messages of chat and Anthropic, items of responses; a plain prompt is what a user says."""
    for key in ("messages", "input", "prompt"):
        value = body.get(key)
        if isinstance(value, str):
            yield {"role": "user", "content": value}
        yield from _dicts(value)


def _dicts(value: Any) -> Iterator[Mapping[str, Any]]:
    return (each for each in value if isinstance(each, dict)) if isinstance(value, list) else iter(())


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = (part.get("text") for part in _dicts(content))
    return "\n".join(text for text in texts if isinstance(text, str))


def _field(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _is_result(item: Mapping[str, Any]) -> bool:
    if item.get("role") == "tool" or item.get("type") == "function_call_output":
        return True
    return any(part.get("type") == "tool_result" for part in _dicts(item.get("content")))


def _is_failed_result(item: Mapping[str, Any]) -> bool:
    if item.get("role") == "tool":
        return _says_error(_text_of(item.get("content")))
    if item.get("type") == "function_call_output":
        return _says_error(_text_of(item.get("output")))
    return any(part.get("is_error") is True for part in _dicts(item.get("content")))


def _says_error(text: str) -> bool:
    """`Error: ...`, as most runtimes word it, or a JSON object whose `error` is not empty."""
    begin = text.lstrip()[:6].lower()
    if not begin.startswith("{") or '"error"' not in text:
        return begin.startswith("error")
    try:
        return bool(_field(json.loads(text), "error"))
    except (ValueError, RecursionError):
        return False
