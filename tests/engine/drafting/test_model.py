import math
import random
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backends.device import NullDevice
from tests.engine.tiny import BLOCK_SIZE, EOS_ID, TOKENIZER, VOCAB_SIZE, byte_tokenizer, make_request
from tests.properties import examples

from hotloop.backends.backend import Batch
from hotloop.core.errors import BackendError, ModelError
from hotloop.core.request import Request
from hotloop.engine.drafting.drafter import Drafter, DraftRequest, EitherDrafter
from hotloop.engine.drafting.history import PastDrafter
from hotloop.engine.drafting.model import MAX_TAIL, ModelDrafter, check_same_vocabulary
from hotloop.models.tokenizer import Tokenizer

PROMPT = [*b"a prompt of more than one block"]


def make_drafter(num_blocks: int = 64, **settings: Any) -> tuple[ModelDrafter, list[Batch]]:
    batches: list[Batch] = []
    changes = {name: settings.pop(name) for name in ("max_context",) if name in settings}
    backend = NullDevice(
        block_size=BLOCK_SIZE, num_blocks=num_blocks, vocab_size=VOCAB_SIZE, on_run=batches.append, **changes
    )
    return ModelDrafter(backend, TOKENIZER, **settings), batches


def continuation(token_ids: Iterable[int], count: int) -> list[int]:
    """What the null backend's model says, worked out by itself."""
    tokens = [*token_ids]
    begin = len(tokens)
    while len(tokens) < begin + count and (len(tokens) == begin or tokens[-1] != EOS_ID):
        seen = range(max(0, len(tokens) - NullDevice.WINDOW), len(tokens))
        tokens.append(sum(tokens[i] * (i * 31 + 7) for i in seen) % VOCAB_SIZE)
    return tokens[begin:]


def propose(drafter: Drafter, wants: Sequence[DraftRequest]) -> list[list[int]]:
    return [proposal.token_ids for proposal in drafter.propose(wants)]


def want(request: Request, max_tokens: int = 4, drafted: Iterable[int] = ()) -> DraftRequest:
    return DraftRequest(request, request.token_ids + array("i", drafted), max_tokens, max_tokens)


def test_it_drafts_what_its_model_would_say() -> None:
    drafter, _ = make_drafter()
    request = make_request(PROMPT)
    assert propose(drafter, [want(request)]) == [continuation(PROMPT, 4)]


def test_it_takes_no_more_steps_than_are_worth_their_time() -> None:
    drafter, batches = make_drafter()
    request = make_request(PROMPT)
    assert propose(drafter, [DraftRequest(request, request.token_ids, 4, 0)]) == [[]]
    assert not batches
    drafter.check()
    assert propose(drafter, [DraftRequest(request, request.token_ids, 4, 2)]) == [continuation(PROMPT, 2)]
    assert [len(batch.token_ids) for batch in batches] == [len(PROMPT), 1]


def test_it_knows_what_its_drafts_take() -> None:
    """A step takes a second, and a tenth for each token."""
    now = 0.0

    def run(batch: Batch) -> None:
        nonlocal now
        now += 1 + 0.1 * len(batch.token_ids)

    backend = NullDevice(block_size=BLOCK_SIZE, vocab_size=VOCAB_SIZE, max_context=50, on_run=run)
    drafter = ModelDrafter(backend, TOKENIZER, max_read_tokens=16, clock=lambda: now)
    request, other = make_request(PROMPT[:16]), make_request(PROMPT[:20], "other")
    assert (drafter.step_s(1), drafter.read_s(request)) == (0.0, 0.0), "nothing is known yet"
    propose(drafter, [want(request)])
    assert drafter.step_s(1) == pytest.approx(1.1)
    assert drafter.read_s(request) == pytest.approx(0.0)
    assert drafter.read_s(other) == pytest.approx(2.6 + 1.4 - 1.1, rel=0.1), "in two pieces"
    drafter.learn(request)
    assert drafter.read_s(other) == pytest.approx(1.8 - 1.1), "most of it is known now"
    assert drafter.read_s(make_request([1] * 50)) == math.inf, "there is no room for it"
    drafter.has_failed = True
    assert drafter.read_s(request) == math.inf


def test_it_knows_how_often_it_is_sure() -> None:
    for least_chance, is_sure in ((0.0, True), (0.999, False)):
        drafter, _ = make_drafter(least_chance=least_chance)
        before = drafter.sure
        propose(drafter, [want(make_request(PROMPT))])
        assert (drafter.sure > before) == is_sure


