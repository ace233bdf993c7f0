"""A body of any API rewritten so that its prompt begins as the one before it did: nothing a model is told is lost.

tools        sorted by name, the keys of their schemas in one order; properties keep theirs
system text  without nonces; a time of day, and lines seen to change, behind the message that was the newest then
late system turns of a chat   words at the user's turn, since many templates would put them in front
late tools   where they came, if that is asked for: see `late`
arguments    of calls in the history as the model wrote them
marks        on the last block of the system text and of the newest message, where an API is paid for them
"""

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from typing import Any

import msgspec
from msgspec import Raw

from hotloop.core.lru import LruCache
from hotloop.core.message import Message, Role
from hotloop.stable.arguments import WrittenArguments
from hotloop.stable.late import LateTools
from hotloop.stable.nonces import Nonces
from hotloop.stable.system import word_note
from hotloop.stable.tools import canonical_schema
from hotloop.wire.event import Answer
from hotloop.wire.field import Json
from hotloop.wire.late import BodyTools, LateWay, render_changes, tell_changes, word_tools
from hotloop.wire.part import Api

_MARK = {"type": "ephemeral"}
_SYSTEM = ("system", "developer")
_TEXTS = ("text", "input_text", "output_text")
_KEYS = ("type", "name", "description", "strict", "function", "parameters", "input_schema")
_RANKS = {key: rank for rank, key in enumerate(_KEYS)}
_MARKED = b'"cache_control"'
_MAX_TOOL_BYTES = 8_000_000


def sort_tools(body: Json) -> Json:
    tools = body.get("tools")
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        return body
    return body | {"tools": _mark_last(sorted(map(_sort_tool, tools), key=_tool_name))}


def place_breakpoints(body: Json) -> Json:
    """Two: at the end of what never changes, and at the end of all. The latter is found again from the next request."""
    body = without_marks(deepcopy(body))
    if isinstance(body.get("system"), str) and body["system"]:
        body["system"] = [{"type": "text", "text": body["system"]}]
    for blocks in (_listing(body.get("system")) or _listing(body.get("tools")), _newest_blocks(body)):
        if blocks and isinstance(blocks[-1], dict):
            blocks[-1]["cache_control"] = _MARK
    return body


def without_marks(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_marks(part) for name, part in value.items() if name != "cache_control"}
    return [without_marks(part) for part in value] if isinstance(value, list) else value


