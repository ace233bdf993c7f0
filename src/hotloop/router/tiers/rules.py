"""Which tier a route's rules give a request, and why in words. Pure; knows no session and no price."""

from hotloop.router.tiers.config import Route, Rule, Task
from hotloop.router.tiers.features import Features


def decide(route: Route, features: Features, task: Task | None) -> tuple[str, str]:
    """The tier of the first rule that fits, or the default, which is empty for the largest; and why."""
    for rule in route.rules:
        if fits(rule, features, task):
            return rule.tier, describe(rule, task)
    return route.default, "default"


def fits(rule: Rule, features: Features, task: Task | None) -> bool:
    return (
        (not rule.tasks or task in rule.tasks)
        and _is_within(features.num_tokens, rule.min_tokens, rule.max_tokens)
        and _is_within(features.num_turns, rule.min_turns, rule.max_turns)
        and _is_within(features.num_tools, rule.min_tools, rule.max_tools)
        and rule.has_shape in (None, features.has_shape)
        and rule.has_code in (None, features.has_code)
    )


def can_need_task(route: Route, features: Features) -> bool:
    """Whether knowing the task could change the decision: only then is it worth asking for."""
    for rule in route.rules:
        if rule.tasks and any(fits(rule, features, task) for task in rule.tasks):
            return True
        if not rule.tasks and fits(rule, features, None):
            return False
    return False


def describe(rule: Rule, task: Task | None) -> str:
    """Short and plain: it goes into a header."""
    words = [f"task {task}"] if rule.tasks else []
    for name in ("tokens", "turns", "tools"):
        least, most = getattr(rule, f"min_{name}"), getattr(rule, f"max_{name}")
        words += [f"{name} >= {least}"] if least is not None else []
        words += [f"{name} <= {most}"] if most is not None else []
    for name in ("shape", "code"):
        wanted = getattr(rule, f"has_{name}")
        words += [name if wanted else f"no {name}"] if wanted is not None else []
    return ", ".join(words) or "rule"


def _is_within(value: int, least: int | None, most: int | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)
