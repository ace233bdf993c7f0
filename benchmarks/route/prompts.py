"""What stubs are asked: agents of one shop taking turns, each resending all it has said, without end and by a seed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from benchmarks.route.answers import CHAT, MESSAGES, MODEL
from benchmarks.route.load import render_request

_WORDS = (
    "order", "parcel", "refund", "address", "voucher", "delivery", "invoice", "return", "customer", "payment", "seat",
    "today", "late", "wrong", "missing", "twice", "please", "check", "change", "cancel", "confirm", "before", "after",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mix:
    """What kinds of requests there are, as shares."""

    streamed: float = 1.0
    anthropic: float = 0.0


@dataclass(slots=True)
class _Agent:
    id: str
    messages: list[dict[str, str]] = field(default_factory=list)


def agent_requests(
    *, seed: int = 0, num_agents: int = 32, num_turns: int = 8, system_chars: int = 6000, mix: Mix | None = None
) -> Iterator[bytes]:
    """Each agent in turn; after its last turn another takes its place, with an id that was never seen."""
    rng = random.Random(seed)
    mix = mix or Mix()
    system = _talk(rng, system_chars)
    numbers = count()
    agents = [_Agent(f"agent-{seed}-{next(numbers)}") for _ in range(num_agents)]
    while True:
        for place, agent in enumerate(agents):
            agent.messages.append({"role": "user", "content": _talk(rng, 300)})
            yield _render(agent, system, rng.random() < mix.streamed, rng.random() < mix.anthropic)
            agent.messages.append({"role": "assistant", "content": _talk(rng, 100)})
            if len(agent.messages) >= 2 * num_turns:
                agents[place] = _Agent(f"agent-{seed}-{next(numbers)}")


def _render(agent: _Agent, system: str, is_stream: bool, is_anthropic: bool) -> bytes:
    body = {"model": MODEL, "max_tokens": 64, "stream": is_stream}
    if is_anthropic:
        return render_request(MESSAGES, {**body, "system": system, "messages": agent.messages}, session=agent.id)
    messages = [{"role": "system", "content": system}, *agent.messages]
    return render_request(CHAT, {**body, "messages": messages}, session=agent.id)


def _talk(rng: random.Random, num_chars: int) -> str:
    words = rng.choices(_WORDS, k=num_chars // 7)
    return " ".join(words)
