"""HL012: a large result of a tool is sent again and again."""

from collections.abc import Iterator

from hotloop.lint.finding import Finding, Severity, Waste
from hotloop.lint.rules.rule import Rule
from hotloop.lint.run import LintedRun

_MIN_TOKENS = 2_000
_MIN_WARNED = 8_000
_MIN_SENT = 3  # times


def check(run: LintedRun) -> Iterator[Finding]:
    """Seen in the last request: how often a result was sent is how often the assistant has spoken since."""
    step = run.last
    turns = [part.message for part in step.asked.history if part.role == "assistant"]
    for part in step.asked.history:
        if part.kind != "result" or (num_tokens := step.scale.part_tokens(part)) < _MIN_TOKENS:
            continue
        num_sent = 1 + len({turn for turn in turns if turn is not None and turn > (part.message or 0)})
        if num_sent >= _MIN_SENT:
            severity = None if num_tokens >= _MIN_WARNED else Severity.NOTE
            words = f"a result of {num_tokens:,d} tokens was sent {num_sent} times"
            waste = Waste(num_carried=num_tokens * (num_sent - 1))
            yield RULE.found(step.place(part), words, waste, severity=severity)


RULE = Rule(
    id="HL012",
    name="oversized-result-resent",
    severity=Severity.WARNING,
    summary="A very large result of a tool stays in the prompt for many turns.",
    mend="Let the tool give back less: a page, a summary, or a handle to ask for the rest with.",
    check=check,
)
