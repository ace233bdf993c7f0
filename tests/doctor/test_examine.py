"""The whole examination of a real hotloop, and of servers with something wrong. No verdict here hangs on time."""

import io
import time
from itertools import count

import numpy as np
import pytest
from benchmarks.route.stub import Manner
from numpy.typing import NDArray
from rich.console import Console
from tests.bench.fake_server import FakeServer
from tests.bench.fake_tools import FakeToolServer
from tests.doctor.speaking import SGLANG_CARD, SGLANG_INFO, TGI_INFO, Asked, Reply, Script, engine, speaking
from tests.engine.tiny import EOS_ID, TOKENIZER
from tests.router.faults import Fault, FaultyStub
from tests.server.serving import Serving

from hotloop.backends.backend import Batch
from hotloop.backends.null import NullBackend
from hotloop.core.config import EngineConfig, ServerConfig
from hotloop.core.errors import RemoteError
from hotloop.doctor import advice as advice_module
from hotloop.doctor import prompts
from hotloop.doctor.advice import advise
from hotloop.doctor.deployment import Deployment
from hotloop.doctor.examine import CHECKS, Examination, TimeLimits, examination_json, examination_table, examine
from hotloop.doctor.judges import CheckResult, Verdict
from hotloop.doctor.probes import probe_calls, probe_exposure, probe_hang_up, probe_repeats
from hotloop.doctor.target import meet

SOON = TimeLimits(idle_s=0.0)


class Novelist(NullBackend):
    """Never ends an answer, and takes its time over several at once: whoever listens hangs up first."""

    LIKELIEST = 1000.0

    def run(self, batch: Batch) -> NDArray[np.float32]:
        if len(batch.past_lens) > 1:
            time.sleep(0.01)
        return super().run(batch)

    def _next_token(self, token_ids: NDArray[np.int64], positions: NDArray[np.int64]) -> int:
        return super()._next_token(token_ids, positions) % EOS_ID


async def examine_at(url: str, api_key: str | None = None) -> Examination:
    async with Deployment(url, api_key=api_key) as deployment:
        return await examine(deployment, pace=SOON, addresses=())


def verdicts(examination: Examination) -> dict[str, Verdict]:
    return {finding.check: finding.verdict for finding in examination.findings}


async def test_a_hotloop_is_well():
    with Serving(ServerConfig(port=0, api_key="secret"), num_blocks=4096) as serving:
        examination = await examine_at(serving.url, "secret")
    assert (examination.model, examination.kind) == ("tiny", "hotloop")
    found = verdicts(examination)
    assert tuple(found) == CHECKS
    for check in ("prefix cache", "cached tokens in usage", "connections", "strict tools", "stable turns", "exposure"):
        assert found[check] is Verdict.OK
    assert all(finding.advice == "" for finding in examination.findings if finding.verdict is Verdict.OK)
    (exposure,) = (finding for finding in examination.findings if finding.check == "exposure")
    assert exposure.measured == "requires a key, at 127.0.0.1"


async def test_a_hotloop_without_a_cache_is_told_what_to_do():
    with Serving(engine_config=EngineConfig(prefix_cache=False), num_blocks=4096) as serving:
        async with Deployment(serving.url) as deployment:
            rounds = await probe_repeats(await meet(deployment), num_rounds=1)
    assert [each.second.num_cached for each in rounds] == [0]
    assert [heard.num_cached for heard in rounds[0].later] == [0, 0, 0]
    assert advise("prefix cache", "hotloop").startswith("Do not disable `prefix_cache`")


async def test_what_is_found_out_about_a_hotloop_without_a_key():
    backend = Novelist(block_size=16, num_blocks=4096, vocab_size=TOKENIZER.vocab_size, max_context=4096)
    with Serving(backend=backend) as serving:
        async with Deployment(serving.url) as deployment:
            target = await meet(deployment)
            exposed = await probe_exposure(target, ())
            hung = await probe_hang_up(target)
    assert target.kind == "hotloop"
    assert exposed.status_without_key == 200
    assert exposed.address == "127.0.0.1"
    assert (hung.num_before, hung.num_after) == (0, 0)
    assert hung.num_during


async def test_a_stub_knows_neither_tools_nor_a_cache():
    stub = FaultyStub("stub", Manner(num_events=4))
    await stub.start()
    try:
        examination = await examine_at(stub.url)
    finally:
        await stub.close()
    found = verdicts(examination)
    assert tuple(found) == CHECKS
    assert found["cached tokens in usage"] is Verdict.WARNING
    assert found["connections"] is Verdict.OK
    assert found["strict tools"] is Verdict.FAILURE
    assert found["stable turns"] is Verdict.UNKNOWN
    assert examination.has_failed
    values = examination_json(examination)
    assert values["failed"] is True
    assert all(finding["advice"] for finding in values["findings"] if finding["verdict"] == "failure")


