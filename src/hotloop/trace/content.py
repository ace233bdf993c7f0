"""What was said, as far as it may be recorded. Every span on its way out of the process passes here: unless it is asked
for, no attribute of `names.CONTENT` gets through; where it is, what the patterns match is blotted out.
"""

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
        if not any(name.startswith(names.CONTENT) for name in span.attributes):
            return span
        kept = {name: self._clean(name, value) for name, value in span.attributes.items() if self._may_pass(name)}
        return replace(span, attributes=kept)

    def _may_pass(self, name: str) -> bool:
        return self.is_kept or not name.startswith(names.CONTENT)

    def _clean(self, name: str, value: Any) -> Any:
        return self._blot(value) if self.redact and name.startswith(names.CONTENT) else value

    def _blot(self, value: Any) -> Any:
        if isinstance(value, str):
            for pattern in self.redact:
                value = pattern.sub(BLOT, value)
            return value
        if isinstance(value, dict):
            return {name: self._blot(each) for name, each in value.items()}
        return [self._blot(each) for each in value] if isinstance(value, list | tuple) else value


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"trace_redact has a pattern that is none, {pattern!r}: {error}") from None
