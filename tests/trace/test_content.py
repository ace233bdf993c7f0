import pytest
from tests.trace.spans import span

from hotloop.core.errors import ConfigError
from hotloop.trace import names
from hotloop.trace.content import REDACTED, Content

SAID = {names.CONTENT_ARGUMENTS: '{"key": "sk-123"}', names.CONTENT_WORDS: [{"before": "sk-123", "n": 1}, None]}


def test_nothing_that_was_said_gets_out_unasked():
    cleaned = Content().clean(span(names.TOOL, 0, 1, tool="look", **SAID))
    assert cleaned.attributes == {"tool": "look"}


def test_what_is_recorded_is_redacted_to_the_last_leaf():
    content = Content.parse(True, [r"sk-\w+"])
    cleaned = content.clean(span(names.TOOL, 0, 1, tool="sk-tool", **SAID))
    assert cleaned.attributes == {
        "tool": "sk-tool",
        names.CONTENT_ARGUMENTS: f'{{"key": "{REDACTED}"}}',
        names.CONTENT_WORDS: [{"before": REDACTED, "n": 1}, None],
    }


def test_a_span_without_content_is_left_alone():
    one = span(names.TOOL, 0, 1, tool="look")
    assert Content.parse(True, ["look"]).clean(one) is one


@pytest.mark.parametrize("pattern", ["(", "(?=a)b", r"(a)\1", "a*+", "\ud800"])
def test_a_pattern_that_cannot_be_used_is_named(pattern, capfd):
    with pytest.raises(ConfigError, match=r"trace_redact has a pattern that cannot be used, .*RE2"):
        Content.parse(True, ["sk-", pattern])
    assert capfd.readouterr().err == "", "the library is not to write what is said already"


def test_redaction_takes_time_linear_in_what_was_said():
    """A backtracking engine takes hours for this: a hundred million steps for each of a million places."""
    said = "a" * 10_000_000 + " someone@example.org"
    cleaned = Content.parse(True, [r"[\w.]+@[\w.]+"]).clean(span(names.REQUEST, 0, 1, **{names.CONTENT_REQUEST: said}))
    assert cleaned.attributes[names.CONTENT_REQUEST] == "a" * 10_000_000 + f" {REDACTED}"


def test_what_is_no_ascii_or_no_unicode_is_kept():
    said = "naïve \ud800 👍 sk-123 ünd"
    cleaned = Content.parse(True, [r"sk-\w+"]).clean(span(names.REQUEST, 0, 1, **{names.CONTENT_REQUEST: said}))
    assert cleaned.attributes[names.CONTENT_REQUEST] == f"naïve \ud800 👍 {REDACTED} ünd"


@pytest.mark.parametrize(
    "said",
    [
        r'{"content": "\u0073k\u002d123"}',
        r'{"arguments": "{\"key\": \"\\u0073k-123\"}"}',
        r'{"\u0073k-123": 1}',
        r'{"lone": "\ud800", "content": "\u0073k-123"}',
    ],
)
def test_what_is_written_with_escapes_is_redacted_as_well(said):
    content = Content.parse(True, [r"sk-\w+"])
    cleaned = content.clean(span(names.REQUEST, 0, 1, **{names.CONTENT_REQUEST: said}))
    told = cleaned.attributes[names.CONTENT_REQUEST]
    assert REDACTED in told
    assert "123" not in told


def test_what_matches_nothing_stays_as_it_was_written():
    said = r'{ "content": "caf\u00e9 \n" }'
    cleaned = Content.parse(True, ["sk-"]).clean(span(names.REQUEST, 0, 1, **{names.CONTENT_REQUEST: said}))
    assert cleaned.attributes[names.CONTENT_REQUEST] == said


@pytest.mark.parametrize("side", ["previous", "current"])
def test_secrets_that_part_within_themselves_are_redacted(side):
    words = {"before": "the key is sk-", "previous": "", "current": "", side: "123, and so on"}
    cleaned = Content.parse(True, [r"sk-\w+"]).clean(span(names.REQUEST, 0, 1, **{names.CONTENT_WORDS: [words, None]}))
    assert cleaned.attributes[names.CONTENT_WORDS] == [dict.fromkeys(words, REDACTED), None]


@pytest.mark.parametrize("is_kept", [True, False])
def test_an_error_that_quotes_a_secret_is_redacted(is_kept):
    cleaned = Content.parse(is_kept, [r"sk-\w+"]).clean(span(names.TOOL, 0, 1, error="the key sk-123 is unknown"))
    assert cleaned.error == f"the key {REDACTED} is unknown"
