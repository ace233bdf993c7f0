"""Of several that were asked for one answer: whose tokens it has, and which are lost."""

from msgspec.structs import replace
from tests.trace.spans import a_request, span

from hotloop.trace import names
from hotloop.trace.ledger import TokenCounts, build_ledger


def test_a_request_that_was_asked_twice_is_counted_by_who_answered():
    chat = span(names.CHAT, 0, 60, model="m")
    lost = a_request(1, 30, chat)
    lost[0] = replace(lost[0], error="abort")
    ledger = build_ledger([chat, *lost, *a_request(2, 50, chat)])
    assert ledger.tokens.prompt == ledger.lost.prompt == ledger.turns[0].lost.prompt == 100


def test_what_a_cascade_asked_besides_is_no_part_of_the_answer():
    chat = span(names.CHAT, 0, 60, model="m", answer_id="good", num_prompt=100)
    requests = [a_request(1, 20, chat), a_request(22, 50, chat)]
    for each, answer_id in zip(requests, ("other", "good"), strict=True):
        each[0] = replace(each[0], attributes={**each[0].attributes, names.ANSWER_ID: answer_id})
    ledger = build_ledger([chat, *requests[0], *requests[1]])
    assert (ledger.tokens.prompt, ledger.lost.prompt) == (100, 100)


def test_an_id_that_a_router_translated_is_the_same_answer():
    chat = span(names.CHAT, 0, 60, model="m", answer_id="msg_good", num_prompt=100)
    requests = [a_request(1, 20, chat, answer_id="chatcmpl-bad"), a_request(22, 50, chat, answer_id="chatcmpl-good")]
    ledger = build_ledger([chat, *requests[0], *requests[1]])
    assert (ledger.tokens.prompt, ledger.lost.prompt) == (100, 100)


def test_where_anothers_model_answers_after_ours_was_asked_ours_is_lost():
    chat = span(names.CHAT, 0, 60, model="m", answer_id="msg_theirs", num_prompt=700, num_cached=600, num_output=9)
    ledger = build_ledger([chat, *a_request(1, 20, chat, answer_id="chatcmpl-ours")])
    assert (ledger.tokens.prompt, ledger.tokens.cached, ledger.tokens.output) == (700, 600, 9)
    assert (ledger.lost.prompt, ledger.lost.output) == (100, 20)


def test_an_answer_that_somebody_between_has_renamed_is_still_ours():
    chat = span(names.CHAT, 0, 60, model="m", answer_id="gen-1", num_prompt=100, num_output=20)
    ledger = build_ledger([chat, *a_request(1, 20, chat, answer_id="chatcmpl-ours")])
    assert (ledger.tokens.prompt, ledger.tokens.recomputed, ledger.lost) == (100, 10, TokenCounts())


def test_what_was_asked_and_not_waited_for_is_lost():
    run = span(names.RUN, 0, 60, end="cancelled", error="the run was cancelled")
    turn = span(names.TURN, 0, 60, run, error="the run was cancelled")
    chat = span(names.CHAT, 0, 60, turn, model="m", error="broken off")
    ledger = build_ledger([run, turn, chat, *a_request(1, 50, chat)])
    assert ledger.tokens == ledger.turns[0].tokens == TokenCounts()
    assert ledger.lost == ledger.turns[0].lost
    assert ledger.lost.prompt == 100


def test_where_the_client_was_told_nothing_the_router_tells():
    chat = span(names.CHAT, 0, 60, model="m")
    route = span(names.ROUTE, 5, 55, chat, service="router", num_prompt=700, num_cached=600, num_output=9)
    ledger = build_ledger([chat, route])
    assert (ledger.tokens.prompt, ledger.tokens.cached, ledger.tokens.output) == (700, 600, 9)
