"""Running ahead: what may, what comes of it, and that nobody sees what was not asked for.

The predictor is taught by conversations; what ran when is told by events and by gates, never by a clock.
"""

import asyncio
import json
import logging
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.predict.talks import clerk, step, user
from tests.agent.runs import end_of, listen, of, speculate, speculating
from tests.properties import examples

from hotloop.agent.agent import Agent
from hotloop.agent.conversation import Conversation
from hotloop.agent.events import CallArguments, CallDispatched, CallFinished, CallOpened, CallSpeculated, TurnFinished
from hotloop.agent.model import Ask
from hotloop.agent.predict.history import History
from hotloop.agent.predict.predictor import Predictor, load_predictor
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.speculation import SpeculativeTools
from hotloop.agent.tools.results import ResultCache
from hotloop.agent.tools.tool import FunctionTool, ToolOptions
from hotloop.core.errors import ConfigError
from hotloop.core.message import Message, ToolCall
from hotloop.wire.event import Event as WireEvent

ORDERS = ["W099A0", "W099A1", "W099A2"]
READS = ToolOptions(read_only=True)


class Shop:
    """Tools that note when they are run. Those in `gates` wait until their gate is opened."""

    def __init__(self, **options: ToolOptions) -> None:
        self.log: list[str] = []
        self.cancelled: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.ended: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._options = options

    async def _do(self, what: str, result: Any) -> str:
        self.log.append(what)
        try:
            if what in self.gates:
                await self.gates[what].wait()
        except asyncio.CancelledError:
            self.cancelled.append(what)
            raise
        self.ended[what].set()
        return json.dumps(result)

    @property
    def tools(self) -> list[FunctionTool]:
        async def find_customer(customer_id: str) -> str:
            return await self._do(f"customer {customer_id}", {"name": "Ann", "orders": ORDERS})

        async def find_order(order_id: str) -> str:
            return await self._do(f"order {order_id}", {"order_id": order_id, "status": "sent"})

        async def cancel_order(order_id: str) -> str:
            return await self._do(f"cancel {order_id}", "done")

        made = []
        for function in (find_customer, find_order, cancel_order):
            default = ToolOptions() if function is cancel_order else READS
            made.append(FunctionTool(function, options=self._options.get(function.__name__, default)))
        return made


def taught(num_runs: int = 30) -> Predictor:
    predictor = Predictor()
    for number in range(num_runs):
        predictor.learn(clerk(number))
    return predictor


def agent(script: Any, shop: Shop, speculation: SpeculativeTools) -> Agent[str]:
    return Agent(ScriptedModel(script), shop.tools, speculation=speculation)


def known() -> Conversation:
    """A conversation after which the first order will be looked up."""
    conversation = Conversation()
    conversation.add(*clerk(99, ORDERS)[:3])
    return conversation


PROMPT = f"Hello, I am ann_lee_1099. Where are my orders {' and '.join(ORDERS)}?"
SCRIPT = [
    ScriptedCall("find_customer", customer_id="ann_lee_1099"),
    *(ScriptedCall("find_order", order_id=order) for order in ORDERS),
    "All are on their way.",
]


async def test_calls_run_before_the_model_asks_and_are_used():
    speculation, shop = speculating(taught()), Shop()
    events = await listen(agent(SCRIPT, shop, speculation), PROMPT)
    assert end_of(events).output == "All are on their way."
    assert [event.was_speculative for event in of(CallDispatched, events)] == [True] * 4
    for speculative, opened in zip(of(CallSpeculated, events), of(CallOpened, events), strict=True):
        assert events.index(speculative) < events.index(opened)
        assert speculative.confidence >= 0.8
    assert shop.log == ["customer ann_lee_1099", *(f"order {order}" for order in ORDERS)]
    told = speculation.counts
    assert (told.num_started, told.num_hits, told.num_wasted) == (4, 4, 0)


