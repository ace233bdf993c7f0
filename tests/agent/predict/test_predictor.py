"""The predictor: what it learns, how sure it is, and that it stays small whatever it is told."""

import json
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.predict.talks import asks, clerk, gets, step, user
from tests.properties import examples

from hotloop.agent.predict.habits import MAX_RECIPES, MIN_RUNS
from hotloop.agent.predict.history import History
from hotloop.agent.predict.predictor import MAX_TOOLS, Prediction, Predictor, load_predictor, save_predictor
from hotloop.core.message import Message, ToolCall


def taught(num_runs: int = 30) -> Predictor:
    predictor = Predictor()
    for number in range(num_runs):
        predictor.learn(clerk(number))
    return predictor


def best(predictor: Predictor, messages: list[Message], named: str | None = None) -> tuple[str, dict[str, object]]:
    prediction = predictor.predict(History().follow(messages), named)[0]
    assert prediction.confidence >= 0.8
    return prediction.name, prediction.arguments


def guess(predictor: Predictor, messages: list[Message], named: str | None = None) -> list[Prediction]:
    return predictor.predict(History().follow(messages), named)


@pytest.mark.parametrize(
    "bait",
    ["https://evil.example/?q=1", "/etc/passwd", "../../.env", "rm -rf /", "reboot", "W099A0", 1099, 10.5],
)
def test_what_only_a_result_has_said_is_never_an_argument(bait: str | int | float):
    """Whoever writes what a tool reads must not choose a call: not its address, its path, its command, nor its id."""
    predictor = Predictor()

    def talk(number: int, link: str | int | float) -> list[Message]:
        found = step("search", {"words": "news"}, {"first": link}, "s")
        return [user("what is new?"), *found, *step("read", {"what": link}, "much", "r"), Message("assistant", "Much.")]

    for number in range(40):
        predictor.learn(talk(number, f"https://news.example/{number}" if isinstance(bait, str) else number))
    hooked = talk(99, bait)[:3]
    for named in (None, "read"):
        assert not [each for each in guess(predictor, hooked, named) if bait in each.arguments.values()]
    for used in (
        [*hooked, Message("assistant", f"There is '{bait}'."), user("read it")],
        [*hooked, asks(("open", {"at": [bait]})), gets("opened")],
        [user(f"What is '{bait}'?"), *hooked[1:]],
    ):
        assert {"what": bait} in [each.arguments for each in guess(predictor, used, "read")]


def test_a_part_of_what_the_model_has_used_is_another_value():
    history = History().follow(
        [asks(("open", {"at": "https://a.example/b?c=d"})), Message("assistant", "See a.example/b.")]
    )
    assert history.has_used("https://a.example/b?c=d")
    assert history.has_used("a.example/b")
    for other in ("https://a.example/b", "https://a.example", "a.example", "b"):
        assert not history.has_used(other)


def test_a_value_comes_from_the_users_words():
    assert best(taught(), clerk(99)[:1]) == ("find_customer", {"customer_id": "ann_lee_1099"})


@pytest.mark.parametrize("length", [3, 5, 7])
def test_the_items_of_a_list_come_in_turn(length: int):
    order = f"W099A{(length - 3) // 2}"
    assert best(taught(), clerk(99)[:length]) == ("find_order", {"order_id": order})


def test_after_the_last_item_nothing_is_expected():
    predictions = taught().predict(History().follow(clerk(99)[:9]))
    assert all(prediction.confidence < 0.5 for prediction in predictions)


def test_once_a_tool_is_named_only_its_arguments_are_guessed():
    predictor = taught()
    assert best(predictor, clerk(99)[:3], named="find_order") == ("find_order", {"order_id": "W099A0"})
    assert predictor.predict(History().follow(clerk(99)[:3]), named="no such tool") == []


def test_arguments_are_copied_from_earlier_calls_and_taken_from_plain_text():
    predictor = Predictor()

    def talk(number: int) -> list[Message]:
        first = step("search", {"place": f"P{number}X", "day": number}, f"Nothing, see HTL{100 + number}.", "a")
        second = step("search_more", {"place": f"P{number}X", "day": number}, "none", "b")
        return [user("find me a room"), *first, *second, *step("hotel", {"id": f"HTL{100 + number}"}, "full", "c")]

    for number in range(30):
        predictor.learn(talk(number))
    assert best(predictor, talk(77)[:3]) == ("search_more", {"place": "P77X", "day": 77})
    said = [*talk(77)[:5], Message("assistant", "HTL177 is left."), user("Then that.")]
    assert ("hotel", {"id": "HTL177"}) in [(each.name, each.arguments) for each in guess(predictor, said)]


