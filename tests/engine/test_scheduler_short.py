"""Long prompts, short ones and those who write in one step: who reads how much of it."""

from tests.engine.tiny import BLOCK_SIZE
from tests.engine.turning import Loop, make_scheduler, prompt

from hotloop.core.request import Request
from hotloop.engine.prefill_budget import PER_PROMPT
from hotloop.engine.short import SHARE


def steps_until_prefilled(loop: Loop, *requests: Request) -> list[int]:
    """After how many steps each has its first token."""
    found: dict[str, int] = {}
    num_steps = 0
    while len(found) < len(requests):
        num_steps += 1
        loop.step()
        found |= {each.id: num_steps for each in requests if each.num_output and each.id not in found}
    return [found[each.id] for each in requests]


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
        saved_up = 40 // 2
        assert long.num_computed >= min(400, (1 - SHARE) * (num_prefilled - saved_up) - 2 * BLOCK_SIZE)


def test_one_who_lacks_little_is_read_at_once_by_what_was_saved_up() -> None:
    loop = Loop(make_scheduler(num_blocks=512, max_step_tokens=40))
    for i in range(3):
        loop.add(f"long{i}", prompt(400, 1000 * i))
    loop.step()
    loop.add("short", prompt(19, 9000))
    assert loop.step()["short"] == (0, 19)


def test_of_equals_none_takes_the_share_of_those_who_lack_little() -> None:
    loop = Loop(make_scheduler(num_blocks=512, max_step_tokens=40))
    for i in range(3):
        loop.add(f"long{i}", prompt(400, 1000 * i))
    assert [*loop.step()] == ["long0"]


def test_among_others_a_step_reads_for_a_few_times_what_it_takes_without() -> None:
    loop = Loop(make_scheduler(num_blocks=4096, max_step_tokens=2048))

    def step() -> int:
        """A step takes 10 ms, and 0.1 ms for each token that is read."""
        loop.now += 0.01
        step = loop.scheduler.schedule(loop.now)
        num_prefilled = sum(part.num_tokens for part in step.slices if part.num_tokens > 1)
        loop.compute(step, 0.01 + 0.0001 * num_prefilled)
        return num_prefilled

    writes = loop.add("writes", prompt(8, 50_000))
    for _ in range(20):
        step()
    loop.finish(writes)
    for i in range(3):
        loop.add(f"long{i}", prompt(5000, 6000 * i))
    sizes = [step() for _ in range(6)]
    most = PER_PROMPT * 4 * 0.01 / 0.0001
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
