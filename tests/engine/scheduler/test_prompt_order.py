"""Long prompts, short ones and those who write in one step: who reads how much of it."""

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.engine.tiny import BLOCK_SIZE
from tests.engine.turning import Loop, make_scheduler, prompt

from hotloop.core.request import Request
from hotloop.engine.scheduler.prefill_budget import MOMENT_S, NOBODY_DECODES, PrefillBudget
from hotloop.engine.scheduler.prompt_order import SHARE
from hotloop.engine.step import Step


def steps_until_prefilled(loop: Loop, *requests: Request) -> list[int]:
    """After how many steps each has its first token."""
    found: dict[str, int] = {}
    num_steps = 0
    while len(found) < len(requests):
        num_steps += 1
        loop.step()
        found |= {each.id: num_steps for each in requests if each.num_output and each.id not in found}
    return [found[each.id] for each in requests]


def add_later(loop: Loop, name: str, token_ids: list[int]) -> Request:
    """One who comes after those before."""
    loop.now += 1e-6
    return loop.add(name, token_ids)


def timed_step(loop: Loop, plain_s: float, token_s: float, pair_s: float = 0.0) -> Step:
    """A step that takes so long, and longer for each token that is prefilled, and for each before that."""
    step = loop.scheduler.schedule(loop.now)
    prefills = (part for part in step.slices if part.num_tokens > 1)
    took_s = plain_s + sum(
        part.num_tokens * (token_s + pair_s * (part.begin + part.num_tokens / 2)) for part in prefills
    )
    loop.now += took_s
    loop.compute(step, took_s)
    return step


def num_prefilled(step: Step) -> int:
    return sum(part.num_tokens for part in step.slices if part.num_tokens > 1)


def cpu() -> Loop:
    """One on which a prompt of 100 tokens takes 0.2 s, and that has decoded before."""
    loop = Loop(make_scheduler(num_blocks=4096, max_step_tokens=512, max_solo_prefill=16.0))
    ttft_s(loop, loop.add("first", prompt(8, 90_000)))
    return loop


def ttft_s(loop: Loop, request: Request) -> float:
    """From now until its first token; it has two, and ends."""
    began_at, first_at = loop.now, 0.0
    while request.num_output < 2:
        timed_step(loop, 0.008, 0.002, 1.3e-6)
        first_at = first_at or (loop.now if request.num_output else 0.0)
    loop.finish(request)
    return first_at - began_at


def test_a_short_prompt_does_not_wait_for_long_ones_and_hardly_slows_them() -> None:
    def long_alone() -> list[int]:
        loop = Loop(make_scheduler(num_blocks=512, max_step_tokens=40))
        return steps_until_prefilled(loop, *(loop.add(f"long{i}", prompt(400, 1000 * i)) for i in range(3)))

    loop = Loop(make_scheduler(num_blocks=512, max_step_tokens=40))
    long = [loop.add(f"long{i}", prompt(400, 1000 * i)) for i in range(3)]
    loop.step()
    short = [loop.add(f"short{i}", prompt(7, 5000 + 100 * i)) for i in range(4)]
    num_steps = steps_until_prefilled(loop, *short, *long)
    assert max(num_steps[:4]) <= 5
    assert all(with_ + 1 <= 1.25 * alone + 1 for with_, alone in zip(num_steps[4:], long_alone(), strict=True))


def test_a_long_prompt_is_slowed_by_a_bounded_share_however_many_short_ones_come() -> None:
    loop = Loop(make_scheduler(num_blocks=2048, max_step_tokens=40))
    long = loop.add("long", prompt(400))
    for i in range(250):
        loop.add(f"short{i}", prompt(6, 5000 + 100 * i))
    num_prefilled = 0
    while not long.num_output:
        step = loop.step()
        num_prefilled += sum(end - begin for begin, end in step.values() if end - begin > 1)
        saved_up = 40
        assert long.num_computed >= min(400, (1 - SHARE) * (num_prefilled - saved_up) - 2 * BLOCK_SIZE)


def test_one_who_lacks_little_is_read_at_once_by_what_was_saved_up() -> None:
    loop = Loop(make_scheduler(num_blocks=512, max_step_tokens=40))
    for i in range(3):
        loop.add(f"long{i}", prompt(400, 1000 * i))
    loop.step()
    loop.add("short", prompt(19, 9000))
    assert loop.step()["short"] == (0, 19)


def test_the_rest_of_a_prompt_has_no_step_of_its_own_where_many_wait_behind_it() -> None:
    """A step more makes all of them wait as long as one that decodes; one request gains what is left of its own."""
    loop = Loop(make_scheduler(num_blocks=8192, max_step_tokens=800, max_running=64))
    writes = loop.add("writes", prompt(8, 900_000))
    for _ in range(20):
        timed_step(loop, 0.01, 0.0001)
    loop.finish(writes)
    asked = [loop.add(f"p{i}", prompt(300, 1000 * i)) for i in range(60)]
    sizes = [num_prefilled(timed_step(loop, 0.01, 0.0001)) for _ in range(8)]
    assert any(0 < each.num_uncomputed < 300 for each in asked), "steps end within prompts"
    assert min(sizes[1:]) > 300


