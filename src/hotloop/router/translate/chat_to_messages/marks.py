"""What is worth keeping: OpenAI's words for it, and the `cache_control` that gateways' clients put into a chat.

OpenAI keeps prompts unasked, Anthropic only what is marked: where a chat says anything about its cache, the whole
prompt is marked. Lifetimes are minima, so the next longer one is taken.
"""

from collections.abc import Iterator

from hotloop.router.translate.field import Field, Json
from hotloop.router.translate.notes import Notes

MAX_MARKS = 4
"""As many as Anthropic takes; of more, the last."""

_TTLS = {"in_memory": "5m", "in-memory": "5m", "30m": "1h", "12h": "1h", "24h": "1h"}
_LONGER = ("12h", "24h")


def mark(given: Field, block: Json, notes: Notes) -> Json:
    """The block with the mark of what it was made from, if that has one."""
    control = given.get("cache_control")
    if control is not None:
        return {**block, "cache_control": dict(control.object())}
    breakpoint_ = given.get("prompt_cache_breakpoint")
    return block if breakpoint_ is None else {**block, "cache_control": _render_mark(breakpoint_.get("ttl"), notes)}


def lose_mark(given: Field, notes: Notes) -> None:
    """Of what is left out, since there is nothing in it."""
    if given.get("cache_control") or given.get("prompt_cache_breakpoint"):
        notes.add("cache_control left out where there is nothing to keep")


def limit_marks(body: Json, notes: Notes) -> Json:
    """The body with no more marks than there may be. OpenAI's clients leave the old ones where they are."""
    marked = [block for block in _all_blocks(body) if "cache_control" in block]
    num_extra = len(marked) - MAX_MARKS + ("cache_control" in body)
    for block in marked[: max(num_extra, 0)]:
        del block["cache_control"]
    if num_extra > 0:
        notes.add(f"cache_control: only the last {MAX_MARKS} are kept")
    return body


def render_cache(body: Field, notes: Notes) -> Json:
    """The mark for the whole prompt."""
    options = body.get("prompt_cache_options")
    mode = options and options.get("mode")
    if body.get("cache_control") is not None:
        return mark(body, {}, notes)
    if mode and mode.text() == "explicit":
        return {}
    retention = (options and options.get("ttl")) or body.get("prompt_cache_retention")
    if retention is None and options is None and body.get("prompt_cache_key") is None:
        return {}
    return {"cache_control": _render_mark(retention, notes)}


def _render_mark(ttl: Field | None, notes: Notes) -> Json:
    if ttl is None:
        return {"type": "ephemeral"}
    asked = ttl.text()
    if asked in _LONGER:
        notes.add(f"{ttl.place}: {asked} becomes 1h, the longest there is")
    return {"type": "ephemeral", "ttl": _TTLS.get(asked, "5m")}


def _all_blocks(body: Json) -> Iterator[Json]:
    """In the order the prompt has them."""
    yield from body.get("tools", ())
    yield from body.get("system", ())
    for turn in body["messages"]:
        for block in turn["content"]:
            yield from block["content"] if isinstance(block.get("content"), list) else ()
            yield block
