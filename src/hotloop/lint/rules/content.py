"""What need not have been sent, or not to that model."""

import re
from collections.abc import Iterator

from hotloop.lint.finding import Severity, TextPlace, Waste
from hotloop.lint.parts import Part
from hotloop.lint.rules.rule import Found, quote, rule
from hotloop.lint.run import LintedRun, LintedStep

_MIN_PARAGRAPH = 400  # characters
_MIN_SHARED = 256  # tokens of two texts
_MIN_SHARED_WARNED = 1024
_MIN_RESULT = 2_000  # tokens
_MIN_RESULT_WARNED = 8_000
_MIN_SENT = 3  # times
_LARGE = re.compile(
    r"opus|gpt-4(?!o-mini|\.1-(?:mini|nano))|gpt-5(?!.*-(?:mini|nano))|\bo[13](?!-mini)|\bo1-pro|large|ultra|gemini.*pro"
    r"|\b(?:[7-9]\d|\d{3,})b\b|deepseek-(?:r1|v3)(?!.*distill)",
    re.I,
)
_MAX_PROMPT, _MAX_OUTPUT = 500, 32  # tokens of a small task


@rule("HL011", "duplicated-context")
def duplicated(run: LintedRun) -> Iterator[Found]:
    """The same long text stands in a prompt twice.

    Say it once, as early as it is needed, and refer to it.
    """
    # In the longest prompt, which has all that the others had.
    step = max(run.steps, key=lambda step: sum(len(part.text) for part in step.request.parts))
    first: dict[str, Part] = {}
    for part in (*step.request.system, *step.request.history):
        if part.role == "assistant" or part.kind == "thinking":
            continue
        again = [(text, begin) for text, begin in _paragraphs(part.text) if text in first]
        num_tokens = sum(step.scale.tokens(text) for text, _ in again)
        if num_tokens >= _MIN_SHARED:
            yield _report(step, part, first[again[0][0]], again[0], num_tokens)
        for text, _ in _paragraphs(part.text):
            first.setdefault(text, part)


def _report(step: LintedStep, part: Part, earlier: Part, spot: tuple[str, int], num_tokens: int) -> Found:
    text, begin = spot
    words = f"{quote(text)} stands in {earlier.path} already: {num_tokens:,d} tokens"
    # A tool that is asked twice answers twice: what the model asks for is not the client's doing.
    is_asked_for = "result" in (part.kind, earlier.kind)
    severity = Severity.NOTE if is_asked_for or num_tokens < _MIN_SHARED_WARNED else None
    return Found(step.place(part, begin, begin + len(text)), words, Waste(num_carried=num_tokens), severity)


def _paragraphs(text: str) -> Iterator[tuple[str, int]]:
    begin = 0
    for paragraph in text.split("\n\n"):
        if len(paragraph) >= _MIN_PARAGRAPH:
            yield paragraph, begin
        begin += len(paragraph) + 2


@rule("HL012", "oversized-result-resent")
def oversized_result(run: LintedRun) -> Iterator[Found]:
    """A very large result of a tool stays in the prompt for many turns.

    Let the tool give back less: a page, a summary, or a handle to ask for the rest with.
    """
    # Seen in the last request: how often a result was sent is how often the assistant has spoken since.
    step = run.last
    turns = [part.message for part in step.request.history if part.role == "assistant"]
    for part in step.request.history:
        if part.kind != "result" or (num_tokens := step.scale.part_tokens(part)) < _MIN_RESULT:
            continue
        num_sent = 1 + len({turn for turn in turns if turn is not None and turn > (part.message or 0)})
        if num_sent >= _MIN_SENT:
            severity = None if num_tokens >= _MIN_RESULT_WARNED else Severity.NOTE
            words = f"a result of {num_tokens:,d} tokens was sent {num_sent} times"
            yield Found(step.place(part), words, Waste(num_carried=num_tokens * (num_sent - 1)), severity)


@rule("HL017", "large-model-small-task", severity=Severity.NOTE)
def large_model(run: LintedRun) -> Iterator[Found]:
    """A large model is asked for a few tokens from a short prompt, as in sorting or naming things.

    Ask a small model, or let a router choose by task (docs/tiers.md).
    """
    # A question and a short answer, without tools and without a past.
    step = run.last
    num_prompt, num_output = step.scale.total(step.request.parts), _most_output(step)
    is_small = num_prompt <= _MAX_PROMPT and num_output is not None and num_output <= _MAX_OUTPUT
    if len(run.steps) == 1 and is_small and not step.request.tools and _LARGE.search(step.request.model):
        words = f"{step.request.model} reads {num_prompt:,d} tokens to write at most {num_output}"
        yield Found(TextPlace(step.request.index, "model"), words)


def _most_output(step: LintedStep) -> int | None:
    """How long the answer was or, if that is not known, may be."""
    usage, body = step.request.answer.usage, step.request.body
    limits = (body.get(name) for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"))
    return usage.num_output if usage else next((num for num in limits if isinstance(num, int)), None)
