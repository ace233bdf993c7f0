"""The words grammars are made of, in llguidance's dialect of Lark.

A rule is written as text, so that two requests with the same tools have equal grammars. Every literal goes through
`literal`, and every schema through `embed`: nothing a caller wrote is ever read as grammar. Nothing is intersected,
negated or counted, which would make a grammar costly to compile.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hotloop.chat.tools import ToolChoice
from hotloop.core.grammar import json_schema
from hotloop.core.message import Tool
from hotloop.models.tokenizer import Tokenizer

ANYTHING = "/(?s:.*)/"
_THINK_MARKS = ("<think>", "</think>", "[THINK]", "[/THINK]", "<mm:think>", "</mm:think>", "<|channel>", "<channel|>")
_BRANCHES = {"anyOf", "oneOf", "$ref"}
_EXTENDING = {"allOf", "not", "if", "dependentSchemas", "$dynamicRef"}
FENCE = "```"
# A call that opens without a family's own word: a JSON object that names a tool of the request, in a fence or alone.
# Its brace may be doubled, as some templates show it; the second closing one is among the text that may follow.
_NAMED_CALL = (
    r"SPACE: /[ \t\r\n]*/",
    'FENCE: "```" "json"? SPACE',
    r'NAME: "{" SPACE ("{" SPACE)? "\"name\"" SPACE ":" SPACE "\""',
    r'ARGUMENTS: "\"" SPACE "," SPACE ("\"arguments\"" | "\"parameters\"") SPACE ":"',
)
_OPEN = {"additionalProperties", "patternProperties", "unevaluatedProperties"}


def literal(text: str) -> str:
    return json.dumps(text)


def special_id(marker: str, tokenizer: Tokenizer) -> int | None:
    """The special token that a marker is, if it is one: text cannot spell such a marker."""
    ids = (i for i in tokenizer.encode(marker) if tokenizer.is_special(i) and tokenizer.token_text(i) == marker)
    return next(ids, None)


def marker(text: str, tokenizer: Tokenizer) -> str:
    """A family's own word: one special token, or the characters it is written with."""
    token_id = special_id(text, tokenizer)
    return literal(text) if token_id is None else f"<[{token_id}]>"


def spell(tokenizer: Tokenizer, *words: str) -> str:
    """A family's own words, one behind the other; none of them may be a caller's."""
    parts: list[str] = []
    text = ""
    for word in words:
        token_id = special_id(word, tokenizer) if word else None
        if token_id is None:
            text += word
            continue
        parts += [literal(text)] * bool(text) + [f"<[{token_id}]>"]
        text = ""
    return " ".join(parts + [literal(text)] * bool(text))


def until(rule: str, ending: str, tokenizer: Tokenizer) -> list[str]:
    """The rule: anything, to the first ending, be that a token or spelt in text."""
    token_id = special_id(ending, tokenizer)
    if token_id is None:
        return [f"{rule}[lazy]: {ANYTHING} {literal(ending)}"]
    spelt = f"{rule}_spelt[lazy]: {ANYTHING} {literal(ending)}"
    return [f"{rule}: {rule}_spelt | {rule}_text <[{token_id}]>", spelt, f"{rule}_text: {ANYTHING}"]


def either(options: Iterable[str]) -> str:
    return f"( {' | '.join(options)} )"


def start(
    body: str,
    opening: str,
    choice: ToolChoice,
    tokenizer: Tokenizer,
    *,
    others: Mapping[str, str] | None = None,
    has_named: bool = False,
) -> list[str]:
    """The opening and the body behind it, at once if a call is required; else prose, which may lead to an opening.

    `others` are more openings and their bodies, for models that leave out the first: all that the parser knows are
    here. `has_named`: there are the rules `alone` and `fenced`, calls known by a tool's name alone. Prose may go on
    behind those, as it does by habit.
    """
    if choice.mode == "required":
        return [f"start: {marker(opening, tokenizer)} {body}"]
    alternatives, rules = prose(body, opening, tokenizer)
    for i, (other, its_body) in enumerate((others or {}).items()):
        more, its_rules = _openings(f"other{i}", its_body, other, tokenizer)
        alternatives, rules = alternatives + more, rules + its_rules
    mark_ids = [token_id for text in _THINK_MARKS if (token_id := special_id(text, tokenizer)) is not None]
    if choice.can_go_on:
        steps = [*alternatives[1:], *(["fenced"] if has_named else [])]
        steps += [f"TEXT <[{','.join(map(str, mark_ids))}]>"] if mark_ids else []
        return [f"start: {'alone* ' if has_named else ''}{either(steps)}* TEXT", *rules]
    reasoning = f"( TEXT <[{','.join(map(str, mark_ids))}]> )* " if mark_ids else ""
    if not has_named:
        return [f"start: {reasoning}{either(alternatives)}", *rules]
    if choice.is_parallel:
        return [f"start: alone* {reasoning}fenced* {either(alternatives)}", *rules]
    return [f"start: alone | {reasoning}{either([*alternatives, 'fenced'])}", *rules]


