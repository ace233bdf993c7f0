"""The counting of a chaos run, on canned observations."""

import asyncio
import json
import math

import pytest
from benchmarks.route.load import Exchange
from benchmarks.route.troubles import Trouble
from benchmarks.route.verdict import End, Seen, judge, measure_recoveries, see

EVENTS = {b"content-type": b"text/event-stream; charset=utf-8"}
NAMES = ["stub-1", "stub-2"]
CHUNK = b'data: {"id":"chatcmpl-stub-2.000000000001","choices":[]}\n\n'
ERROR = b'data: {"error":{"message":"the replica went away"}}\n\n'


async def exchange(
    status: int, body: bytes, *, headers: dict[bytes, bytes] | None = None, broken: str = ""
) -> Exchange:
    ended = asyncio.get_running_loop().create_future()
    first_at = 10.5 if body else math.inf
    return Exchange(10.0, 10.0, ended, first_at, 11.0, status, headers or {}, [body] if body else [], broken)


@pytest.mark.parametrize(
    ("body", "broken", "end"),
    [
        (CHUNK + b"data: [DONE]\n\n", "", "done"),
        (b'event: message_start\ndata: {}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n', "", "done"),
        (CHUNK + ERROR, "", "error event"),
        (CHUNK + ERROR + b"data: [DONE]\n\n", "", "error event"),
        (CHUNK + b'event: error\ndata: {"type":"error","error":{"message":"gone"}}\n\n', "", "error event"),
        (CHUNK, "", "cut stream"),
        (CHUNK + b"data: [DO", "", "cut stream"),
        (CHUNK + b"data: [DONE]\n\n", "connection closed", "cut stream"),
        (CHUNK + b'data: {"error":{}}\n\n', "", "cut stream"),
        (b"", "connection closed", "lost"),
    ],
)
async def test_how_a_stream_ended(body: bytes, broken: str, end: End):
    assert see(await exchange(200, body, headers=EVENTS, broken=broken), 0).end == end


@pytest.mark.parametrize(
    ("status", "body", "broken", "end"),
    [
        (200, b'{"id":"msg_stub-1.000000000001"}', "", "done"),
        (200, b'{"id":"msg_stub-1.0000', "connection closed", "cut answer"),
        (200, b"<html>", "", "cut answer"),
        (0, b"", "timeout", "lost"),
        (500, b'{"error":{"message":"told to fail"}}', "", "lost"),
        (503, b'{"error":{"message":"nobody is well"}}', "", "refused"),
        (503, b"sorry", "", "lost"),
        (503, b'{"error":{"message":"nobody is well"}}', "connection closed", "lost"),
    ],
)
async def test_how_an_answer_ended(status: int, body: bytes, broken: str, end: End):
    assert see(await exchange(status, body, broken=broken), 0).end == end


async def test_who_answered_and_when_is_seen():
    seen = see(await exchange(200, CHUNK + b"data: [DONE]\n\n", headers=EVENTS), 4.0)
    assert (seen.replica, seen.asked_s, seen.ended_s, seen.first_byte_s) == ("stub-2", 6.0, 7.0, 0.5)
    assert not seen.is_disturbed


def done(asked_s: float, *, replica: str = "stub-1", first_byte_s: float = 0.01) -> Seen:
    return Seen("done", asked_s, asked_s + first_byte_s, first_byte_s, replica)


def failed(end: End, asked_s: float) -> Seen:
    return Seen(end, asked_s, asked_s + 0.1, math.inf, detail="why")


def test_recovery_is_up_to_the_last_disturbed_request_before_the_next_change():
    troubles = [Trouble("hang", "stub-1", 10, 16), Trouble("kill", "stub-2", 20, 26)]
    seen = [
        done(9, first_byte_s=3),  # before anything happened
        done(10.5, first_byte_s=2.5),
        failed("error event", 12),
        done(13),
        failed("error event", 16.5),
        done(18, replica="stub-1"),
        done(21, replica="stub-1"),
    ]
    first, second = measure_recoveries(seen, troubles, 30)
    assert (first.begin_recovery_s, first.end_recovery_s, first.back_s) == (2, 0.5, 2)
    assert (second.begin_recovery_s, second.end_recovery_s, second.back_s) == (0, 0, None)


def test_two_troubles_at_once_share_what_they_disturb():
    troubles = [Trouble("kill", "stub-1", 10, 16.4), Trouble("half", "stub-2", 10.1, 16)]
    recoveries = list(measure_recoveries([failed("error event", 13), failed("error event", 17)], troubles, 20))
    assert [recovery.begin_recovery_s for recovery in recoveries] == pytest.approx([3, 2.9])
    assert [recovery.end_recovery_s for recovery in recoveries] == pytest.approx([0.6, 1])


def test_a_replica_is_back_only_before_it_is_in_trouble_again():
    troubles = [Trouble("kill", "stub-1", 0, 5), Trouble("kill", "stub-1", 10, 15)]
    first, second = measure_recoveries([done(16)], troubles, 20)
    assert (first.back_s, second.back_s) == (None, 1)


def test_a_503_is_no_loss_only_while_nobody_is_well():
    troubles = [Trouble("refuse", name, 10, 13) for name in NAMES]
    seen = [failed("refused", 5), failed("refused", 12), failed("refused", 14), failed("refused", 19), done(25)]
    report = judge(seen, troubles, NAMES, seed=0, duration_s=30)
    assert (report.num_refused, report.num_lost) == (2, 2)


def test_the_verdict_counts_everything_once():
    ends: list[End] = ["done", "error event", "cut stream", "cut answer", "lost", "lost", "refused"]
    seen = [done(1) if end == "done" else failed(end, 1) for end in ends]
    report = judge(seen, [], NAMES, seed=3, duration_s=10)
    assert report.num_asked == sum(report.ends.values()) == 7
    assert (report.num_lost, report.num_refused, report.num_cut_streams) == (3, 0, 1)
    assert not report.is_good
    assert len(report.details) == 5
    assert json.loads(json.dumps(report.to_json()))["is_good"] is False


def test_an_error_event_is_a_proper_end_and_late_recovery_is_not():
    troubles = [Trouble("half", "stub-1", 10, 20)]
    good = judge([failed("error event", 11), done(21)], troubles, NAMES, seed=0, duration_s=30)
    assert good.is_good
    assert (good.recovery_p95_s, good.back_p95_s, good.num_never_back) == (1, 1, 0)
    late = judge([failed("error event", 15.5)], troubles, NAMES, seed=0, duration_s=30)
    assert not late.is_good
    assert late.num_never_back == 1
    assert late.to_table().row_count == 1