class Asked(PrefillBudget):
    """Remembers how many short prompts, and how many behind them, it was asked to weigh."""

    weighed: tuple[int, int] | None = None

    def is_worth_a_step(self, request: Request, num_left: int, num_short: int, num_behind: int) -> bool:
        self.weighed = num_short, num_behind
        return super().is_worth_a_step(request, num_left, num_short, num_behind)


@pytest.mark.parametrize(("lengths", "weighed"), [((4, 6, 200, 300, 400), (2, 3)), ((4, 9), (1, 1)), ((4, 8), None)])
def test_first_tokens_are_weighed_against_prompts_behind_them_that_lack_more_than_twice_as_much(
    lengths: tuple[int, ...], weighed: tuple[int, int] | None
) -> None:
    loop = Loop(make_scheduler(num_blocks=512, max_step_tokens=40))
    budget = loop.scheduler.budget = Asked(0.01)
    loop.scheduler._order._budget = budget
    for i, length in enumerate(lengths):
        loop.add(f"r{i}", prompt(length, 1000 * i))
    loop.step()
    assert budget.weighed == weighed


def test_of_equals_none_takes_the_share_of_those_who_lack_little() -> None:
    loop = Loop(make_scheduler(num_blocks=512, max_step_tokens=40))
    for i in range(3):
        loop.add(f"long{i}", prompt(400, 1000 * i))
    assert [*loop.step()] == ["long0"]


def test_the_shortest_is_prefilled_first_and_the_first_in_turn_has_its_share_beside_it() -> None:
    loop = Loop(make_scheduler(num_blocks=512, max_step_tokens=40))
    lengths = (320, 400, 240)
    requests = [add_later(loop, f"r{i}", prompt(length, 1000 * i)) for i, length in enumerate(lengths)]
    first, longest, shortest = steps_until_prefilled(loop, *requests)
    assert shortest < first < longest <= sum(lengths) // 40 + 4
    assert 240 / 40 < shortest <= 240 / (40 * SHARE) + 2


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 120)), min_size=1, max_size=12), st.integers(1, 200))
def test_every_prompt_is_prefilled_within_the_time_that_all_before_it_and_its_share_take(
    others: list[tuple[int, int]], length: int
) -> None:
    """However many shorter ones come meanwhile: those that were there before it, and it, have their share."""
    loop = Loop(make_scheduler(num_blocks=4096, max_step_tokens=40, max_running=64))
    ahead = [loop.add(f"ahead{i}", prompt(50 + 20 * i, 1000 * i)) for i in range(3)]
    mine = loop.add("mine", prompt(length, 50_000))
    num_steps, first = 0, 100_000
    while not mine.num_output:
        for at, short in others:
            if at == num_steps % 61 and len(loop.scheduler.running) < 40:
                loop.add(f"{num_steps}-{first}", prompt(short, first))
                first += 1000
        loop.step()
        num_steps += 1
        for each in [*loop.scheduler.running.values()]:
            if each.num_output > 1:
                loop.finish(each)
        in_all = sum(each.num_prompt for each in (*ahead, mine))
        assert num_steps <= in_all / ((1 - SHARE) * (40 - 2 * BLOCK_SIZE)) + 8


def test_a_step_has_as_many_tokens_as_it_is_padded_to() -> None:
    loop = Loop(make_scheduler(num_blocks=512, max_step_tokens=100, step_sizes=(32, 64, 128)))
    add_later(loop, "long", prompt(404))
    add_later(loop, "next", prompt(404, 5000))
    assert [loop.step() for _ in range(5)] == [{"long": (64 * i, 64 * i + 64)} for i in range(5)]
    assert loop.step() == {"long": (320, 404)}, "the end of a prompt is not put off"


def test_rows_that_decode_are_among_those_it_is_padded_to() -> None:
    loop = Loop(make_scheduler(num_blocks=512, max_step_tokens=100, step_sizes=(32, 64, 128)))
    writes = loop.add("writes", prompt(8, 50_000))
    while not writes.num_output:
        loop.step()
    add_later(loop, "long", prompt(404))
    for i in range(5):
        assert loop.step()["long"] == (63 * i, 63 * i + 63), "blocks end where they may: a row more would cost 64"


def test_among_others_a_step_reads_for_a_few_times_what_it_takes_without() -> None:
    loop = Loop(make_scheduler(num_blocks=4096, max_step_tokens=2048))

    def step() -> int:
        return num_prefilled(timed_step(loop, 0.01, 0.0001))

    writes = loop.add("writes", prompt(8, 50_000))
    for _ in range(20):
        step()
    loop.finish(writes)
    for i in range(3):
        loop.add(f"long{i}", prompt(5000, 6000 * i))
    sizes = [step() for _ in range(6)]
    most = NOBODY_DECODES * 0.01 / 0.0001
    assert most - 3 * BLOCK_SIZE <= min(sizes[2:]) <= max(sizes[2:]) <= most + 3 * BLOCK_SIZE


