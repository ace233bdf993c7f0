"""What a router adds: the figures on canned times, and a run over stubs."""

import asyncio
import json
from functools import partial

import pytest
from benchmarks.route.load import Exchange
from benchmarks.route.overhead import Lane, Timing, measure_overhead, report_overhead, take_time
from benchmarks.route.prompts import agent_requests
from benchmarks.route.stub import Stub

from hotloop.core.errors import RemoteError


def timings(*ttfbs_ms: float, is_good: bool = True) -> list[Timing]:
    return [Timing(is_good, late_ms=2, ttfb_ms=ms, whole_ms=ms + 1) for ms in ttfbs_ms]


def test_what_is_added_is_the_difference_to_the_first_lane():
    direct = Lane("direct", "", rounds=[timings(1, 2, 3)], cpu_s=0.003)
    router = Lane("router", "", rounds=[timings(2, 4) + timings(500, is_good=False), timings(9)], cpu_s=0.006)
    report = report_overhead([direct, router], 200, 1)
    plain, added = report.to_json()["lanes"]
    assert (plain["ttfb_p50_ms"], plain["added_p50_ms"], plain["num_failed"]) == (2, 0, 0)
    assert (added["num_asked"], added["num_failed"]) == (4, 1)
    assert (added["added_p50_ms"], added["cpu_ms"], added["late_p50_ms"], added["whole_p50_ms"]) == (2, 1.5, 2, 5)
    assert added["round_p99_ms"] == [2, 9]
    assert len(report.to_table().columns) == 3


async def test_an_exchange_is_timed_from_when_it_was_sent():
    ended = asyncio.get_running_loop().create_future()
    exchange = Exchange(100.0, 100.25, ended, 100.75, 102.25, 200, {}, [b"x"])
    assert take_time(exchange) == Timing(True, late_ms=250, ttfb_ms=500, whole_ms=2000)


async def test_every_lane_is_asked_the_same_in_every_round():
    stubs = [Stub("stub-1"), Stub("stub-2")]
    for stub in stubs:
        await stub.start()
    lanes = [Lane(stub.name, stub.url) for stub in stubs]
    rounds = 0

    def count() -> None:
        nonlocal rounds
        rounds += 1

    requests = partial(agent_requests, system_chars=100)
    report = await measure_overhead(
        lanes, requests, rate=100, round_s=0.1, num_rounds=2, warm_up_s=0.01, on_round=count
    )
    for stub in stubs:
        await stub.close()
    assert rounds == 4
    assert [lane.num_asked for lane in report.lanes] == [20, 20]
    assert [lane.num_failed for lane in report.lanes] == [0, 0]
    assert stubs[0].paths == stubs[1].paths
    assert json.dumps(report.to_json())


def test_a_lane_that_fails_has_no_times():
    lane = Lane("direct", "", rounds=[timings(1, is_good=False)])
    (figures,) = report_overhead([lane], 200, 1).lanes
    assert (figures.num_failed, figures.ttfb_p99_ms) == (1, 0)


async def test_a_lane_that_takes_no_connection_is_named():
    stub = Stub("stub")
    await stub.start()
    lane = Lane("LiteLLM", stub.url)
    await stub.close()
    with pytest.raises(RemoteError, match=r"LiteLLM at .* takes no connection"):
        await measure_overhead([lane], agent_requests, rate=100, round_s=0.1, num_rounds=1)
