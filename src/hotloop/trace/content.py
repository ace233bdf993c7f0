"""What was said, as far as it may be recorded. Every span on its way out of the process passes here: unless it is asked
for, no attribute of `names.CONTENT` gets through; where it is, what the patterns match is redacted out, and so it is in
what went wrong, which may quote anything.

Patterns are RE2's, which searches in time linear in the text: what is searched was written by strangers. It is searched
as bytes, since `re2` walks through a `str` far more slowly.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from hotloop.core.errors import ConfigError
from hotloop.trace import names
from hotloop.trace.span import Span

REDACTED = "[redacted]"
_REDACTED_BYTES = REDACTED.encode()

Pattern = Any
"""A compiled one; `re2` has no types."""


@dataclass(frozen=True, slots=True)
class Content:
    """`Content()` lets nothing through."""

    is_kept: bool = False
    redact: tuple[Pattern, ...] = ()

    @classmethod
    def parse(cls, is_kept: bool, patterns: Sequence[str]) -> "Content":
        """Raises ConfigError for a pattern that RE2 does not take."""
        return cls(is_kept, tuple(map(_compile, patterns)))

    def clean(self, span: Span) -> Span:
        if self.redact and span.error:
            span = replace(span, error=self._redact(span.error))
        if not any(name.startswith(names.CONTENT) for name in span.attributes):
            return span
        may_pass = (name for name in span.attributes if self.is_kept or not name.startswith(names.CONTENT))
        return replace(span, attributes={name: self._clean(name, span.attributes[name]) for name in may_pass})

    def _clean(self, name: str, value: Any) -> Any:
        if not self.redact or not name.startswith(names.CONTENT):
            return value
        if name == names.CONTENT_WORDS and isinstance(value, list):
            value = [self._redact_seam(words) if isinstance(words, dict) else words for words in value]
        return self._redact(value)

    def _redact(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._redact_text(value)
        if isinstance(value, dict):
            return {self._redact(name): self._redact(each) for name, each in value.items()}
        return [self._redact(each) for each in value] if isinstance(value, list | tuple) else value

    def _redact_text(self, text: str) -> str:
        """JSON, as the body of a request is, hides words behind escapes: it is read, and written anew if need be."""
        if "\\" in text:
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                pass
            else:
                redacted = self._redact(value)
                text = text if redacted == value else json.dumps(redacted, ensure_ascii=False, separators=(",", ":"))
        said = _encode(text)
        for pattern in self.redact:
            said = pattern.sub(lambda _: _REDACTED_BYTES, said)
        return said.decode("utf-8", "surrogatepass")

    def _redact_seam(self, words: dict[str, Any]) -> dict[str, Any]:
        """Two secrets part within themselves: neither half would match alone."""
        before = _encode(str(words.get("before", "")))
        for side in ("previous", "current"):
            whole = before + _encode(str(words.get(side, "")))
            found = (match for pattern in self.redact for match in pattern.finditer(whole))
            if any(match.start() < len(before) < match.end() for match in found):
                return dict.fromkeys(words, REDACTED)
        return words


def _compile(pattern: str) -> Pattern:
    import re2  # noqa: PLC0415 - needed only where there are patterns

    options = re2.Options()
    options.never_capture, options.log_errors = True, False
    try:
        return re2.compile(pattern.encode(), options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0].decode("utf-8", "replace") if isinstance(error, re2.error) else str(error)
        hint = "it must be one that RE2 takes, which has no look-around and no backreferences"
        raise ConfigError(f"trace_redact has a pattern that cannot be used, {pattern!r}: {reason}; {hint}") from None


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