def test_it_follows_whatever_the_request_became() -> None:
    drafter, batches = make_drafter()
    request = make_request(PROMPT)
    [proposal] = propose(drafter, [want(request)])
    request.token_ids.extend([proposal[0], proposal[1] ^ 1])  # one was right, the next was not
    batches.clear()
    assert propose(drafter, [want(request)]) == [continuation(request.token_ids, 4)]
    assert [len(batch.token_ids) for batch in batches] == [1, 1, 1, 1]  # what was right is not recomputed
    drafter.check()


def test_it_continues_what_is_drafted_already() -> None:
    drafter, _ = make_drafter()
    request = make_request(PROMPT)
    assert propose(drafter, [want(request, 4, [1, 2, 3])]) == [continuation([*PROMPT, 1, 2, 3], 4)]
    assert propose(drafter, [want(request)]) == [continuation(PROMPT, 4)]
    drafter.check()


def test_all_requests_take_each_step_together() -> None:
    drafter, batches = make_drafter()
    requests = [make_request(prompt) for prompt in (PROMPT, PROMPT[:5], PROMPT[3:])]
    proposals = propose(drafter, [want(request, i + 2) for i, request in enumerate(requests)])
    assert proposals == [continuation(request.token_ids, i + 2) for i, request in enumerate(requests)]
    assert [len(batch.past_lens) for batch in batches] == [3, 3, 2, 1]


def test_a_long_prompt_is_read_in_pieces() -> None:
    drafter, batches = make_drafter(max_read_tokens=10)
    request, other = make_request(PROMPT), make_request([1, 2, 3])
    proposals = []
    while not proposals or not proposals[-1]:
        proposal, small = propose(drafter, [want(request, 1), want(other, 1)])
        assert small == continuation(other.token_ids, 1)  # who lacks little waits for nobody
        proposals.append(proposal)
    assert len(proposals) == 4
    assert proposals[-1] == continuation(PROMPT, 1)
    assert max(len(batch.token_ids) for batch in batches) <= 10 + 3


def test_the_next_turn_reads_only_what_is_new() -> None:
    drafter, batches = make_drafter()
    first = make_request(PROMPT)
    [proposal] = propose(drafter, [want(first)])
    first.token_ids.extend(proposal)
    drafter.learn(first)
    drafter.check()
    batches.clear()
    second = make_request([*first.token_ids, *b" more"])
    assert propose(drafter, [want(second, 1)]) == [continuation(second.token_ids, 1)]
    assert len(batches[0].token_ids) <= BLOCK_SIZE + len(b" more")


def test_another_salt_reads_all_of_it_again() -> None:
    drafter, batches = make_drafter()
    for salt, num_read in (("a", len(PROMPT)), ("b", len(PROMPT)), ("a", BLOCK_SIZE)):
        batches.clear()
        request = make_request(PROMPT, f"{salt}{num_read}", salt=salt)
        propose(drafter, [want(request, 1)])
        assert len(batches[0].token_ids) <= num_read
        assert (len(batches[0].token_ids) == len(PROMPT)) == (num_read == len(PROMPT))
        drafter.learn(request)
        drafter.check()


def test_one_reads_a_prompt_that_many_have() -> None:
    drafter, batches = make_drafter(max_read_tokens=8)
    requests = [make_request([*PROMPT, i]) for i in range(4)]
    wants = [want(request, 1) for request in requests]
    while not all(proposals := propose(drafter, wants)):
        drafter.check()
    assert proposals == [continuation(request.token_ids, 1) for request in requests]
    assert sum(len(batch.token_ids) for batch in batches) < 2 * len(PROMPT) + 4 * 4 * BLOCK_SIZE


def test_without_blocks_it_drafts_nothing_and_others_still_do() -> None:
    drafter, _ = make_drafter(num_blocks=3)
    small, large = make_request([1, 2, 3]), make_request(PROMPT)
    assert propose(drafter, [want(large), want(small)]) == [[], continuation([1, 2, 3], 4)]
    drafter.check()


def test_who_is_not_asked_for_makes_room() -> None:
    drafter, _ = make_drafter(num_blocks=9)
    for prompt in (PROMPT, [*reversed(PROMPT)], PROMPT[1:]):
        assert propose(drafter, [want(make_request(prompt), 1)]) == [continuation(prompt, 1)]
        drafter.check()


