"""A request as the router sees it: parsed once, and no further than placing it needs.

    key    hash(tools) hash(tools, system) hash(tools, system, message 0) ...

The prompt is a run of bytes: tools, instructions, then each message as the client wrote it, less its cache marks, which
move from turn to turn. The key holds a hash for every 512 bytes of it, each standing for all before it. No tokenizer is
needed: the same words give the same hashes, and only sameness matters here.
"""

import hashlib
import re
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from msgspec import Raw

from hotloop.core.errors import RequestError
from hotloop.core.request import Priority
from hotloop.core.structs import compiled
from hotloop.http.keys import Tenant
from hotloop.router.kinds import PATHS, QUESTIONS, TRANSLATED, Api
from hotloop.router.placement.policy import PromptDigest
from hotloop.wire.hints import read_hints

BLOCK_BYTES = 512
BYTES_PER_TOKEN = 4
"""Of JSON, roughly; only ratios between prompts matter."""
BLOCK_TOKENS = BLOCK_BYTES // BYTES_PER_TOKEN
_USUAL_OUTPUT = 256
"""What an answer is taken for that may be longer."""

_EMPTY = Raw(b"")
NOBODY = Tenant("")


class _Body(msgspec.Struct):
    """The fields of all four APIs that placing looks at. What has the wrong type counts as not given: saying no to that
    is the replica's, who says it better."""

    model: Any = None
    stream: Any = None
    stream_options: Any = None
    messages: Raw = _EMPTY
    tools: Raw = _EMPTY
    system: Raw = _EMPTY
    instructions: Raw = _EMPTY
    input: Raw = _EMPTY
    prompt: Raw = _EMPTY
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    session_id: Any = None
    parent_session_id: Any = None
    session_params: Any = None
    agent_hint: Any = None
    nvext: Any = None
    metadata: Any = None
    prompt_cache_key: Any = None
    user: Any = None
    cache_salt: Any = None
    priority: Any = None
    service_tier: Any = None
    thread: Any = None
    previous_response_id: Any = None


@compiled
class _Item(msgspec.Struct):
    id: Any = None


