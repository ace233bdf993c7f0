"""A conversation that outgrows the window, made shorter: its middle becomes a summary, written by the model itself.

    before  [ system | task | ............................ | the last turns ]
    after   [ system | task | summary | the last turns ]
              stays cached    all that has to be recomputed

A cut never parts a call from its result. Where that is not enough, the longest results of tools are cut.
"""

from contextlib import aclosing
from dataclasses import dataclass, replace

from hotloop.agent.conversation import estimate_message
from hotloop.agent.model import Ask, Model, PartialAnswer
from hotloop.agent.tools.dispatch import MIN_RESULT_TOKENS
from hotloop.agent.tools.result import cut_to_tokens
from hotloop.core.errors import ConfigError
from hotloop.core.message import Message
from hotloop.core.request import Priority
from hotloop.wire.hints import choose_class
from hotloop.wire.usage import ApiUsage

_TASK = (
    "Write a summary of the conversation so far, for yourself to go on from: what was asked, what was found out "
    "(with all names, ids and numbers that may be needed again), what was done, and what is left to do."
)
_SUMMARY = "[Earlier messages were left out. A summary of them:]\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """When to shorten, and how much to leave alone."""

    window_tokens: int
    """The model's context window."""
    fill: float = 0.8
    """How much of the window a prompt may take before it is shortened."""
    num_kept: int = 8
    """How many of the last messages stay as they are, or a few more."""
    max_summary_tokens: int = 1024
    model: Model | None = None
    """Who writes the summary; the agent's own model if not given."""
    priority: Priority | None = None
    """Background if not given, as of any summary."""
    task: str | None = None
    """Its agent's own if not given: a router with tiers then asks the tier that goes on from the summary and has the
    conversation cached. "summary" sends it to the smallest."""

    def __post_init__(self) -> None:
        if self.window_tokens < 1 or not 0 < self.fill <= 1 or self.num_kept < 0:
            raise ConfigError("compaction: window_tokens must be above 0, fill between 0 and 1, num_kept not negative")

    async def shrink(
        self, model: Model, ask: Ask, num_tokens: int | None = None
    ) -> tuple[tuple[Message, ...], ApiUsage]:
        """The messages of a prompt, fewer if there is a middle to leave out, and what the summary cost.

        `num_tokens` is what the prompt has, where a server counted it: the estimates are scaled to agree with that.
        """
        scale = sum(map(estimate_message, ask.messages)) / num_tokens if num_tokens else 1.0
        max_prompt = int(self.fill * self.window_tokens * scale)
        max_asked = int((self.window_tokens - self.max_summary_tokens) * scale)
        begin, end = self._middle(ask.messages)
        if end - begin < 2:
            return fit_results(ask.messages, max_prompt), ApiUsage()
        wanted = replace(  # with its tools, or else nothing of the prompt would be known
            ask,
            messages=(*fit_results(ask.messages[:end], max_asked), Message("user", _TASK)),
            choice="none",
            schema=None,
            max_tokens=self.max_summary_tokens,
            priority=choose_class(self.priority, "summary", usual=ask.priority),
            task=ask.task if self.task is None else self.task,
        )
        answer = PartialAnswer()
        async with aclosing((self.model or model).stream(wanted)) as events:
            async for event in events:
                answer.push(event)
        if not answer.text.strip():
            return fit_results(ask.messages, max_prompt), answer.ended.usage  # nothing is left out for nothing
        summary = Message("user", _SUMMARY + answer.text)
        shorter = (*ask.messages[:begin], summary, *ask.messages[end:])
        return fit_results(shorter, max_prompt), answer.ended.usage

    def _middle(self, messages: tuple[Message, ...]) -> tuple[int, int]:
        """From behind the user's first words to before the last messages, not within a call and its results."""
        begin = next((i + 1 for i, message in enumerate(messages) if message.role == "user"), len(messages))
        is_question_last = bool(messages) and messages[-1].role == "user"  # what is to be answered now stays
        end = max(begin, len(messages) - max(self.num_kept, int(is_question_last)))
        while end > begin and messages[end:] and messages[end].role == "tool":
            end -= 1
        return begin, end


def fit_results(messages: tuple[Message, ...], max_tokens: int) -> tuple[Message, ...]:
    """Cut the longest tool results until the messages have at most `max_tokens` by estimate. Results of up to
    MIN_RESULT_TOKENS stay whole, so the messages may still be too long."""
    sizes = [estimate_message(message) for message in messages]
    results = [size for size, message in zip(sizes, messages, strict=True) if message.role == "tool"]
    num_others = sum(sizes) - sum(results)
    longest = max(results, default=0)
    while num_others + sum(min(size, longest) for size in results) > max_tokens and longest > MIN_RESULT_TOKENS:
        longest = max(longest // 2, MIN_RESULT_TOKENS)
    return tuple(
        replace(message, content=cut_to_tokens(message.content, longest)[0]) if message.role == "tool" else message
        for message in messages
    )