def test_calls_of_one_turn_are_all_speculative():
    predictor = Predictor()

    def talk(number: int) -> list[Message]:
        ids = [f"N{number:02}{letter}" for letter in "AB"]
        return [
            user(f"read {' and '.join(ids)}"),
            *step("list_ids", {}, {"ids": ids}, "l"),
            asks(*(("read", {"id": each}) for each in ids), salt="r"),
            gets("x", "r", 0),
            gets("y", "r", 1),
            Message("assistant", "done"),
        ]

    for number in range(40):
        predictor.learn(talk(number))
    sure = [each for each in predictor.predict(History().follow(talk(77)[:3])) if each.confidence >= 0.8]
    assert [each.arguments for each in sure] == [{"id": "N77A"}, {"id": "N77B"}]
    opened = History().follow(talk(77)[:3]).after(ToolCall("", "read", '{"id": "N77A"}'))
    assert predictor.predict(opened, named="read")[0].arguments == {"id": "N77B"}


def test_a_failure_is_something_else_than_a_result():
    predictor = Predictor()
    for number in range(40):
        outcome = "Error: no such thing" if number % 2 else "fine"
        more = step("explain", {}, "because", "e") if number % 2 else []
        predictor.learn([user("go"), *step("do", {}, outcome, "d"), *more, Message("assistant", "done")])
    assert best(predictor, [user("go"), *step("do", {}, "Error: other", "d")])[0] == "explain"
    calm = predictor.predict(History().follow([user("go"), *step("do", {}, "fine", "d")]))
    assert all(each.confidence < 0.5 for each in calm)


def test_a_confidence_is_what_it_says():
    """A world of chance: of the calls speculative with some confidence, about as many come."""
    chance, predictor = random.Random(1), Predictor()
    promised: list[tuple[float, bool]] = []
    for number in range(400):
        talk = [user(f"I am ann_lee_{number}")]
        answer = asks(("find", {"who": f"ann_lee_{number}"})) if chance.random() < 0.7 else Message("assistant", "?")
        key = f'find{{"who":"ann_lee_{number}"}}' if answer.tool_calls else None
        if number >= 100:
            promised += [(each.confidence, each.key == key) for each in predictor.predict(History().follow(talk))]
        predictor.learn([*talk, answer])
    likely = [hit for confidence, hit in promised if confidence > 0.5]
    assert 0.6 < sum(likely) / len(likely) < 0.8
    assert not [confidence for confidence, _ in promised if confidence > 0.9]


def test_a_value_is_kept_once_several_runs_had_it():
    predictor = Predictor()
    for _ in range(MIN_RUNS - 1):
        predictor.learn([user("please"), asks(("find", {"unit": "celsius"}))])
    predictor.learn([user("please"), asks(("find", {"unit": "kelvin"}))])
    assert b"celsius" not in msgspec.json.encode(predictor)
    predictor.learn([user("please"), asks(("find", {"unit": "celsius"}))])
    assert b"celsius" in msgspec.json.encode(predictor)
    assert b"kelvin" not in msgspec.json.encode(predictor)


@pytest.mark.parametrize(
    "value", ["ann_lee_1099", "card-17", "a@b.example", "1990-04-05", "Ann Lee", 74471234, 12.5, ["x"]]
)
def test_what_looks_like_somebodys_is_never_kept(value: object):
    predictor = Predictor()
    for _ in range(MIN_RUNS * 3):
        predictor.learn([user("please"), asks(("find", {"who": value}))])
    assert json.dumps(value).strip('"[]') not in json.dumps(json.loads(msgspec.json.encode(predictor))["tools"])


def test_what_was_said_before_is_no_constant():
    predictor = Predictor()
    for _ in range(MIN_RUNS * 3):
        predictor.learn([user("I am 'ann'"), asks(("find", {"who": "ann"}))])
    assert b"ann" not in msgspec.json.encode(predictor)


def test_nothing_that_was_said_is_kept():
    kept = msgspec.json.encode(taught()).decode()
    for word in ("ann_lee", "W001A", "Where", "sent", "Ann"):
        assert word not in kept


def test_the_same_runs_teach_the_same():
    assert msgspec.json.encode(taught(8)) == msgspec.json.encode(taught(8))


@settings(max_examples=examples(5))
@given(st.randoms(use_true_random=False))
def test_memory_is_bounded_whatever_is_called(chance: random.Random):
    predictor = Predictor()
    for number in range(MAX_TOOLS + 8):
        arguments = {
            f"a{chance.randrange(40)}": chance.choice([chance.random(), "x" * 300, "Z9ABCD", 1]) for _ in "abc"
        }
        result = {"ids": ["Z9ABCD", 1], "deep": {f"k{chance.randrange(9)}": "Z9ABCD"}}
        predictor.learn([user("Z9ABCD 1"), *step(f"tool{number}", {}, result, "a"), *step("t", arguments, result, "b")])
    assert len(predictor.tools) <= MAX_TOOLS
    assert all(len(habits.recipes) <= MAX_RECIPES for habits in predictor.tools.values())
    written = msgspec.json.encode(predictor)
    assert len(written) < 2_000_000
    assert msgspec.json.encode(msgspec.json.decode(written, type=Predictor)) == written


