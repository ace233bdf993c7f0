import pytest
from tests.trace.spans import span

from hotloop.core.errors import ConfigError
from hotloop.trace import names
from hotloop.trace.content import BLOT, Content

SAID = {names.CONTENT_ARGUMENTS: '{"key": "sk-123"}', names.CONTENT_WORDS: [{"before": "sk-123", "n": 1}, None]}


def test_nothing_that_was_said_gets_out_unasked():
    cleaned = Content().clean(span(names.TOOL, 0, 1, tool="look", **SAID))
    assert cleaned.attributes == {"tool": "look"}


def test_what_is_recorded_is_redacted_to_the_last_leaf():
    content = Content.parse(True, [r"sk-\w+"])
    cleaned = content.clean(span(names.TOOL, 0, 1, tool="sk-tool", **SAID))
    assert cleaned.attributes == {
        "tool": "sk-tool",
        names.CONTENT_ARGUMENTS: f'{{"key": "{BLOT}"}}',
        names.CONTENT_WORDS: [{"before": BLOT, "n": 1}, None],
    }


def test_a_span_without_content_is_left_alone():
    one = span(names.TOOL, 0, 1, tool="look")
    assert Content.parse(True, ["look"]).clean(one) is one


def test_a_pattern_that_is_none_is_named():
    with pytest.raises(ConfigError, match="trace_redact has a pattern that is none"):
        Content.parse(True, ["("])