class Stabiliser:
    """Rewrites bodies, and remembers what that takes; each `scope` its own. Used from any thread."""

    def __init__(self) -> None:
        self._nonces = Nonces(learns=True)
        self._arguments = WrittenArguments()
        self._late = BodyTools()
        self._tools: LruCache[tuple[str, bytes], tuple[Raw, bool]] = LruCache(_MAX_TOOL_BYTES)
        self._lock = threading.Lock()

    def rewrite(
        self,
        api: Api,
        body: Json,
        *,
        scope: str = "",
        has_calls: bool = True,
        pays_marks: bool = False,
        cache_key: str = "",
        late_tools: LateWay = "",
    ) -> tuple[Json, tuple[str, ...]]:
        """The fields that are to be others, None where one is to be left out, and what was done. The `tools` of the
        body may be as they came, `Raw`; parts of it are changed in place. `has_calls`: there may be some in it.
        `pays_marks`: where nothing is marked, marks are placed; `cache_key` is OpenAI's, where the body has none.
        `late_tools`: how tools that appear mid-session are described, if they are not to join the tool list."""
        fields, changes = Json(), list[str]()
        given = msgspec.json.encode(body.get("tools"))
        tools, has_moved = self._sort_tools(given, scope)
        is_marked = not pays_marks or _MARKED in given or _has_marks({**body, "tools": None})
        if bytes(tools) != given:  # be it by its spaces alone: placement compares bytes
            fields["tools"] = tools
        if has_moved:
            changes.append("tools: put into one order")
        said = "input" if api == "responses" else "messages"
        if api == "chat" and _word_late_system(body):
            fields[said] = body[said]
            changes.append("messages: late system turns were worded as the user's")
        if has_calls and self._restore(api, body, scope):
            fields[said] = body[said]
            changes.append("messages: arguments are as the model wrote them")
        if late_tools or not is_marked:
            body["tools"] = msgspec.json.decode(tools)
        changes += self._settle(api, body, scope, fields, late_tools)
        if api == "messages" and not is_marked:
            fields |= place_breakpoints(body)
            changes.append("cache_control: placed behind the system text and the newest message")
        if cache_key and api != "messages" and not body.get("prompt_cache_key"):
            fields["prompt_cache_key"] = cache_key
            changes.append("prompt_cache_key: set")
        return fields, tuple(changes)

    def learn(self, answer: Answer, *, scope: str = "") -> None:
        """How the calls of an answer were written."""
        for call in answer.calls:
            if call.id not in answer.cut:
                self._arguments.keep(call.id, call.arguments, scope=scope)

    def _sort_tools(self, given: bytes, scope: str) -> tuple[Raw, bool]:
        """The tools in one form, and whether they were in another order. They are the same from request to request, and
        many."""
        with self._lock:
            found = self._tools.find((scope, given))
        if found is None:
            listed = msgspec.json.decode(given)
            in_order = sort_tools({"tools": listed})["tools"]
            found = Raw(msgspec.json.encode(in_order)), json.dumps(in_order) != json.dumps(listed)
            with self._lock:
                self._tools.put((scope, given), found, 2 * len(given))
        return found

    def _restore(self, api: Api, body: Json, scope: str) -> bool:
        num_restored = 0
        for holder, key, call_id in _arguments_in(api, body):
            given = holder[key]
            text = given if isinstance(given, str) else json.dumps(given)
            written = self._arguments.restore(call_id, text, scope=scope)
            if written != text:
                holder[key] = written if isinstance(given, str) else json.loads(written)
                num_restored += holder[key] is not given and json.dumps(holder[key]) != json.dumps(given)
        return num_restored > 0

    def _settle(self, api: Api, body: Json, scope: str, fields: Json, way: LateWay) -> tuple[str, ...]:
        """What was done to the texts, and to tools that came late; the fields that hold these are noted."""
        system = [*_system_slots(api, body)]
        stripped, news, changes = self._nonces.strip(tuple(slot.message for slot in system), scope=scope)
        if not (changes or way):
            return ()
        slots = [*system, *(_said_slots(api, body) if news or way else ())]
        messages = stripped + tuple(slot.message for slot in slots[len(system) :])
        late = self._settle_tools(body, messages, scope, fields, way) if way else {}
        messages = self._nonces.move(messages, news, scope=scope) if news else messages
        if way == "words":
            messages = tuple(_with_tools(message, late.get(i)) for i, message in enumerate(messages))
        for slot, message in zip(slots, messages, strict=True):
            if message is not slot.message and message.content != slot.message.content:
                slot.write(message.content)
                fields[slot.field] = body[slot.field]
        if late and way == "changes":
            told = {id(slots[i].holder): render_changes(change) for i, change in late.items()}
            turns = ([turn, told[id(turn)]] if id(turn) in told else [turn] for turn in body["messages"])
            fields["messages"] = body["messages"] = [*chain.from_iterable(turns)]
        if "system" in fields:
            _drop_empty_blocks(body)
            fields["system"] = body.get("system")
        return changes + tell_changes(late)

    def _settle_tools(
        self, body: Json, messages: tuple[Message, ...], scope: str, fields: Json, way: LateWay
    ) -> Mapping[int, LateTools]:
        given = body.get("tools")
        if not isinstance(given, list) or not given or not all(isinstance(tool, dict) for tool in given):
            return {}
        head, late = self._late.settle(given, messages, way, scope=scope)
        in_order = sort_tools({"tools": head})["tools"]
        if in_order != given:
            fields["tools"] = body["tools"] = in_order
        return late


@dataclass(frozen=True, slots=True)
class _Slot:
    """A text of the system's, or a turn of the user's or of a tool; where it stands, and how it grows."""

    message: Message
    field: str
    """Of the body."""
    holder: Any
    key: Any
    block_type: str = "text"

    def write(self, content: str) -> None:
        """What was added stands behind all that was there before."""
        held = self.holder[self.key]
        if isinstance(held, list):
            note = content.removeprefix(self.message.content).strip()
            held.append({"type": self.block_type, "text": note})
        else:
            self.holder[self.key] = content


def _with_tools(message: Message, late: LateTools | None) -> Message:
    return replace(message, content=f"{message.content}\n\n{word_note(word_tools(late))}") if late else message


def _system_slots(api: Api, body: Json) -> Iterator[_Slot]:
    """The system texts that begin the prompt."""
    field, said = ("instructions", "input") if api == "responses" else ("system", "messages")
    yield from _texts_of(field, body, field)
    for turn in takewhile(lambda turn: _role(turn) == "system", _listing(body.get(said))):
        yield from _texts_of(said, turn, "content")


def _said_slots(api: Api, body: Json) -> Iterator[_Slot]:
    """What was said by anybody but the model."""
    said = "input" if api == "responses" else "messages"
    given = body.get(said)
    if isinstance(given, str):
        yield _Slot(Message("user", given), said, body, said)
    for turn in _listing(given):
        role = _role(turn)
        if role in ("user", "tool"):
            key = "output" if turn.get("type") == "function_call_output" else "content"
            text = "\n".join(_texts_in(turn.get(key)))
            yield _Slot(Message(role, text), said, turn, key, "input_text" if api == "responses" else "text")


def _role(turn: Any) -> Role | None:
    if not isinstance(turn, dict):
        return None
    role = turn.get("role")
    if turn.get("type") == "function_call_output" or role == "tool":
        return "tool"
    return "system" if role in _SYSTEM else "user" if role == "user" else None


