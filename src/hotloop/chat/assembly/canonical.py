"""Tools and system messages in one form, however a client happens to send them, so that prompts begin alike.

Of tools only what has no meaning is reordered: they are sorted by name, and a schema's keywords stand in the order in
which most schemas have them. Properties keep their order, and so do the values of an `enum`.

Most templates word a system message where it stands. For those that would refuse a late one or move it to the front it
becomes words of the user's, set apart: what came before it stays as it was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hotloop.core.errors import RequestError
from hotloop.core.message import Message, Tool
from hotloop.models.template import ChatTemplate

_KEYWORDS = ("type", "title", "description", "enum", "const", "properties", "items", "required", "additionalProperties")
_RANKS = {keyword: rank for rank, keyword in enumerate(_KEYWORDS)}
_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_VALUES = ("enum", "const", "default", "examples")
_TURNS = (
    Message("system", "Be kind."),
    Message("user", "One."),
    Message("assistant", "Two."),
    Message("user", "Three."),
)
_LATE = Message("system", "Be brief.")


def canonical_tools(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    return tuple(
        replace(tool, parameters=canonical_schema(tool.parameters))
        for tool in sorted(tools, key=lambda tool: tool.name)
    )


def canonical_schema(schema: Any) -> Any:
    if isinstance(schema, list):
        return [canonical_schema(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    keywords = sorted(schema, key=lambda keyword: (_RANKS.get(keyword, len(_RANKS)), keyword))
    return {keyword: _canonical_part(keyword, schema) for keyword in keywords}


def _canonical_part(keyword: str, schema: Mapping[str, Any]) -> Any:
    part = schema[keyword]
    if keyword in _SCHEMAS_BY_NAME and isinstance(part, Mapping):
        return {name: canonical_schema(inner) for name, inner in part.items()}
    if keyword == "required" and isinstance(part, list):
        return _in_order(part, schema.get("properties"))
    return part if keyword in _VALUES else canonical_schema(part)


def _in_order(required: list[Any], properties: Any) -> list[Any]:
    """The names as the properties have them, then those that are none."""
    ranks = {name: rank for rank, name in enumerate(properties)} if isinstance(properties, Mapping) else {}
    return sorted(
        required, key=lambda name: (ranks.get(name, len(ranks)), name) if isinstance(name, str) else (1e9, "")
    )


def keeps_system_turns(template: ChatTemplate) -> bool:
    """Whether a late system message only adds to what was there before it. Found out by trying."""
    try:
        before = template.render(_TURNS, add_generation_prompt=False)
        after = template.render((*_TURNS, _LATE), add_generation_prompt=False)
    except RequestError:
        return False
    return after.startswith(before) and _LATE.content in after[len(before) :]


def spread_notes(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Each note as a system message behind the message that has it."""
    spread: list[Message] = []
    for message in messages:
        spread += [replace(message, note=""), Message("system", message.note)] if message.note else [message]
    return tuple(spread)


def word_system_turns(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Leading system messages as one; later ones at the user's next turn, or the last one or the result of a tool that
    they follow, or as a turn of their own."""
    turns: list[Message] = []
    waiting: list[str] = []
    for i, message in enumerate(messages):
        if message.role != "system":
            turns.append(replace(message, content="\n\n".join([*waiting, message.content])) if waiting else message)
            waiting = []
        elif all(turn.role == "system" for turn in turns):
            turns = [replace(message, content=f"{turns[0].content}\n\n{message.content}") if turns else message]
        else:
            waiting.append(f"<system>\n{message.content}\n</system>")
            next_role = messages[i + 1].role if i + 1 < len(messages) else None
            if next_role not in ("system", "user"):
                _append(waiting, turns)
                waiting = []
    return tuple(turns)


def _append(words: Sequence[str], turns: list[Message]) -> None:
    if turns[-1].role in ("user", "tool"):
        turns[-1] = replace(turns[-1], content="\n\n".join([turns[-1].content, *words]))
    else:
        turns.append(Message("user", "\n\n".join(words)))