def test_those_who_come_back_with_little_to_read_count_as_short() -> None:
    loop = Loop(make_scheduler(num_blocks=512, max_step_tokens=40))
    known = loop.add("known", prompt(200, 3000))
    while not known.num_output:
        loop.step()
    loop.finish(known)
    loop.add("long", prompt(400))
    loop.step()
    back = loop.add("back", [*prompt(200, 3000), *prompt(5, 9000)])
    assert steps_until_prefilled(loop, back)[0] <= 3


def test_none_jumps_a_queue_that_waits_for_room() -> None:
    loop = Loop(make_scheduler(num_blocks=120, max_step_tokens=40, prefix_cache=False))
    loop.add("running", prompt(400))
    loop.step()
    big = loop.add("big", prompt(300, 1000))
    small = loop.add("small", prompt(8, 5000))
    for _ in range(5):
        loop.step()
    assert big.id in loop.scheduler.waiting
    assert small.id in loop.scheduler.waiting


def test_on_a_cpu_who_comes_does_not_wait_for_a_step_of_seconds() -> None:
    loop = cpu()
    alone_s = ttft_s(loop, loop.add("alone", prompt(100, 10_000)))
    loop.now += 60
    long = loop.add("long", prompt(2000))
    waits_s = []
    for i in range(5):
        began_at = loop.now
        sizes = [num_prefilled(timed_step(loop, 0.008, 0.002, 1.3e-6)) for _ in range(3)]
        assert min(sizes) > BLOCK_SIZE, "nor are steps smaller than need be"
        waits_s.append((loop.now - began_at) / 3 + ttft_s(loop, loop.add(f"short{i}", prompt(100, 20_000 + 200 * i))))
        loop.now += 2 * MOMENT_S
    assert long.num_uncomputed > 100, "it was alone all the time"
    assert max(waits_s) <= 2 * alone_s


def test_on_a_cpu_a_long_prompt_alone_is_hardly_slower_in_smaller_steps() -> None:
    token_s = 2000 * (0.002 + 1.3e-6 * 1000)
    loop = cpu()
    loop.now += 60
    assert ttft_s(loop, loop.add("long", prompt(2000))) <= 1.07 * token_s


def test_few_tokens_at_the_end_of_a_long_prompt_take_longer_than_as_many_of_a_short_one() -> None:
    loop = cpu()
    long = loop.add("long", prompt(4000))
    while long.num_uncomputed > 190:
        timed_step(loop, 0.008, 0.002, 1.3e-6)
    short = loop.add("short", prompt(100, 20_000))
    while not short.num_output:
        timed_step(loop, 0.008, 0.002, 1.3e-6)
    assert not long.num_output


def test_a_prompt_right_after_others_decoded_is_read_in_full_steps() -> None:
    loop = Loop(make_scheduler(num_blocks=8192, max_step_tokens=8192))
    others = [loop.add(f"other{i}", prompt(100, 20_000 + 200 * i)) for i in range(4)]
    while loop.now < 2 * MOMENT_S:
        timed_step(loop, 0.008, 12e-6)
    for each in others:
        loop.finish(each)
    began_at, alone = loop.now, loop.add("alone", prompt(8192))
    while not alone.num_output:
        timed_step(loop, 0.008, 12e-6)
    assert loop.now - began_at <= 1.25 * (0.008 + 8192 * 12e-6)


def quick_cpu(max_running: int = 32) -> Loop:
    """One on which a token takes 0.25 ms, a decoding step 5 ms, and that knows it."""
    loop = Loop(make_scheduler(num_blocks=8192, max_step_tokens=512, max_solo_prefill=16.0, max_running=max_running))
    for i in range(3):
        each = loop.add(f"before{i}", prompt(600, 90_000 + 1000 * i))
        while each.num_output < 2:
            timed_step(loop, 0.005, 2.5e-4)
        loop.finish(each)
    loop.now += 60
    return loop


def test_on_a_cpu_a_short_prompt_beside_long_ones_is_prefilled_whole_and_alone_in_its_step() -> None:
    loop = quick_cpu()
    for i in range(2):
        loop.add(f"long{i}", prompt(4000, 10_000 * i))
    timed_step(loop, 0.005, 2.5e-4)
    short = loop.add("short", prompt(400, 50_000))
    step = timed_step(loop, 0.005, 2.5e-4)
    assert [(part.request.id, part.num_tokens) for part in step.slices] == [("short", 400)]
    assert short.num_output == 1


def test_on_a_cpu_steps_are_no_longer_for_a_short_prompt_that_has_no_place() -> None:
    loop = quick_cpu(max_running=2)
    decoding, long = loop.add("decoding", prompt(8, 70_000)), loop.add("long", prompt(6000))
    while not decoding.num_output:
        timed_step(loop, 0.005, 2.5e-4)
    before = max(num_prefilled(timed_step(loop, 0.005, 2.5e-4)) for _ in range(8))
    loop.add("next", prompt(5000, 20_000))
    short = loop.add("short", prompt(200, 50_000))
    assert max(num_prefilled(timed_step(loop, 0.005, 2.5e-4)) for _ in range(8)) <= before
    assert long.num_uncomputed
    assert short.id in loop.scheduler.waiting
