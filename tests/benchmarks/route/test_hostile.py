"""A hostile replica: what is told of it, and a short run beside a stub and a router."""

import os

from benchmarks.route.hostile import HOSTILE, TROUBLES, HostileProcess, HostileReport, TroubleReport, measure_hostile
from benchmarks.route.processes import rss_bytes_of
from benchmarks.route.stub import Stub
from tests.router.conftest import replica_configs, running

from hotloop.core.config import RouterConfig
from hotloop.router.config import FleetConfig, ReplicaConfig

GOOD = TroubleReport("bytes", 100, 0.001, 0.09, 0.2, 50, 0, 1_000_000)


def test_it_is_good_only_if_nothing_suffered():
    assert HostileReport((GOOD,), 0.09, True).is_good
    assert not HostileReport((GOOD,), 0.11, True).is_good
    assert not HostileReport((GOOD,), 0.09, False).is_good
    assert not HostileReport((TroubleReport("x", 1, 0.0, 0.0, 0.0, 1, 1, 0),), 0.09, True).is_good
    assert not HostileReport((TroubleReport("x", 1, 0.0, 0.0, 0.0, 1, 0, 400_000_000),), 0.09, True).is_good


async def test_every_trouble_leaves_the_others_answers_right():
    stub = Stub("stub-1")
    await stub.start()
    with HostileProcess() as bad:
        hostile = ReplicaConfig(
            url=bad.url, name=HOSTILE, kind="vllm", kv_events=bad.kv_events, kv_replay=bad.kv_replay
        )
        config = FleetConfig(router=RouterConfig(health_interval_s=0.05), replicas=(*replica_configs([stub]), hostile))
        async with running(config) as router:
            await router.until(lambda: all(each.state == "up" for each in router.fleet.replicas.values()))
            report = await measure_hostile(router.url, bad.be, lambda: rss_bytes_of(os.getpid()), each_s=0.3)
            await router.until(lambda: router.fleet.replicas[HOSTILE].state == "up")
    await stub.close()
    assert [each.trouble for each in report.troubles] == list(TROUBLES)
    assert all(each.num_right and not each.num_wrong for each in report.troubles)
    assert report.to_table().row_count == len(TROUBLES)
    assert report.to_json()["troubles"]