async def test_a_result_may_be_there_before_the_call_is_written():
    """The model writes its call only once the tool is done: without speculation it would wait for ever."""
    speculation, shop = speculating(taught()), Shop()

    class Slow(ScriptedModel):
        async def stream(self, ask: Ask) -> AsyncIterator[WireEvent]:
            if len(ask.messages) == 1:
                await shop.ended["customer ann_lee_1099"].wait()
            async for event in super().stream(ask):
                yield event

    async with asyncio.timeout(30):
        events = await listen(Agent(Slow(SCRIPT), shop.tools, speculation=speculation), PROMPT)
    assert of(CallDispatched, events)[0].was_speculative
    assert speculation.counts.num_hits == 4


async def test_once_the_tool_is_named_its_arguments_are_guessed():
    predictor = Predictor()
    for number in range(40):  # one in two runs only, so that nothing is expected before
        talk = clerk(number)
        predictor.learn(talk if number % 2 else [talk[0], Message("assistant", "Who are you?")])
    speculation, shop = speculating(predictor), Shop()
    events = await listen(agent([SCRIPT[0], "Thanks."], shop, speculation), PROMPT)
    speculative, more, dispatched = (of(kind, events)[0] for kind in (CallSpeculated, CallArguments, CallDispatched))
    assert speculative.name == "find_customer"
    assert not any(isinstance(event, CallSpeculated) for event in events[: events.index(speculative)])
    assert events.index(speculative) < events.index(more) < events.index(dispatched)
    assert dispatched.was_speculative
    assert shop.log[0] == "customer ann_lee_1099"


async def test_what_nobody_asks_for_is_stopped_and_never_seen():
    speculation, shop = speculating(taught()), Shop()
    shop.gates[f"order {ORDERS[0]}"] = asyncio.Event()
    model = ScriptedModel(lambda ask: "Nothing to look up.")
    events = await listen(Agent(model, shop.tools, speculation=speculation), "And?", conversation=known())
    assert of(CallSpeculated, events)
    assert not of(CallDispatched, events)
    assert not of(CallFinished, events)
    assert speculation.counts.num_wasted == speculation.counts.num_started == 1
    assert speculation.counts.num_hits == 0
    assert shop.log == shop.cancelled == [f"order {ORDERS[0]}"]
    assert all("sent" not in message.content for ask in model.asks for message in ask.messages)


async def test_another_argument_is_another_call():
    speculation, shop = speculating(taught()), Shop()
    script = [ScriptedCall("find_customer", customer_id="bob_lee_1099"), "Done."]
    events = await listen(agent(script, shop, speculation), PROMPT)
    assert [event.was_speculative for event in of(CallDispatched, events)] == [False]
    assert "customer bob_lee_1099" in shop.log
    assert speculation.counts.num_wasted >= 1
    assert speculation.counts.num_hits == 0


async def test_an_early_call_is_given_out_once():
    speculation, shop = speculating(taught()), Shop()
    twice = [SCRIPT[0], SCRIPT[0]]
    events = await listen(agent([twice, "Done."], shop, speculation), PROMPT)
    assert sorted(event.was_speculative for event in of(CallDispatched, events)) == [False, True]
    assert shop.log.count("customer ann_lee_1099") == 2


async def test_what_was_read_before_a_write_is_not_used():
    """The model cancels an order and looks at it in one turn: what was speculative may be what it was before."""
    speculation, shop = speculating(taught()), Shop()
    early = speculate(speculation, shop.tools)
    early.begin_turn(clerk(99, ORDERS)[:3], 1)
    assert speculation.counts.num_started == 1
    assert early.claim(ToolCall("a", "cancel_order", json.dumps({"order_id": ORDERS[0]}))) is None
    assert early.claim(ToolCall("b", "find_order", json.dumps({"order_id": ORDERS[0]}))) is None
    assert speculation.counts.num_wasted == 1
    await early.close()


