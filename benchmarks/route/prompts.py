"""What stubs are asked: agents of one shop taking turns, each resending all it has said, without end and by a seed."""

import random
from collections.abc import Iterator
from itertools import count

from benchmarks.route.answers import CHAT, MODEL
from benchmarks.route.load import render_request

_WORDS = (
    "order", "parcel", "refund", "address", "voucher", "delivery", "invoice", "return", "customer", "payment", "seat",
    "today", "late", "wrong", "missing", "twice", "please", "check", "change", "cancel", "confirm", "before", "after",
)  # fmt: skip


def agent_requests(
    *, seed: int = 0, num_agents: int = 32, num_turns: int = 8, system_chars: int = 6000, key: str = ""
) -> Iterator[bytes]:
    """Each agent in turn; after its last turn another takes its place, with an id that was never seen."""
    rng = random.Random(seed)
    system = {"role": "system", "content": _talk(rng, system_chars)}
    ids = (f"agent-{seed}-{number}" for number in count())
    agents = [(next(ids), [system]) for _ in range(num_agents)]
    while True:
        for place, (id_, messages) in enumerate(agents):
            messages.append({"role": "user", "content": _talk(rng, 300)})
            body = {"model": MODEL, "max_tokens": 64, "stream": True, "messages": messages}
            yield render_request(CHAT, body, session=id_, key=key)
            messages.append({"role": "assistant", "content": _talk(rng, 100)})
            if len(messages) > 2 * num_turns:
                agents[place] = (next(ids), [system])


def _talk(rng: random.Random, num_chars: int) -> str:
    words = rng.choices(_WORDS, k=num_chars // 7)
    return " ".join(words)