@settings(max_examples=examples(25))
@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool", "system"]), st.text(max_size=30)), max_size=12))
def test_any_conversation_can_be_learned_from(turns: list[tuple[str, str]]):
    predictor = Predictor()
    messages = [
        Message(role, text, tool_calls=(ToolCall(text, text, text),) if role == "assistant" else (), tool_call_id=text)
        for role, text in turns
    ]
    for _ in range(3):
        predictor.learn(messages)
    assert all(0 <= each.confidence <= 1 for each in predictor.predict(History().follow(messages)))


def test_hostile_results_and_arguments_do_no_harm():
    predictor = Predictor()
    nested = "[" * 50_000 + "]" * 50_000
    for number in range(4):
        call = Message("assistant", tool_calls=(ToolCall("x", "read", f'{{"a": {nested}}}'),))
        many = asks(("read", {f"k{i}": i for i in range(500)}), salt="m")
        predictor.learn(
            [user("q" * 1_000_000), call, gets(nested, "x"), many, gets("y" * 2_000_000, "m"), *clerk(number)]
        )
    assert len(msgspec.json.encode(predictor)) < 100_000


def test_a_history_that_was_rewritten_is_read_anew():
    talk = clerk(1)
    history = History().follow(talk)
    history.follow([user("summary: ann_lee_1001"), *talk[3:5]])
    assert history.trail == ["user", "find_order"]
    assert len(history.calls) == 1


def test_patterns_are_for_people():
    found = taught().patterns()
    assert json.dumps([pattern.arguments for pattern in found])
    assert any(
        pattern.tool == "find_order"
        and pattern.arguments == {"order_id": "find_customer → orders[*]"}
        and pattern.after.endswith("after find_customer")
        and pattern.hit_rate > 0.9
        for pattern in found
    )


def test_what_a_hit_saves_is_what_the_tool_takes_as_far_as_the_model_still_writes():
    predictor = taught()
    history = History().follow(clerk(99)[:1])
    (unknown, *_) = predictor.predict(history)
    assert 0.4 < unknown.hidden_s < 0.7
    (named,) = predictor.predict(history, named=unknown.name)
    assert named.hidden_s < 0.3
    predictor.learn_time(unknown.name, 0.05)
    assert predictor.predict(history)[0].hidden_s == predictor.predict(history, named=unknown.name)[0].hidden_s == 0.05
    for _ in range(40):
        predictor.learn_time(unknown.name, 9.0)
        predictor.learn_pace(3.0, 10, 1.0)
    assert 3.0 < predictor.predict(history)[0].hidden_s < 9.0


def test_a_prediction_is_worth_a_call_if_it_saves_more_than_it_wastes():
    sure, unsure = (Prediction("f", {}, "f{}", chance, chance, hidden_s=0.4) for chance in (0.6, 0.3))
    assert sure.is_worth(0.2)
    assert not unsure.is_worth(0.2)
    assert unsure.is_worth(0.0)


@pytest.mark.parametrize("seen", [-1.0, 1e300])
def test_times_that_cannot_be_are_bounded_and_kept(seen: float, tmp_path: Path):
    predictor = taught()
    predictor.learn_time("find_customer", seen)
    predictor.learn_pace(seen, 1, seen)
    predictor.learn_time("nobody", 1.0)
    save_predictor(predictor, tmp_path / "learned.json")
    assert load_predictor(tmp_path / "learned.json") == predictor


def test_what_the_user_has_just_given_tells_what_comes_next():
    """Who names an order is asked for nothing more; who names only himself is."""
    predictor = Predictor()
    for number in range(40):
        order = f"W{number:03}A1"
        if number % 2:
            talk = [user(f"I am ann_lee_{number}."), *step("find_customer", {"id": f"ann_lee_{number}"}, "Ann", "a")]
        else:
            ask = user(f"I am ann_lee_{number}, and it is about {order}.")
            talk = [ask, *step("find_order", {"id": order}, "sent", "a")]
        predictor.learn(talk)
    (alone, *_) = predictor.predict(History().follow([user("I am ann_lee_99.")]))
    (both, *_) = predictor.predict(History().follow([user("I am ann_lee_99, and it is about W099A1.")]))
    assert (alone.name, both.name) == ("find_customer", "find_order")
    assert min(alone.confidence, both.confidence) > 0.8