def test_it_stops_after_the_end_of_a_turn() -> None:
    drafter, _ = make_drafter()
    prompts = ([a, b, 3] for a in range(16) for b in range(250))
    prompt = next(prompt for prompt in prompts if continuation(prompt, 2)[-1] == EOS_ID)
    [proposal] = propose(drafter, [want(make_request(prompt), 6)])
    assert proposal == continuation(prompt, 2)


def test_it_does_not_draft_what_it_is_not_sure_of() -> None:
    drafter, batches = make_drafter(least_chance=0.999)
    assert propose(drafter, [want(make_request(PROMPT))]) == [[]]
    assert len(batches) == 1


def test_what_it_cannot_read_it_does_not_draft_for() -> None:
    drafter, batches = make_drafter(max_context=40)
    assert propose(drafter, [want(make_request([1] * 37)), want(make_request([VOCAB_SIZE]))]) == [[], []]
    assert not batches


def test_a_failure_ends_the_drafting_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    def fail(batch: Batch) -> None:
        raise BackendError("the hardware is gone")

    backend = NullDevice(block_size=BLOCK_SIZE, vocab_size=VOCAB_SIZE, on_run=fail)
    drafter = ModelDrafter(backend, TOKENIZER)
    request = make_request(PROMPT)
    assert propose(drafter, [want(request)]) == propose(drafter, [want(request)]) == [[]]
    assert caplog.messages == ["the draft model failed and is disabled: the hardware is gone"]
    drafter.learn(request)
    drafter.close()


@settings(max_examples=examples(60))
@given(st.integers(0, 10_000))
def test_every_draft_is_its_models_own_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    drafter, _ = make_drafter(num_blocks=rng.choice([8, 20, 64]), max_read_tokens=rng.choice([4, 12, 100]))
    trunk = [rng.randrange(250) for _ in range(20)]
    requests: list[Request] = []
    for _ in range(30):
        if len(requests) < 4:
            prompt = trunk[: rng.randrange(21)] + [rng.randrange(250) for _ in range(rng.randrange(1, 9))]
            requests.append(make_request(prompt))
        asked = rng.sample(requests, rng.randrange(len(requests) + 1))
        wants = [want(request, rng.randrange(1, 6), rng.choices(range(250), k=rng.randrange(3))) for request in asked]
        for request, one, proposal in zip(asked, wants, propose(drafter, wants), strict=True):
            assert proposal == continuation(one.token_ids, one.max_tokens)[: len(proposal)]
            wrong = [rng.randrange(250)]
            request.token_ids.extend(rng.choice([wrong, proposal, proposal + wrong, proposal[:2] + wrong]) or wrong)
        drafter.check()
        if rng.random() < 0.3:
            drafter.learn(requests.pop(rng.randrange(len(requests))))
            drafter.check()
    for request in requests:
        drafter.learn(request)
    drafter.check()
    assert drafter._pool.num_used == 0


def test_a_second_drafter_is_asked_where_the_first_has_no_draft() -> None:
    model, batches = make_drafter()
    both = EitherDrafter(PastDrafter(TOKENIZER, VOCAB_SIZE, 100), model)
    repeating, new = make_request([1, 2, 3, 1]), make_request([1, 2, 3])
    assert propose(both, [want(repeating, 1), want(new, 1)]) == [[2], continuation([1, 2, 3], 1)]
    assert propose(both, [want(repeating, 1)]) == [[2]]
    assert len(batches) == 1
    both.learn(new)
    model.check()
    both.close()


def grown(num_tokens: int, prefix: str = "extra") -> Tokenizer:
    tokenizer = byte_tokenizer()
    tokenizer._inner.add_special_tokens([f"<|{prefix}_{i}|>" for i in range(num_tokens)])
    return Tokenizer(tokenizer._inner)


def test_the_same_vocabulary_will_do_and_a_few_more_tokens_at_its_end() -> None:
    check_same_vocabulary(TOKENIZER, byte_tokenizer())
    check_same_vocabulary(TOKENIZER, grown(3))
    check_same_vocabulary(grown(MAX_TAIL), TOKENIZER)


def test_another_vocabulary_is_refused_in_one_line() -> None:
    with pytest.raises(ModelError, match=r"the draft model has 1283 tokens and the model 258"):
        check_same_vocabulary(TOKENIZER, grown(MAX_TAIL + 1))
    with pytest.raises(ModelError, match=r"the draft model's token 258 is '<\|b_0\|>' and the model's is '<\|a_0\|>'"):
        check_same_vocabulary(grown(2, "a"), grown(2, "b"))