async def test_after_a_write_nothing_is_guessed_until_the_next_turn():
    speculation, shop = speculating(taught()), Shop()
    script = [
        [ScriptedCall("cancel_order", order_id="W1"), ScriptedCall("find_customer", customer_id="ann_lee_1099")],
        "Done.",
    ]
    events = await listen(agent(script, shop, speculation), PROMPT)
    assert [event.was_speculative for event in of(CallDispatched, events)] == [False, False]
    assert shop.log.count("cancel W1") == 1


KEEPS = ToolOptions(read_only=True, cache_s=600.0, cache_scope="session", group="orders")
FIRST_ORDER = ScriptedCall("find_order", order_id=ORDERS[0])


class SlowModel(ScriptedModel):
    """Says something only once all is done that runs ahead."""

    async def stream(self, ask: Ask) -> AsyncIterator[WireEvent]:
        if ahead := [task for task in asyncio.all_tasks() if "(speculative)" in task.get_name()]:
            await asyncio.wait(ahead)
        async for event in super().stream(ask):
            yield event


@pytest.mark.parametrize("keeps", [True, False])
async def test_what_is_kept_answers_a_later_turn(keeps: bool):
    """The model first says something else: the order that was looked up by then is asked for in the next run."""
    speculation, shop = speculating(taught()), Shop(**({"find_order": KEEPS} if keeps else {}))
    conversation, results = known(), ResultCache()
    model = SlowModel(["Ann", "Which of them?", FIRST_ORDER, "It is on its way."])
    clerk_agent = Agent(model, shop.tools, speculation=speculation, results=results)
    await listen(clerk_agent, "And?", conversation=conversation)
    counts = speculation.counts
    assert (counts.num_started, counts.num_hits, counts.num_wasted) == (1, 0, 1)
    speculation.enabled = False
    events = await listen(clerk_agent, "The first.", conversation=conversation)
    assert [event.reused for event in of(CallDispatched, events)] == ["cached" if keeps else ""]
    assert shop.log.count(f"order {ORDERS[0]}") == (1 if keeps else 2)
    assert (counts.num_hits, counts.num_wasted) == ((1, 0) if keeps else (0, 1))


async def test_what_is_kept_is_gone_once_something_was_written():
    speculation, shop = speculating(taught()), Shop(find_order=KEEPS)
    model = SlowModel(["Ann", "Well.", ScriptedCall("cancel_order", order_id=ORDERS[0]), FIRST_ORDER, "Done."])
    clerk_agent, conversation = Agent(model, shop.tools, speculation=speculation), known()
    await listen(clerk_agent, "And?", conversation=conversation)
    speculation.enabled = False
    events = await listen(clerk_agent, "Cancel the first.", conversation=conversation)
    assert [event.reused for event in of(CallDispatched, events)] == ["", ""]
    assert shop.log.count(f"order {ORDERS[0]}") == 2
    assert (speculation.counts.num_hits, speculation.counts.num_wasted) == (0, 1)


async def test_what_is_there_already_is_not_fetched_ahead():
    speculation, shop = speculating(taught()), Shop(find_order=KEEPS)
    clerk_agent = Agent(SlowModel(lambda ask: "Well."), shop.tools, speculation=speculation)
    for _ in range(3):
        conversation = Conversation(session_id="one")
        conversation.add(*clerk(99, ORDERS)[:3])
        await listen(clerk_agent, "And?", conversation=conversation)
    assert shop.log == [f"order {ORDERS[0]}"]
    assert speculation.counts.num_started == 1


@pytest.mark.parametrize(("took_s", "num_started"), [(0.0001, 0), (0.4, 1)])
async def test_a_call_is_risked_only_where_it_saves_enough(took_s: float, num_started: int):
    speculation, shop = speculating(taught(), wasted_call_s=0.1), Shop()
    speculation.predictor.learn_time("find_order", took_s)
    early = speculate(speculation, shop.tools)
    early.begin_turn(clerk(99, ORDERS)[:3], 1)
    await early.close()
    assert speculation.counts.num_started == num_started


