"""Whose turn a request is, and of which trace, for servers that keep what they have read by that and tell of it."""

from hotloop.agent.model import Ask
from hotloop.trace.span import TRACEPARENT, render_traceparent

SESSION_HEADER = "x-session-id"
_MAX_CHARS = 64  # of a prompt_cache_key


def session_headers(ask: Ask) -> dict[str, str]:
    session = {SESSION_HEADER: ask.session_id} if ask.session_id else {}
    return session | ({TRACEPARENT: render_traceparent(ask.trace)} if ask.trace else {})


def shared_session(ask: Ask) -> str:
    """The session that branches have in common: `session-1/2` began as `session-1`, and its prompt as that one's."""
    return ask.session_id.partition("/")[0][:_MAX_CHARS]
