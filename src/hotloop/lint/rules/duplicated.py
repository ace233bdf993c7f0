"""HL011: the same text stands twice in one prompt."""

from collections.abc import Iterator

from hotloop.lint.finding import Finding, Severity, Waste
from hotloop.lint.part import Part
from hotloop.lint.rules.rule import Rule, quote
from hotloop.lint.run import LintedRun, LintedStep

_MIN_CHARS = 400  # of a paragraph
_MIN_TOKENS = 256  # that two texts share
_MIN_WARNED = 1024


def check(run: LintedRun) -> Iterator[Finding]:
    """In the longest prompt, which has all that the others had."""
    step = max(run.steps, key=lambda step: sum(len(part.text) for part in step.asked.parts))
    first: dict[str, Part] = {}
    for part in (*step.asked.system, *step.asked.history):
        if part.role == "assistant" or part.kind == "thinking":
            continue
        again = [(text, begin) for text, begin in _paragraphs(part.text) if text in first]
        num_tokens = sum(step.scale.tokens(text) for text, _ in again)
        if num_tokens >= _MIN_TOKENS:
            yield _report(step, part, first[again[0][0]], again[0], num_tokens)
        for text, _ in _paragraphs(part.text):
            first.setdefault(text, part)


def _report(step: LintedStep, part: Part, earlier: Part, spot: tuple[str, int], num_tokens: int) -> Finding:
    text, begin = spot
    words = f"{quote(text)} stands in {earlier.path} already: {num_tokens:,d} tokens"
    # A tool that is asked twice answers twice: what the model asks for is not the client's doing.
    is_asked_for = "result" in (part.kind, earlier.kind)
    severity = Severity.NOTE if is_asked_for or num_tokens < _MIN_WARNED else None
    place = step.place(part, begin, begin + len(text))
    return RULE.found(place, words, Waste(num_carried=num_tokens), severity=severity)


def _paragraphs(text: str) -> Iterator[tuple[str, int]]:
    begin = 0
    for paragraph in text.split("\n\n"):
        if len(paragraph) >= _MIN_CHARS:
            yield paragraph, begin
        begin += len(paragraph) + 2


RULE = Rule(
    id="HL011",
    name="duplicated-context",
    severity=Severity.WARNING,
    summary="The same long text stands in a prompt twice.",
    mend="Say it once, as early as it is needed, and refer to it.",
    check=check,
)
