"""The bench of plans does the same task in every way."""

import json
from collections.abc import Sequence

import pytest
from benchmarks.agent.paced import PacedModel
from benchmarks.agent.plan import Way, run_plan

from hotloop.agent.model import Model
from hotloop.core.message import Message


@pytest.mark.parametrize(("way", "num_turns"), [("chained", 7), ("levels", 4), ("plan", 2)])
async def test_all_ways_make_the_same_calls(way: Way, num_turns: int) -> None:
    models: list[PacedModel] = []

    def make_model(answers: Sequence[Message]) -> Model:
        models.append(PacedModel(answers, tokens_per_s=1e6, ttft_s=0.0))
        return models[-1]

    run = await run_plan(way, tool_s=0.001, make_model=make_model)
    assert (run.num_turns, run.num_calls) == (num_turns, 6)
    calls = [call for message in models[0].asks[-1].messages for call in message.tool_calls]
    offer = json.loads(next(call.arguments for call in calls if call.name == "offer"))
    assert offer == {"order_ids": ["o-1", "o-2"], "price": 43.0, "rate": 0.9}
    assert len(calls) == 6
