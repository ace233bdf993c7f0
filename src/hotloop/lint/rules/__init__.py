"""The rules, by what they look at. Adding one means decorating its check with `rule`, and a section in docs/lint.md."""

from hotloop.lint.rules import caching, calls, content, history, prefix
from hotloop.lint.rules.rule import Rule

_FOUND = (each for module in (caching, calls, content, history, prefix) for each in vars(module).values())
RULES: tuple[Rule, ...] = tuple(sorted((each for each in _FOUND if isinstance(each, Rule)), key=lambda rule: rule.id))