_REFERENCE, _MARK = b'"item_reference"', b'"cache_control"'
_ITEM_ID = re.compile(r"[a-z]+_(?P<stem>[0-9a-f]{48})_\d+")
_decoder = msgspec.json.Decoder(_Body)
_list_decoder = msgspec.json.Decoder(list[Raw])


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedRequest(PromptDigest):
    """One request. `raw` is what the client sent, to the byte."""

    target: str
    raw: bytes
    model: str
    is_stream: bool
    stream_options: Any
    priority: Priority
    given_priority: Any
    """`priority` in the body, which may be one of hotloop's classes or an engine's own number."""
    follows: str | None
    """The response this one continues, or names an item of: only the replica that made it knows it."""
    headers: Mapping[str, str]
    has_thread: bool = False
    """Whether only what is new of the conversation was sent, to who keeps the rest."""
    tenant: Tenant = NOBODY
    scope: str = ""
    """Whose prefixes are kept apart from all others'; empty where all share."""
    cache_salt: str = ""
    """What keeps them apart where the replica takes a salt: of the tenant and of what the client gave."""
    task: str = ""
    """What kind of task the client says it is."""
    kinds: frozenset[str] = frozenset()
    """The kinds of replicas that understand it, where not all do."""
    parent: str = ""
    """The session at whose request its own works, as the client calls it."""
    session_name: str = ""
    """The session as the client calls it; `session` is told apart from those of other tenants."""

    @property
    def api(self) -> Api:
        return PATHS[self.target]

    @property
    def is_question(self) -> bool:
        """Whether nothing is generated."""
        return self.target in QUESTIONS

    @property
    def can_be_translated(self) -> bool:
        return self.target in TRANSLATED

    @property
    def digest(self) -> PromptDigest:
        """What placing is told. A question leaves nothing in a cache, and its session stays where it is; the texts that
        are embedded are work, to count their tokens is hardly any."""
        if not self.is_question:
            return self
        return PromptDigest(num_tokens=self.num_tokens if self.api == "embeddings" else 0)

    def read_body(self) -> dict[str, Any]:
        """All of it, which a replica that speaks this API may do without. Raises RequestError."""
        with _readable():
            body: dict[str, Any] = msgspec.json.decode(self.raw)
            return body

    def read_fields(self) -> dict[str, Raw]:
        """Each as it was written, to the byte. Raises RequestError."""
        with _readable():
            return msgspec.json.decode(self.raw, type=dict[str, Raw])

    def replace(self, changes: Mapping[str, Any]) -> bytes:
        """The same request with other values for some fields; None takes a field out. The other values stay as they
        were written, to the byte. Raises RequestError."""
        return msgspec.json.encode(change(self.read_fields(), changes)) if changes else self.raw

    def with_body(self, raw: bytes) -> "RoutedRequest":
        """The same request with its prompt in other words: what is said beside that stays."""
        key, num_bytes = _hash_prompt(_decoder.decode(raw), self.scope)
        return replace(self, raw=raw, key=key, num_tokens=num_bytes // BYTES_PER_TOKEN)


def change(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    left_out = {name for name, value in changes.items() if value is None}
    return {name: value for name, value in {**fields, **changes}.items() if name not in left_out}


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError) as error:  # those of msgspec are ValueErrors
        raise RequestError(f"the body cannot be read: {error}") from None


def parse_request(
    target: str, headers: Mapping[str, str], raw: bytes, tenant: Tenant = NOBODY, scope: str = ""
) -> RoutedRequest:
    """`target` is one of `PATHS`. Raises RequestError where the body is no JSON object."""
    with _readable():
        body = _decoder.decode(raw)
        key, num_bytes = _hash_prompt(body, scope)
        follows = _word(body.previous_response_id) or _find_maker(body.input)
    given = msgspec.structs.asdict(body)
    if type(body.priority) is int:  # which of two goes first depends on the replica
        given["priority"] = None
    hints = read_hints(given, headers)
    limits = (body.max_completion_tokens, body.max_output_tokens, body.max_tokens)
    most = next((limit for limit in limits if isinstance(limit, int)), _USUAL_OUTPUT)
    return RoutedRequest(
        target=target,
        raw=raw,
        model=_word(body.model) or "",
        is_stream=body.stream is True and target not in QUESTIONS and PATHS[target] != "compaction",
        stream_options=body.stream_options,
        session=tenant.qualify(hints.session),
        session_name=hints.session,
        parent=hints.parent,
        priority=hints.priority,  # a replica refuses a word that no class has
        task=hints.task,
        given_priority=body.priority,
        key=key,
        num_tokens=num_bytes // BYTES_PER_TOKEN,
        num_output=max(0, min(most, hints.num_output or _USUAL_OUTPUT)),
        follows=follows,
        headers=headers,
        has_thread=body.thread is not None,
        tenant=tenant,
        scope=scope,
        cache_salt=hashlib.sha256(f"{scope}\0{body.cache_salt or ''}".encode("utf-8", "surrogatepass")).hexdigest(),
    )


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _hash_prompt(body: _Body, scope: str) -> tuple[bytes, int]:
    """The key, and how long the prompt is. What one model has cached is of no use to another, nor across salts.
    Python's own hash is quick, and has a secret: nobody outside can look for two prompts that share one."""
    about = f"{body.model}\0{body.cache_salt or ''}\0{scope}"
    value = hash(about)
    parts = (body.tools, body.system, body.instructions, *_items(body.messages), *_items(body.input), body.prompt)
    text = b"".join(map(bytes, parts))
    if _MARK in text:
        text = b"".join(_without_marks(bytes(part)) for part in parts)
    values = array("q")
    for begin in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        value = hash((value, text[begin : begin + BLOCK_BYTES]))
        values.append(value)
    return values.tobytes(), len(text)


def _find_maker(given: Raw) -> str | None:
    """The response of the last item that an input only names. hotloop's items say whose they are."""
    if _REFERENCE not in bytes(given):
        return None
    for raw in reversed(_items(given)):
        if _REFERENCE in bytes(raw) and bytes(raw).startswith(b"{"):
            found = _ITEM_ID.fullmatch(_word(msgspec.json.decode(raw, type=_Item).id) or "")
            return f"resp_{found['stem']}" if found else None
    return None


def _items(raw: Raw) -> list[Raw]:
    """A list one by one, so that a longer one begins as a shorter one does."""
    return _list_decoder.decode(raw) if bytes(raw).startswith(b"[") else [raw]


def _without_marks(raw: bytes) -> bytes:
    if _MARK not in raw:
        return raw

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: strip(each) for name, each in value.items() if name != "cache_control"}
        return [strip(each) for each in value] if isinstance(value, list) else value

    try:
        return msgspec.json.encode(strip(msgspec.json.decode(raw)))
    except (ValueError, RecursionError):  # what cannot be read is the replica's to refuse, who may not look at it
        return raw