async def test_how_long_tools_take_is_learned_from_all_calls_that_worked():
    speculation, shop = speculating(), Shop()
    await listen(agent(SCRIPT, shop, speculation), PROMPT)
    await listen(agent(SCRIPT, shop, speculation), PROMPT)
    known_s = {name: habits.took_s for name, habits in speculation.predictor.tools.items()}
    assert known_s.keys() == {"find_customer", "find_order"}
    assert all(took_s is not None and took_s >= 0 for took_s in known_s.values())


def writes() -> Predictor:
    predictor = Predictor()
    for number in range(30):
        order = f"W{number:03}A1"
        predictor.learn([user(f"cancel {order}"), *step("cancel_order", {"order_id": order}, "done", "x")])
    return predictor


@pytest.mark.parametrize(("thresholds", "num_started"), [({}, 0), ({"next_threshold": 0.5}, 1)])
async def test_what_comes_next_has_a_threshold_of_its_own(thresholds: dict[str, float], num_started: int):
    predictor = Predictor()
    for number in range(40):
        order = f"W{number:03}A1"
        call = step("find_order", {"order_id": order}, "sent", "x") if number % 4 else []
        predictor.learn([user(f"where is {order}"), *call, Message("assistant", "There.")])
    confidence = predictor.predict(History().follow([user("where is W099A1")]))[0].confidence
    assert 0.5 < confidence < 0.9
    speculation = speculating(predictor, threshold=0.9, **thresholds)
    await listen(agent(lambda ask: "There.", Shop(), speculation), "where is W099A1")
    assert speculation.counts.num_started == num_started


async def test_a_tool_that_is_not_read_only_never_runs_ahead():
    speculation, shop = speculating(writes(), threshold=0.01), Shop()
    assert speculation.predictor.predict(History().follow([user("cancel W099A1")]))[0].confidence > 0.8
    events = await listen(agent(lambda ask: "No.", shop, speculation), "cancel W099A1")
    assert not of(CallSpeculated, events)
    assert shop.log == []
    written = await listen(
        agent([ScriptedCall("cancel_order", order_id="W099A1"), "Done."], shop, speculation), "cancel W099A1"
    )
    assert not of(CallSpeculated, written)
    assert shop.log == ["cancel W099A1"]


@settings(max_examples=examples(25))
@given(st.lists(st.sampled_from(["find_customer", "find_order", "cancel_order", "say"]), max_size=6), st.booleans())
def test_never_a_side_effect_that_was_not_asked_for(course: Sequence[str], is_taught: bool):
    """Whatever was learned and whatever the model does: writing tools run as often as they are asked for, no more."""
    values = {"find_customer": "customer_id", "find_order": "order_id", "cancel_order": "order_id"}
    script = [
        ScriptedCall(each, **{values[each]: ORDERS[0]}) if each in values else ScriptedCall("find_order")
        for each in course
    ]

    async def play() -> None:
        predictor = writes() if is_taught else taught(6)
        speculation, shop = speculating(predictor, threshold=0.01, max_waste=100.0, max_concurrent=50), Shop()
        await listen(agent([*script, "Done."], shop, speculation), f"I am ann_lee_1, cancel {ORDERS[0]}")
        writing = [each for each in shop.log if each.startswith("cancel")]
        assert len(writing) == list(course).count("cancel_order")
        told = speculation.counts
        assert told.num_started == told.num_hits + told.num_wasted

    asyncio.run(play())


@pytest.mark.parametrize(
    "options",
    [
        ToolOptions(),
        ToolOptions(idempotent=True),
        ToolOptions(read_only=True, needs_approval=True),
        ToolOptions(read_only=True, max_concurrency=1),
        ToolOptions(read_only=True, cost=0.01),
    ],
    ids=["writes", "idempotent", "needs approval", "few at a time", "costs money"],
)
async def test_what_does_not_run_ahead(options: ToolOptions):
    speculation, shop = speculating(taught()), Shop(find_order=options)
    early = speculate(speculation, shop.tools)
    early.begin_turn(clerk(99, ORDERS)[:3], 1)
    await early.close()
    assert speculation.counts.num_started == 0


