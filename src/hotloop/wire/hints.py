"""What a client says of a request beside its prompt: which session it is of, how urgent it is, what kind of task.

Every client has words of its own for that, in headers and in the body. They are read here, once, for the server and the
router; what is odd counts as not given, since hints may be meant for others.

    session    session_id, agent_hint, headers (of hotloop and OpenCode, Claude Code, Codex, Dynamo), cache key, user
    parent     parent_session_id and its kin: the session that this one works for
    priority   a class by name, vLLM's number, Dynamo's `nvext.agent_hints`, flex; else by task and parent
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from hotloop.core.request import Priority

# In the order they are believed: what names a session first, what names a user last.
SESSION_HEADERS = (
    "x-session-id",
    "x-claude-code-session-id",
    "thread-id",
    "session-id",
    "x-session-affinity",
    "x-dynamo-session-id",
)
_PARENT_HEADERS = ("x-parent-session-id", "x-codex-parent-thread-id", "x-dynamo-parent-session-id")
_AGENT, _PARENT_AGENT = "x-claude-code-agent-id", "x-claude-code-parent-agent-id"
SESSION_HEADER = SESSION_HEADERS[0]
PARENT_HEADER = _PARENT_HEADERS[0]
FINAL_HEADER = "x-dynamo-session-final"
PRIORITY_HEADER = "x-hotloop-priority"
TASK_HEADER = "x-hotloop-task"
TOKENS_HEADER = "x-hotloop-tokens"
"""Asks for the token ids of a stream, which a router needs to have an answer go on elsewhere."""
AGENT_HINT_HEADER = "x-agent-hint"
HINT_HEADERS = (
    *(*SESSION_HEADERS, *_PARENT_HEADERS, _AGENT, _PARENT_AGENT),
    *(FINAL_HEADER, PRIORITY_HEADER, TASK_HEADER, AGENT_HINT_HEADER),
)
"""All that is read here, in lower case."""

TASK_CLASSES: Mapping[str, Priority] = dict.fromkeys(("summary", "title", "evaluation", "batch"), Priority.BACKGROUND)
"""The class of steps that nobody waits for, where nothing else is said."""
MAX_SESSION_ID = 256
MAX_TASK_CHARS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    session: str = ""
    """Which conversation this belongs to, as far as the client lets on."""
    parent: str = ""
    """The session that this one works for."""
    is_final: bool = False
    """Whether the session ends with this request."""
    given: Priority | None = None
    """The class, if the client says one."""
    task: str = ""
    num_output: int | None = None
    """How many tokens the client expects."""

    @property
    def priority(self) -> Priority:
        """A user's turn goes first; work for another session comes behind it, and what nobody waits for is last."""
        usual = Priority.WORKFLOW if self.parent else Priority.INTERACTIVE
        return choose_class(self.given, self.task, usual=usual)


def read_hints(body: Mapping[str, Any], headers: Mapping[str, str]) -> Hints:
    """`body` has the fields of any API; the names of headers are in lower case, or their case does not matter."""
    agent_hint = {**_read_object(headers.get(AGENT_HINT_HEADER)), **_object(body.get("agent_hint"))}
    dynamo = _object(_object(body.get("nvext")).get("agent_hints"))
    session, parent = _read_agents(body, headers, agent_hint)
    tasks = (headers.get(TASK_HEADER), _object(body.get("metadata")).get("task"), agent_hint.get("task"))
    expected = (dynamo.get("osl"), agent_hint.get("osl"))
    return Hints(
        session=session,
        parent=parent if parent != session else "",
        is_final=headers.get(FINAL_HEADER, "").strip().lower() in ("1", "true"),
        given=next((each for each in _classes(body, headers, agent_hint, dynamo) if each is not None), None),
        task=_first(*map(parse_task, tasks)),
        num_output=next((each for each in expected if type(each) is int and each > 0), None),
    )


def parse_class(given: Any) -> Priority | None:
    """A class by name, or a number as vLLM has it: 0 and below first, 1 behind that, the others last."""
    if isinstance(given, Priority):
        return given
    if type(given) is int:
        return Priority(min(max(given, 0), len(Priority) - 1))
    return Priority.__members__.get(given.strip().upper()) if isinstance(given, str) else None


def choose_class(given: Priority | None, task: str, *, usual: Priority = Priority.INTERACTIVE) -> Priority:
    """The class of a step: as it is said, or by its task, but no more urgent than what it is done for."""
    return max(usual, TASK_CLASSES.get(task, usual)) if given is None else given


def parse_task(given: Any) -> str:
    """A task's name; empty if it is none."""
    name = given.strip().lower() if isinstance(given, str) else ""
    return name if len(name) <= MAX_TASK_CHARS and name.isprintable() else ""


def shorten(name: str) -> str:
    """A name that is too long to be kept is known by its hash: two that begin alike are still two."""
    if len(name) <= MAX_SESSION_ID:
        return name
    return f"sha256:{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _classes(
    body: Mapping[str, Any], headers: Mapping[str, str], agent_hint: Mapping[str, Any], dynamo: Mapping[str, Any]
) -> Iterator[Priority | None]:
    yield parse_class(body.get("priority"))
    yield parse_class(headers.get(PRIORITY_HEADER))
    yield parse_class(agent_hint.get("priority"))
    rank = dynamo.get("priority")
    yield parse_class(-rank) if type(rank) is int and rank else None  # there the higher goes first, and 0 says nothing
    yield Priority.BACKGROUND if body.get("service_tier") == "flex" else None


def _read_agents(body: Mapping[str, Any], headers: Mapping[str, str], agent_hint: Mapping[str, Any]) -> tuple[str, str]:
    """The session and its parent. Claude Code's agents share their session's id, and have ids of their own."""
    own = _first(body.get("session_id"), agent_hint.get("session_id"), _object(body.get("session_params")).get("id"))
    given = _first(*(headers.get(name) for name in SESSION_HEADERS))
    in_body = body.get("parent_session_id"), agent_hint.get("parent_session_id")
    parent = _first(*in_body, *(headers.get(name) for name in _PARENT_HEADERS))
    if not own and given and (agent := headers.get(_AGENT, "").strip()):
        caller = headers.get(_PARENT_AGENT, "").strip()
        own, parent = f"{given}/{agent}", parent or (f"{given}/{caller}" if caller else given)
    session = _first(own, given, body.get("prompt_cache_key"), body.get("user"))
    return shorten(session), shorten(parent)


def _first(*names: Any) -> str:
    return next((name for name in names if isinstance(name, str) and name), "")


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _read_object(text: str | None) -> Mapping[str, Any]:
    try:
        return _object(msgspec.json.decode(text)) if text else {}
    except (ValueError, RecursionError):
        return {}
