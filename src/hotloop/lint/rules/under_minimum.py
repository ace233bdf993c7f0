"""HL018: what is sent again and again is a little too short to be cached."""

from collections.abc import Iterator

from hotloop.lint.breakpoints import MIN_CACHEABLE
from hotloop.lint.finding import Finding, Severity, Waste
from hotloop.lint.rules.rule import Rule
from hotloop.lint.run import LintedRun

_NEARLY = 0.75
_HOSTED = ("claude", "gpt", "o1", "o3", "o4", "chatgpt")


def check(run: LintedRun) -> Iterator[Finding]:
    """Hosted APIs alone have a minimum; elsewhere the end of the last block is all that is lost."""
    for step in run.steps[1:]:
        if step.changes or not step.before or not step.asked.model.rpartition("/")[2].startswith(_HOSTED):
            continue
        num_shared = step.scale.total(step.before.parts)
        if _NEARLY * MIN_CACHEABLE <= num_shared < MIN_CACHEABLE:
            words = f"about {num_shared:,d} tokens are sent again: fewer than {MIN_CACHEABLE:,d} are not cached"
            yield RULE.found(step.place(step.asked.parts[0], 0, 0), words, Waste(num_recomputed=num_shared))


RULE = Rule(
    id="HL018",
    name="just-under-cacheable",
    severity=Severity.NOTE,
    summary="A prefix that is sent again is a little shorter than what a hosted API caches.",
    mend="Put what is needed later anyway, such as examples or more of the instructions, into the prefix.",
    check=check,
)