def prose(body: str, opening: str, tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """The ways prose may go on, and their rules. It ends at the first opening, be that a token or spelt in text."""
    alternatives, rules = _openings("opening", body, opening, tokenizer)
    return ["TEXT", *alternatives], [f"TEXT: {ANYTHING}", *rules]


def _openings(rule: str, body: str, opening: str, tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    alternatives = [f"{rule} {body}"]
    if special_id(opening, tokenizer) is not None:
        alternatives += [f"TEXT {marker(opening, tokenizer)} {body}"]
    return alternatives, [f"{rule}[lazy]: TEXT {literal(opening)}"]


def without(words: Iterable[str]) -> str:
    """The pattern of all texts that have none of these words in them, which begin with `<` and have no other."""
    return f"/[^<]*(?:<{_other_tail([word[1:] for word in words])})*/"


def _other_tail(tails: Sequence[str]) -> str:
    """The pattern of what may stand between a `<` and the next: anything that does not begin with one of these."""
    firsts = dict.fromkeys(tail[0] for tail in tails)
    branches = [f"[^<{re.escape(''.join(firsts))}][^<]*"]
    for first in firsts:
        rest = [tail[1:] for tail in tails if tail[0] == first]
        branches += [re.escape(first) + _other_tail(rest)] if all(rest) else []
    return f"(?:{'|'.join(branches)})?"


def functions(tools: Sequence[Tool]) -> str:
    """The rules `f0`, `f1`, ... that there are for these tools, in their order."""
    return either(f"f{i}" for i in range(len(tools)))


def json_functions(tools: Sequence[Tool], key: str) -> list[str]:
    """For each tool what stands in its object behind `{"name": "`, but for the last brace; `a0`, ... are arguments."""
    rules: list[str] = []
    for i, tool in enumerate(tools):
        begin = f'{tool.name}", "{key}": '
        rules += [f"f{i}: {literal(begin)} a{i}", f"a{i}: {arguments(tool)}"]
    return rules


def fenced_rules(tools: Sequence[Tool]) -> list[str]:
    """The rule `fenced`: prose and such a call in a fence. It needs `TEXT`, and the tools' arguments `a0`, `a1`, ..."""
    return [*_NAMED_CALL, *_named_calls("fenced", "TEXT FENCE", tools, f"\n}}\n{FENCE}")]


def alone_rules(tools: Sequence[Tool]) -> list[str]:
    """The rule `alone`, beside those of `fenced_rules`: such a call by itself, where the answer begins."""
    return _named_calls("alone", "SPACE", tools, "}")


def _named_calls(rule: str, head: str, tools: Sequence[Tool], closing: str) -> list[str]:
    """Behind the opening the spaces are those of all our calls, whatever stood in it: so most of the call is forced."""
    alternatives = (f'{rule}{i} " " a{i}' for i in range(len(tools)))
    openings = (f"{rule}{i}[lazy]: {head} NAME {literal(tool.name)} ARGUMENTS" for i, tool in enumerate(tools))
    return [f"{rule}: {either(alternatives)} {literal(closing)}", *openings]


_FREE = '{"whitespace_flexible":true,"json_allow_general_unicode_escapes":true}'
_ANY_OBJECT = f'%json {{"type":"object","x-guidance":{_FREE}}}'


def embed(schema: Mapping[str, Any]) -> str:
    return f"%json {json_schema(schema).text}"


def arguments(tool: Tool) -> str:
    """Any object, spaced and escaped in any way, if the tool is not strict."""
    return embed(parameters(tool)) if tool.is_strict else _ANY_OBJECT


def parameters(tool: Tool) -> dict[str, Any]:
    """The schema of a strict tool's arguments: its own, closed.

    Keys that a schema does not mention are refused: a model that is free to invent keys does.
    """
    schema = dict(tool.parameters) if _is_composed(tool.parameters) else _closed(tool.parameters, is_root=True)
    return {"type": "object", "properties": {}, **schema}


def _is_composed(schema: Any) -> bool:
    """Whether parts of the schema add to each other's properties: to close one part would contradict the other."""
    if isinstance(schema, list):
        return any(map(_is_composed, schema))
    if not isinstance(schema, Mapping):
        return False
    is_extended = "properties" in schema and bool(schema.keys() & _BRANCHES)
    return is_extended or bool(schema.keys() & _EXTENDING) or any(map(_is_composed, schema.values()))


def _closed(schema: Any, *, is_root: bool = False) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    result = {key: _closed_part(key, part) for key, part in schema.items()}
    is_listing = "properties" in schema or (is_root and not schema.keys() & _BRANCHES)
    if is_listing and not schema.keys() & _OPEN:
        unlisted = {name: True for name in schema.get("required", ()) if name not in schema.get("properties", {})}
        result |= {"properties": {**result.get("properties", {}), **unlisted}} if unlisted else {}
        result["additionalProperties"] = False
    return result


def _closed_part(key: str, part: Any) -> Any:
    if key in ("properties", "$defs", "definitions") and isinstance(part, Mapping):
        return {name: _closed(inner) for name, inner in part.items()}
    if key in ("anyOf", "oneOf") and isinstance(part, list):
        return [_closed(inner) for inner in part]
    return _closed(part) if key in ("items", "additionalProperties") else part
