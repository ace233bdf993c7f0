"""The rules, one a file. Adding one means writing its file, naming it here and in docs/lint.md."""

from hotloop.lint.rules import (
    clock_in_prefix,
    duplicated,
    history_rewritten,
    history_trimmed,
    independent_calls,
    key_order,
    large_model,
    mergeable_calls,
    misplaced_breakpoint,
    missing_breakpoint,
    oversized_result,
    retokenised,
    system_hoisted,
    thinking_dropped,
    tool_order,
    tools_changed,
    under_minimum,
    volatile_first,
)
from hotloop.lint.rules.rule import Rule

RULES: tuple[Rule, ...] = (
    volatile_first.RULE,
    clock_in_prefix.RULE,
    tool_order.RULE,
    key_order.RULE,
    tools_changed.RULE,
    history_rewritten.RULE,
    history_trimmed.RULE,
    thinking_dropped.RULE,
    system_hoisted.RULE,
    retokenised.RULE,
    duplicated.RULE,
    oversized_result.RULE,
    independent_calls.RULE,
    mergeable_calls.RULE,
    missing_breakpoint.RULE,
    misplaced_breakpoint.RULE,
    large_model.RULE,
    under_minimum.RULE,
)
