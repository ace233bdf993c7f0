"""What a tier is chosen by, read off a request body once. Any API's shape will do; what is odd counts as absent.

Pure, and forgiving: whether a body is right is for whoever answers it to say.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hotloop.router.tiers.config import TASKS, Task

TASK_HEADER = "x-hotloop-task"
"""Where an agent runtime says what kind of task a request is; `metadata.task` in the body means the same."""

_GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
_SHAPES = ("structured_outputs", "choice", "regex", "grammar", "output_format", *_GUIDED)
_FENCE = "```"


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """A request as the rules see it."""

    text: str = ""
    """The newest words of the user."""
    hint: Task | None = None
    num_tokens: int = 0
    num_turns: int = 0
    num_tools: int = 0
    has_shape: bool = False
    has_tool_error: bool = False
    """Whether a call of the model's last answer failed."""

    @property
    def has_code(self) -> bool:
        return _FENCE in self.text


def look_at(body: Mapping[str, Any], *, num_tokens: int, hint: str = "") -> Features:
    """`hint` is the header's; `num_tokens` whatever estimate of the prompt there is."""
    items = list(_items(body))
    said = [text for item in items if item.get("role") == "user" and (text := _text_of(item.get("content")))]
    tools = body.get("tools")
    return Features(
        text=said[-1] if said else "",
        hint=_parse_task(hint) or _parse_task(_field(body, "metadata", "task")),
        num_tokens=num_tokens,
        num_turns=len(said),
        num_tools=len(tools) if isinstance(tools, list) else 0,
        has_shape=has_shape(body),
        has_tool_error=any(map(_is_failed_result, _newest(items))),
    )


def _parse_task(word: Any) -> Task | None:
    """A word that names no task is no hint: clients may send hints meant for others."""
    name = word.strip().lower() if isinstance(word, str) else ""
    return next((task for task in TASKS if task == name), None)


def _items(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Messages of chat and Anthropic, items of responses; a plain prompt is what a user says."""
    for key in ("messages", "input", "prompt"):
        value = body.get(key)
        if isinstance(value, str):
            yield {"role": "user", "content": value}
        elif isinstance(value, list):
            yield from (item for item in value if isinstance(item, dict))


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))


def has_shape(body: Mapping[str, Any]) -> bool:
    """Whether the answer must look like something, in any API's words for it."""
    kinds = (_field(body, "response_format", "type"), _field(body, "text", "format", "type"))
    return any(kind not in (None, "text") for kind in kinds) or any(body.get(key) is not None for key in _SHAPES)


def _field(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _newest(items: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """What has come since the model's last answer."""
    places = [place for place, item in enumerate(items) if _is_of_model(item)]
    return items[places[-1] + 1 :] if places else items


def _is_of_model(item: Mapping[str, Any]) -> bool:
    return item.get("role") == "assistant" or item.get("type") in ("function_call", "reasoning")


def _is_failed_result(item: Mapping[str, Any]) -> bool:
    if item.get("role") == "tool":
        return _says_error(_text_of(item.get("content")))
    if item.get("type") == "function_call_output":
        output = item.get("output")
        return _says_error(output if isinstance(output, str) else _text_of(output))
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    return any(isinstance(part, dict) and part.get("is_error") is True for part in parts)


def _says_error(text: str) -> bool:
    """`Error: ...`, as most runtimes word it, or a JSON object whose `error` is not empty."""
    begin = text.lstrip()[:6].lower()
    if begin.startswith("error"):
        return True
    if not begin.startswith("{") or '"error"' not in text:
        return False
    try:
        return bool(_field(json.loads(text), "error"))
    except (ValueError, RecursionError):
        return False