def _texts_of(field: str, holder: Json, key: str) -> Iterator[_Slot]:
    """Each text by itself."""
    held = holder.get(key)
    if isinstance(held, str) and held:
        yield _Slot(Message("system", held), field, holder, key)
    for block in _listing(held):
        if isinstance(block, dict) and block.get("type") in _TEXTS and isinstance(block.get("text"), str):
            yield _Slot(Message("system", block["text"]), field, block, "text")


def _texts_in(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    for block in _listing(content):
        if isinstance(block, dict):
            yield from (block[key] for key in ("text",) if isinstance(block.get(key), str))
            yield from _texts_in(block.get("content"))


def _drop_empty_blocks(body: Json) -> None:
    """A text of nothing is refused by some APIs; what was dropped may have been all of a block."""
    if isinstance(blocks := body.get("system"), list):
        body["system"] = [block for block in blocks if not isinstance(block, dict) or block.get("text") != ""]
        if not body["system"]:
            del body["system"]


def _word_late_system(body: Json) -> bool:
    messages = _listing(body.get("messages"))
    roles = [_role(message) for message in messages]
    first = next((i for i, role in enumerate(roles) if role != "system"), len(roles))
    if "system" not in roles[first:]:
        return False
    turns: list[Any] = messages[:first]
    waiting: list[str] = []
    for i, (message, role) in enumerate(zip(messages[first:], roles[first:], strict=True), first):
        if role == "system":
            waiting.append(word_note("\n".join(_texts_in(message.get("content")))))
            if i + 1 == len(messages) or roles[i + 1] not in ("system", "user"):
                _put_behind(turns, waiting)
                waiting = []
        else:
            turns.append(_put_before(message, waiting) if waiting else message)
            waiting = []
    body["messages"] = turns
    return True


def _put_behind(turns: list[Any], words: Iterable[str]) -> None:
    text = "\n\n".join(words)
    last = turns[-1] if turns else None
    if _role(last) in ("user", "tool") and isinstance(last, dict):
        content = last.get("content")
        blocks = [*content, {"type": "text", "text": text}] if isinstance(content, list) else None
        turns[-1] = last | {"content": blocks or f"{content or ''}\n\n{text}"}
    else:
        turns.append({"role": "user", "content": text})


def _put_before(message: Json, words: Iterable[str]) -> Json:
    text, content = "\n\n".join(words), message.get("content")
    if isinstance(content, list):
        return message | {"content": [{"type": "text", "text": text}, *content]}
    return message | {"content": f"{text}\n\n{content or ''}"}


def _arguments_in(api: Api, body: Json) -> Iterator[tuple[Json, str, str]]:
    """Where arguments stand in a history: what holds them, by which key, and the id of their call."""
    for turn in _dicts(body.get("input" if api == "responses" else "messages")):
        if api == "responses" and turn.get("type") == "function_call" and isinstance(turn.get("arguments"), str):
            yield turn, "arguments", str(turn.get("call_id"))
        for call in _dicts(turn.get("tool_calls")):
            function = call.get("function")
            if isinstance(function, dict) and isinstance(function.get("arguments"), str):
                yield function, "arguments", str(call.get("id"))
        for block in _dicts(turn.get("content")):
            if block.get("type") == "tool_use" and isinstance(block.get("input"), dict):
                yield block, "input", str(block.get("id"))


def _has_marks(value: Any) -> bool:
    if isinstance(value, dict):
        return "cache_control" in value or any(map(_has_marks, value.values()))
    return isinstance(value, list) and any(map(_has_marks, value))


def _mark_last(tools: list[Json]) -> list[Json]:
    """The mark of the last tool stays on the last."""
    marks = [tool["cache_control"] for tool in tools if "cache_control" in tool]
    if not marks:
        return tools
    bare = [{name: value for name, value in tool.items() if name != "cache_control"} for tool in tools]
    return [*bare[:-1], bare[-1] | {"cache_control": marks[-1]}]


def _sort_tool(tool: Json) -> Json:
    ordered = {key: tool[key] for key in sorted(tool, key=lambda key: (_RANKS.get(key, len(_RANKS)), key))}
    if isinstance(function := ordered.get("function"), dict):
        return ordered | {"function": _sort_tool(function)}
    return {
        name: canonical_schema(part) if name in ("parameters", "input_schema") else part
        for name, part in ordered.items()
    }


def _tool_name(tool: Json) -> str:
    function = tool.get("function")
    within = function.get("name") if isinstance(function, dict) else ""
    return str(within or tool.get("name") or tool.get("type", ""))


def _newest_blocks(body: Json) -> list[Any]:
    """Of the newest turn that is not the system's."""
    messages = [turn for turn in _listing(body.get("messages")) if _role(turn) != "system"]
    if not messages or not isinstance(messages[-1], dict):
        return []
    if isinstance(messages[-1].get("content"), str):
        messages[-1]["content"] = [{"type": "text", "text": messages[-1]["content"]}]
    return _listing(messages[-1].get("content"))


def _listing(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dicts(value: Any) -> Iterator[Json]:
    return (each for each in _listing(value) if isinstance(each, dict))
