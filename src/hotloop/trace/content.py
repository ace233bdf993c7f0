"""What was said, as far as it may be recorded. Every span on its way out of the process passes here: unless it is asked
for, no attribute of `names.CONTENT` gets through; where it is, what the patterns match is blotted out, and so it is in
what went wrong, which may quote anything.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from hotloop.core.errors import ConfigError
from hotloop.trace import names
from hotloop.trace.span import Span

BLOT = "[redacted]"


@dataclass(frozen=True, slots=True)
class Content:
    """`Content()` lets nothing through."""

    is_kept: bool = False
    redact: tuple[re.Pattern[str], ...] = ()

    @classmethod
    def parse(cls, is_kept: bool, patterns: Sequence[str]) -> "Content":
        """Raises ConfigError where a pattern is none."""
        return cls(is_kept, tuple(map(_compile, patterns)))

    def clean(self, span: Span) -> Span:
        if self.redact and span.error:
            span = replace(span, error=self._blot(span.error))
        if not any(name.startswith(names.CONTENT) for name in span.attributes):
            return span
        may_pass = (name for name in span.attributes if self.is_kept or not name.startswith(names.CONTENT))
        return replace(span, attributes={name: self._clean(name, span.attributes[name]) for name in may_pass})

    def _clean(self, name: str, value: Any) -> Any:
        if not self.redact or not name.startswith(names.CONTENT):
            return value
        if name == names.CONTENT_WORDS and isinstance(value, list):
            value = [self._blot_seam(words) if isinstance(words, dict) else words for words in value]
        return self._blot(value)

    def _blot(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._blot_text(value)
        if isinstance(value, dict):
            return {self._blot(name): self._blot(each) for name, each in value.items()}
        return [self._blot(each) for each in value] if isinstance(value, list | tuple) else value

    def _blot_text(self, text: str) -> str:
        """JSON, as the body of a request is, hides words behind escapes: it is read, and written anew if need be."""
        if "\\" in text:
            try:
                said = json.loads(text)
            except (ValueError, RecursionError):
                pass
            else:
                blotted = self._blot(said)
                text = text if blotted == said else json.dumps(blotted, ensure_ascii=False, separators=(",", ":"))
        for pattern in self.redact:
            text = pattern.sub(BLOT, text)
        return text

    def _blot_seam(self, words: dict[str, Any]) -> dict[str, Any]:
        """Two secrets part within themselves: neither half would match alone."""
        before = str(words.get("before", ""))
        for side in ("previous", "current"):
            whole = before + str(words.get(side, ""))
            found = (match for pattern in self.redact for match in pattern.finditer(whole))
            if any(match.start() < len(before) < match.end() for match in found):
                return dict.fromkeys(words, BLOT)
        return words


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"trace_redact has a pattern that is none, {pattern!r}: {error}") from None
