"""Requests as they were found: in files, and in recorded runs.

A file has JSON lines of bodies, of `{"request", "response", …}`, or of transcripts. A line that is no request is an
error that names it. A transcript becomes the requests that it was made of: one for every turn of the assistant, with
all that was said before. A run has what its spans hold of bodies, where content was recorded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

from hotloop.core.errors import ConfigError
from hotloop.core.files import read_lines
from hotloop.lint.parts import LintedAnswer, Part, listing, mapping, parse_answer, parts_of
from hotloop.trace import names
from hotloop.trace.span import Span
from hotloop.wire.field import Json
from hotloop.wire.part import Api
from hotloop.wire.usage import ApiUsage

BODY_KEYS = ("request", "body")
"""Where a line has its request, if it has more to tell; OpenAI's batches say `body`."""

_BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking")
API_PATHS: dict[str, Api] = {"/messages": "messages", "/responses": "responses", "/chat/completions": "chat"}


@dataclass(frozen=True, kw_only=True)
class LintedRequest:
    """A request and its answer. `index` counts requests of the whole input, `line` is its line there, `row` all that
    it told; `at` is in unix seconds. `run` is given where it is certain which one it belongs to.
    """

    body: Json
    api: Api
    index: int = 0
    answer: LintedAnswer = field(default_factory=LintedAnswer)
    session: str = ""
    run: str = ""
    source: str = ""
    line: int = 0
    at: float | None = None
    ttft_ms: float | None = None
    row: Json = field(default_factory=dict)

    @property
    def model(self) -> str:
        return str(self.body.get("model", ""))

    @property
    def is_chained(self) -> bool:
        """Whether what was said before lies with the server and is not sent again."""
        return bool(self.body.get("previous_response_id"))

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        return tuple(parts_of(self.body, self.api))

    @cached_property
    def tools(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.kind == "tool")

    @cached_property
    def system(self) -> tuple[Part, ...]:
        """The system texts that begin the prompt."""
        return tuple(takewhile(lambda part: part.kind == "system", (p for p in self.parts if p.kind != "tool")))

    @property
    def beginning(self) -> tuple[Part, ...]:
        """What comes before anything is said."""
        return self.system + self.tools

    @cached_property
    def history(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.kind != "tool")[len(self.system) :]

    @property
    def continued(self) -> tuple[Part, ...]:
        """The history that the next request should begin with."""
        return self.history + self.answer.parts


def read_requests(path: Path) -> Iterator[LintedRequest]:
    for number, line in read_lines(path):
        yield from parse_line(line, str(path), number)


def parse_line(line: str, source: str, number: int) -> Iterator[LintedRequest]:
    try:
        for request in _parse_line(line, source, number):
            assert request.parts is not None  # read once, here
            yield request
    except RecursionError:
        raise ConfigError(f"{source}, line {number} is nested too deeply") from None


def _parse_line(line: str, source: str, number: int) -> Iterator[LintedRequest]:
    try:
        row: Any = msgspec.json.decode(line)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{source}, line {number} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{source}, line {number} is not an object")
    if _is_transcript(row):
        yield from _play(row, source, number)
        return
    body = next((row[name] for name in BODY_KEYS if isinstance(row.get(name), dict)), row)
    api = find_api(body, str(row.get("url") or row.get("path") or ""))
    if api is None:
        raise ConfigError(f"{source}, line {number} is no request: it has neither messages nor an input")
    session = row.get("session") or body.get("session_id") or ""
    answer = parse_answer(row.get("response"), api)
    yield LintedRequest(
        body=body,
        api=api,
        answer=answer,
        session=str(session),
        source=source,
        line=number,
        at=_number(row.get("at")),
        ttft_ms=_number(row.get("ttft_ms")),
        row=row,
    )


def find_api(body: Json, path: str = "") -> Api | None:
    """Which API a body is for: by the path it was sent to, else by what only one of them has."""
    if api := next((api for end, api in API_PATHS.items() if path.endswith(end)), None):
        return api
    if "input" in body or "instructions" in body:
        return "responses"
    if not isinstance(body.get("messages"), list):
        return None
    blocks = (mapping(block) for message in body["messages"] for block in listing(mapping(message).get("content")))
    is_anthropic = (
        any(name in body for name in ("system", "anthropic_version", "stop_sequences", "thinking"))
        or any("input_schema" in mapping(tool) for tool in listing(body.get("tools")))
        or any(block.get("type") in _BLOCKS for block in blocks)
    )
    return "messages" if is_anthropic else "chat"


def _is_transcript(row: Json) -> bool:
    """A body names its model, and one of Anthropic's says how long the answer may be."""
    return isinstance(row.get("messages"), list) and "system" in row and not {"model", "max_tokens"} & row.keys()


def _play(row: Json, source: str, number: int) -> Iterator[LintedRequest]:
    system = row.get("system")
    history: list[Any] = [{"role": "system", "content": system}] if isinstance(system, str) and system else []
    tools = {"tools": row["tools"]} if listing(row.get("tools")) else {}
    run = f"{Path(source).name}:{number}"
    for message in row["messages"]:
        if mapping(message).get("role") == "assistant" and history:
            answer = parse_answer(message, "chat")
            yield LintedRequest(
                body={"messages": [*history], **tools}, api="chat", answer=answer, run=run, source=source, line=number
            )
        history.append(message)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def read_spans(spans: Sequence[Span]) -> Iterator[LintedRequest]:
    """As the client saw them, if it was traced; else as the router did, else the server. What was only prefilled ahead
    is left out.

    Raises ConfigError where there is no content.
    """
    recorded = [span for span in spans if names.CONTENT_REQUEST in span.attributes]
    if not recorded:
        raise ConfigError("the run was recorded without its prompts; record it with `trace_content = true`")
    seen = {span.name for span in recorded}
    outermost = next((name for name in (names.CHAT, names.ROUTE, names.REQUEST) if name in seen), None)
    for span in recorded:
        if span.name == outermost and not span.attributes.get(names.IS_PREFILL_ONLY):
            yield from _exchange(span)


def _exchange(span: Span) -> Iterator[LintedRequest]:
    attributes = span.attributes
    try:
        body = mapping(msgspec.json.decode(str(attributes[names.CONTENT_REQUEST])))
    except (msgspec.MsgspecError, UnicodeEncodeError):  # redaction may have cut into it, or somebody made it up
        return
    api = find_api(body, str(attributes.get(names.ENDPOINT, "")))
    if api is None:
        return
    first_ns = attributes.get(names.FIRST_TOKEN_NS)
    yield LintedRequest(
        body=body,
        api=api,
        answer=LintedAnswer((), _usage(span), str(attributes.get(names.ANSWER_ID, ""))),
        session=span.session,
        source=span.trace_id,
        at=span.start_ns / 1e9,
        ttft_ms=(first_ns - span.start_ns) / 1e6 if isinstance(first_ns, int) else None,
    )


def _usage(span: Span) -> ApiUsage | None:
    num_prompt, num_cached, num_output = (
        span.attributes.get(name) for name in (names.NUM_PROMPT, names.NUM_CACHED, names.NUM_OUTPUT)
    )
    return ApiUsage(num_prompt, num_cached, num_output or 0) if num_prompt else None
