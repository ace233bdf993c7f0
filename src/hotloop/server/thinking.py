"""What a request asks of the model's thoughts, and how thoughts that were given out are known again.

Nothing is secret about a thought, which its client has been shown. Anthropic's clients want a signature and give it
back: here it is a digest of the text, so that a thought is taken back where the model of any replica wrote it, and not
where another maker's did or somebody changed it. What carries a thought that is not shown is told in `wire.part`.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hotloop.chat.reasoning import reasoning_variables
from hotloop.core.errors import RequestError
from hotloop.core.message import Thought
from hotloop.wire.request import ApiRequest

_OWN = "hotloop:"
# How many tokens an effort stands for where the chat template does not know of efforts; others: as many as it likes.
_BUDGETS = {"minimal": 256, "low": 1024, "medium": 8192}


@dataclass(frozen=True, slots=True)
class ThinkingWish:
    """What a request asks for: variables for the template, and most tokens of thought."""

    variables: Mapping[str, Any]
    max_tokens: int | None


def parse_wish(request: ApiRequest, source: str, max_thinking: int | None = None) -> ThinkingWish:
    """`source` is the model's chat template, `max_thinking` the most that anybody may have."""
    given, effort = request.thinking or {}, request.effort
    kind, budget = given.get("type"), given.get("budget_tokens")
    if budget is not None and (type(budget) is not int or budget < 0):
        raise RequestError(f"thinking.budget_tokens: expected a whole number, got {budget!r:.100}", param="thinking")
    if kind == "disabled" or effort == "none":
        return ThinkingWish(reasoning_variables(source, is_wanted=False), 0)
    is_wanted = True if kind in ("enabled", "adaptive") or effort else None
    variables = reasoning_variables(source, is_wanted=is_wanted, effort=effort)
    effort_limit = None if "reasoning_effort" in variables else _BUDGETS.get(effort or "")
    limits = [limit for limit in (budget, effort_limit, max_thinking) if limit is not None]
    return ThinkingWish(variables, min(limits, default=None))


def sign(thought: Thought) -> Thought:
    """As an answer in Anthropic's API has it."""
    return replace(thought, signature=_OWN + _digest(thought.text), maker="messages")


def take_back(thought: Thought) -> Thought | None:
    """A thought that comes back, for the model to read; None if another maker's model wrote it."""
    if not thought.maker:
        return thought
    is_own = thought.maker == "messages" and thought.signature == _OWN + _digest(thought.text)
    return Thought(thought.text) if is_own else None


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
