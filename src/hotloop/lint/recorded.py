"""Requests of a recorded run: what its spans hold of bodies, where content was recorded."""

from collections.abc import Iterator, Sequence

import msgspec

from hotloop.core.errors import ConfigError
from hotloop.lint.answer import Answer
from hotloop.lint.part import mapping
from hotloop.lint.requests import LintedRequest, find_api
from hotloop.trace import names
from hotloop.trace.span import Span
from hotloop.wire.usage import Usage


def read_spans(spans: Sequence[Span]) -> Iterator[LintedRequest]:
    """As the client saw them, if it was traced; else as the server did. What was only read ahead is left out.

    Raises ConfigError where there is no content.
    """
    asked = [span for span in spans if names.CONTENT_REQUEST in span.attributes]
    if not asked:
        raise ConfigError("the run was recorded without its prompts; record it with `trace_content = true`")
    has_client = any(span.name == names.CHAT for span in asked)
    for span in asked:
        if (span.name == names.CHAT) == has_client and not span.attributes.get(names.IS_READING):
            yield from _exchange(span)


def _exchange(span: Span) -> Iterator[LintedRequest]:
    told = span.attributes
    try:
        body = mapping(msgspec.json.decode(str(told[names.CONTENT_REQUEST])))
    except (msgspec.MsgspecError, UnicodeEncodeError):  # redaction may have cut into it, or somebody made it up
        return
    api = find_api(body, str(told.get(names.ENDPOINT, "")))
    if api is None:
        return
    first_ns = told.get(names.FIRST_TOKEN_NS)
    yield LintedRequest(
        body=body,
        api=api,
        answer=Answer((), _usage(span), str(told.get(names.ANSWER_ID, ""))),
        session=span.session,
        source=span.trace_id,
        at=span.start_ns / 1e9,
        ttft_ms=(first_ns - span.start_ns) / 1e6 if isinstance(first_ns, int) else None,
    )


def _usage(span: Span) -> Usage | None:
    num_prompt, num_cached, num_output = (
        span.attributes.get(name) for name in (names.NUM_PROMPT, names.NUM_CACHED, names.NUM_OUTPUT)
    )
    return Usage(num_prompt, num_cached, num_output or 0) if num_prompt else None