async def test_calls_that_break_their_schema_are_found():
    with FakeToolServer(lambda _: [("set_lamp", '{"colour": "purple", "level": 250}')]) as server:
        async with Deployment(server.url) as deployment:
            target = await meet(deployment)
            for called in await probe_calls(target):
                assert (called.num_demanded, called.num_calls, called.num_valid) == (4, 4, 0)
                assert "purple" in called.example


async def test_a_check_that_is_not_answered_has_failed_and_the_others_go_on():
    with FakeServer(failing=frozenset({2})) as server:
        examination = await examine_at(server.url)
    found = verdicts(examination)
    assert tuple(found) == CHECKS
    assert found["prefix cache"] is Verdict.FAILURE
    assert "answered 503" in examination.findings[0].measured


async def test_what_takes_too_long_is_given_up_and_after_two_the_rest_is_not_tried():
    numbers = count()
    healthy = engine({})

    def hang_after_the_first(asked: Asked) -> Reply:
        is_late = asked.path == "/v1/chat/completions" and next(numbers) > 0
        return Reply(hangs=True) if is_late else healthy(asked)

    async with speaking(hang_after_the_first) as url, Deployment(url) as deployment:
        examination = await examine(deployment, pace=TimeLimits(check_s=3), addresses=())
    said = [finding.measured for finding in examination.findings]
    assert said[:3] == ["timed out after 3 s"] * 3  # two of them are one check
    assert said[3:] == ["not tried after 2 timeouts"] * 6
    *slow, stuck = [finding.verdict for finding in examination.findings[:3]]
    assert (slow, stuck) == ([Verdict.WARNING] * 2, Verdict.FAILURE)


async def test_whoever_is_refused_again_and_again_cannot_be_told():
    numbers = count()
    healthy = engine({})

    def refuse_after_the_first(asked: Asked) -> Reply:
        is_late = asked.path == "/v1/chat/completions" and next(numbers) > 0
        return Reply(b"busy", 429, headers={"Retry-After": "0"}) if is_late else healthy(asked)

    async with speaking(refuse_after_the_first) as url, Deployment(url) as deployment:
        examination = await examine(deployment, pace=SOON, addresses=())
    assert set(verdicts(examination).values()) == {Verdict.UNKNOWN}
    assert not examination.has_failed


@pytest.mark.parametrize(
    ("script", "kind", "advice"),
    [
        (engine({"/get_server_info": SGLANG_INFO}, SGLANG_CARD), "sglang", "Start it with `--enable-cache-report`."),
        (engine({"/info": TGI_INFO}), "tgi", "TGI does not report them: go by the time to the first token."),
        (engine({}), "openai_compatible", "Report cached tokens in usage"),
    ],
    ids=["sglang", "tgi", "nobody known"],
)
async def test_each_kind_is_told_its_own_switches(script: Script, kind: str, advice: str):
    async with speaking(script) as url:
        examination = await examine_at(url)
    assert examination.kind == kind
    (told,) = (finding for finding in examination.findings if finding.check == "cached tokens in usage")
    assert told.verdict is Verdict.WARNING
    assert told.advice.startswith(advice)


def test_every_trouble_has_advice():
    troubles = [value for name, value in vars(advice_module).items() if name.isupper() and not name.startswith("_")]
    assert all(advise(trouble, "nobody") for trouble in (*CHECKS, *troubles))


def test_what_a_deployment_says_moves_no_cursor():
    finding = CheckResult("exposure", Verdict.OK, "\x1b[31mred\nline")
    console = Console(file=io.StringIO(), width=120)
    console.print(examination_table(Examination("http://host", "a\rmodel", "vllm", [finding])))
    shown = console.file.getvalue()
    assert not {"\x1b", "\r"} & set(shown)
    assert "http://host: a model, vllm" in shown


async def test_whoever_does_not_answer_at_all_is_not_examined():
    stub = FaultyStub("stub")
    await stub.start()
    await stub.set_fault(Fault("error", for_s=60))
    try:
        with pytest.raises(RemoteError, match="answered 500"):
            await examine_at(stub.url)
    finally:
        await stub.close()
    with pytest.raises(RemoteError, match="cannot reach"):
        await examine_at(stub.url)


@pytest.mark.parametrize(
    ("name", "arguments", "is_valid"),
    [
        ("set_lamp", '{"colour": "k7-zeta", "level": 3}', True),
        ("set_lamp", '{"colour": "purple", "level": 3}', False),
        ("set_lamp", '{"colour": "k7-zeta", "level": 4}', False),
        ("set_lamp", '{"colour": "k7-zeta", "level": 3, "mode": "party"}', False),
        ("set_lamp", '{"colour": "k7-zeta"}', False),
        ("set_lamp", "purple", False),
        ("lamp", '{"colour": "k7-zeta", "level": 3}', False),
    ],
)
def test_the_lamp_has_a_strict_schema(name: str, arguments: str, is_valid: bool):
    assert prompts.is_lamp_call(name, arguments) is is_valid
