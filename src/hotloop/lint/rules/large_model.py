"""HL017: a large model for a small task."""

import re
from collections.abc import Iterator

from hotloop.lint.finding import Finding, Severity, TextPlace
from hotloop.lint.rules.rule import Rule
from hotloop.lint.run import LintedRun, LintedStep

_LARGE = re.compile(
    r"opus|gpt-4(?!o-mini|\.1-(?:mini|nano))|gpt-5(?!.*-(?:mini|nano))|\bo[13](?!-mini)|\bo1-pro|large|ultra|gemini.*pro"
    r"|\b(?:[7-9]\d|\d{3,})b\b|deepseek-(?:r1|v3)(?!.*distill)",
    re.I,
)
_MAX_PROMPT = 500
_MAX_OUTPUT = 32


def check(run: LintedRun) -> Iterator[Finding]:
    """A question and a short answer, without tools and without a past."""
    for step in run.steps:
        num_prompt = step.scale.total(step.asked.parts)
        if not _LARGE.search(step.asked.model) or step.asked.tools or num_prompt > _MAX_PROMPT:
            continue
        num_output = _most_output(step)
        if num_output is not None and num_output <= _MAX_OUTPUT and len(run.steps) == 1:
            words = f"{step.asked.model} reads {num_prompt:,d} tokens to write at most {num_output}"
            yield RULE.found(TextPlace(step.asked.index, "model"), words)


def _most_output(step: LintedStep) -> int | None:
    """How long the answer was or, if that is not known, may be."""
    usage, body = step.asked.answer.usage, step.asked.body
    asked = (body.get(name) for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"))
    return usage.num_output if usage else next((num for num in asked if isinstance(num, int)), None)


RULE = Rule(
    id="HL017",
    name="large-model-small-task",
    severity=Severity.NOTE,
    summary="A large model is asked for a few tokens from a short prompt, as in sorting or naming things.",
    mend="Ask a small model, or let a router choose by task (docs/tiers.md).",
    check=check,
)
