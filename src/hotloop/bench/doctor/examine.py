"""The whole examination: every probe in turn, never two at once, and what its judge says.

A probe that the deployment fails to answer is a failed check, and the others go on.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from hotloop.bench.client import ServerFailed
from hotloop.bench.doctor import judges, probes
from hotloop.bench.doctor.advice import advise
from hotloop.bench.doctor.finding import Finding, Verdict
from hotloop.bench.doctor.probes import Pace, Patient
from hotloop.bench.doctor.wire import Deployment


@dataclass(frozen=True, slots=True)
class Examination:
    url: str
    model: str
    kind: str
    findings: Sequence[Finding]

    @property
    def has_failed(self) -> bool:
        return any(finding.verdict is Verdict.FAILURE for finding in self.findings)


async def examine(
    deployment: Deployment,
    *,
    pace: Pace | None = None,
    addresses: Sequence[str] | None = None,
    watch: Callable[[str], None] = lambda _: None,
) -> Examination:
    """`watch` hears what is about to be looked at. Raises ServerFailed where nothing answers at all."""
    patient = await probes.meet(deployment)
    room = _Room(patient, pace or Pace(), addresses, watch)
    findings = [_advised(finding, patient.kind) for finding in await room.examine()]
    return Examination(deployment.url, await deployment.find_model(), patient.kind, findings)


@dataclass(frozen=True, slots=True)
class _Room:
    patient: Patient
    pace: Pace
    addresses: Sequence[str] | None
    watch: Callable[[str], None]

    async def examine(self) -> list[Finding]:
        caching = await self._check(("prefix cache", "cached tokens told"), self._caching)
        is_hit = caching[0].verdict is Verdict.OK
        findings = [*caching]
        steps: Sequence[tuple[str, Callable[[], Awaitable[list[Finding]]]]] = (
            ("streaming", self._stream),
            ("connections", self._connections),
            ("batching", self._batching),
            ("strict tools", self._calls),
            ("stable turns", lambda: self._turns(is_hit)),
            ("disconnects", self._hang_up),
            ("exposure", self._exposure),
        )
        for name, step in steps:
            findings += await self._check((name,), step)
        return findings

    async def _check(self, names: Sequence[str], step: Callable[[], Awaitable[list[Finding]]]) -> list[Finding]:
        self.watch(names[0])
        try:
            return await step()
        except ServerFailed as error:
            return [Finding(name, Verdict.FAILURE, str(error)) for name in names]

    async def _caching(self) -> list[Finding]:
        rounds = await probes.probe_repeats(self.patient)
        return [judges.judge_cache(rounds), judges.judge_cache_told(rounds)]

    async def _stream(self) -> list[Finding]:
        return [judges.judge_stream(await probes.probe_stream(self.patient))]

    async def _connections(self) -> list[Finding]:
        return [judges.judge_connections(await probes.probe_connections(self.patient, self.pace))]

    async def _batching(self) -> list[Finding]:
        return [judges.judge_batching(await probes.probe_batching(self.patient))]

    async def _calls(self) -> list[Finding]:
        return [judges.judge_calls(await probes.probe_calls(self.patient))]

    async def _turns(self, is_cache_hit: bool) -> list[Finding]:
        return [judges.judge_turns(await probes.probe_turns(self.patient), is_cache_hit=is_cache_hit)]

    async def _hang_up(self) -> list[Finding]:
        return [judges.judge_hang_up(await probes.probe_hang_up(self.patient, self.pace))]

    async def _exposure(self) -> list[Finding]:
        return [judges.judge_exposure(await probes.probe_exposure(self.patient, self.addresses))]


def _advised(finding: Finding, kind: str) -> Finding:
    is_fine = finding.verdict in (Verdict.OK, Verdict.UNKNOWN)
    return finding if is_fine else replace(finding, advice=advise(finding.check, kind))