async def test_money_is_risked_if_allowed_and_only_so_much():
    speculation = speculating(taught(), max_money=0.025)
    shop = Shop(find_order=ToolOptions(read_only=True, cost=0.01))
    for _ in range(5):
        early = speculate(speculation, shop.tools)
        early.begin_turn(clerk(99, ORDERS)[:3], 1)
        await early.close()
    assert speculation.counts.wasted_money == pytest.approx(0.02)


async def test_waste_has_a_budget():
    speculation, shop = speculating(taught(), max_waste=0.0), Shop()
    for _ in range(20):
        early = speculate(speculation, shop.tools)
        early.begin_turn(clerk(99, ORDERS)[:3], 1)
        await early.close()
    assert speculation.counts.num_wasted == 4


async def test_the_kill_switch():
    speculation, shop = speculating(taught()), Shop()
    speculation.enabled = False
    num_runs = speculation.predictor.num_runs
    events = await listen(agent(SCRIPT, shop, speculation), PROMPT)
    assert not of(CallSpeculated, events)
    assert not any(event.was_speculative for event in of(CallDispatched, events))
    assert speculation.predictor.num_runs == num_runs + 1


async def test_it_learns_while_it_runs():
    speculation = speculating()
    script = [SCRIPT[0], "Hello, Ann."]
    speculative = []
    for _ in range(30):
        events = await listen(agent(script, Shop(), speculation), PROMPT)
        speculative.append(bool(of(CallSpeculated, events)))
    assert not speculative[0]
    assert speculative[-1]


async def test_a_cancelled_run_leaves_nothing_running():
    speculation, shop = speculating(taught()), Shop()
    shop.gates["customer ann_lee_1099"] = asyncio.Event()
    events = agent(SCRIPT, shop, speculation).stream(PROMPT)
    async for event in events:
        if isinstance(event, CallDispatched):
            break
    await events.aclose()
    assert shop.cancelled == ["customer ann_lee_1099"]
    assert len(asyncio.all_tasks()) == 1


async def test_a_failure_ahead_of_time_is_a_result_like_any_other():
    async def find_customer(customer_id: str) -> str:
        raise ValueError(customer_id)

    speculation = speculating(taught())
    options = ToolOptions(read_only=True, timeout_s=None)
    tools = [FunctionTool(find_customer, options=options)]
    events = await listen(Agent(ScriptedModel([SCRIPT[0], "Sorry."]), tools, speculation=speculation), PROMPT)
    (finished,) = of(CallFinished, events)
    assert finished.is_error
    assert "ann_lee_1099" in finished.result
    assert len(of(TurnFinished, events)) == 2


async def test_what_was_learned_is_kept(tmp_path: Path):
    path = tmp_path / "speculation.json"
    speculation = speculating(path=path)
    await listen(agent(SCRIPT, Shop(), speculation), PROMPT)
    assert load_predictor(path).num_runs == 1
    assert SpeculativeTools(path=path).predictor.num_runs == 1


async def test_a_damaged_file_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "speculation.json"
    path.write_text("{")
    with caplog.at_level(logging.WARNING):
        assert SpeculativeTools(path=path).predictor.num_runs == 0
    assert "starting without learned patterns" in caplog.text


async def test_a_file_that_cannot_be_written_ends_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "file").write_text("")
    speculation = speculating(path=tmp_path / "file" / "speculation.json")
    with caplog.at_level(logging.WARNING):
        events = await listen(agent(["Hello."], Shop(), speculation), "hi")
    assert end_of(events).end == "done"
    assert "cannot be saved" in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [
        {"threshold": 0},
        {"threshold": 1.5},
        {"next_threshold": 0},
        {"max_waste": -1},
        {"max_concurrent": 0},
        {"wasted_call_s": math.nan},
    ],
)
def test_wrong_settings_are_said(wrong: dict[str, float]):
    with pytest.raises(ConfigError, match="must be"):
        SpeculativeTools(**wrong)  # type: ignore[arg-type]
