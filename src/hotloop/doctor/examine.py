"""The whole examination: every probe in turn, never two at once, and what its judge says.

A probe that the deployment fails to answer is a failed check, and the others go on. Every check has an end: one that
takes too long is given up with a warning, and after the second, which is a failure, the rest is not tried.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from hotloop.core.errors import RemoteError
from hotloop.doctor import judges
from hotloop.doctor.advice import NO_ANSWER, advise
from hotloop.doctor.facts import Connected, Heard, Repeated
from hotloop.doctor.finding import CheckResult, Verdict
from hotloop.doctor.probes import answers
from hotloop.doctor.probes.exposure import probe_exposure
from hotloop.doctor.probes.hang_up import probe_hang_up
from hotloop.doctor.target import Target, meet
from hotloop.doctor.wire.deployment import Deployment, Refused

CHECKS = (
    "prefix cache",
    "cached tokens told",
    "streaming",
    "connections",
    "batching",
    "strict tools",
    "stable turns",
    "disconnects",
    "exposure",
)
_MAX_TIMEOUTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """How long things may take."""

    idle_s: float = 6.0
    """Between two requests over one connection, as if a tool ran."""
    notice_s: float = 3.0
    """For the deployment to notice that clients went away."""
    check_s: float = 60.0
    """For one check."""


@dataclass(frozen=True, slots=True)
class Examination:
    url: str
    model: str
    kind: str
    findings: Sequence[CheckResult]

    @property
    def has_failed(self) -> bool:
        return any(finding.verdict is Verdict.FAILURE for finding in self.findings)


async def examine(
    deployment: Deployment,
    *,
    pace: TimeLimits | None = None,
    addresses: Sequence[str] | None = None,
    watch: Callable[[str], None] = lambda _: None,
) -> Examination:
    """`watch` hears what is about to be looked at. Raises RemoteError where nothing answers at all."""
    pace = pace or TimeLimits()
    try:
        async with asyncio.timeout(pace.check_s):
            target = await meet(deployment)
    except TimeoutError:
        raise RemoteError(f"{deployment.url} timed out after {pace.check_s:g} s") from None
    async with deployment.newcomer() as client:
        findings = await _Room(target, client, pace, addresses, watch).examine()
    advised = [_advised(finding, target.kind) for finding in findings]
    return Examination(deployment.url, await deployment.find_model(), target.kind, advised)


@dataclass(slots=True)
class _Room:
    target: Target
    client: Deployment
    """One with a connection of its own, which idles while others are busy."""
    pace: TimeLimits
    addresses: Sequence[str] | None
    watch: Callable[[str], None]
    num_timeouts: int = 0
    rounds: Sequence[Repeated] = ()
    alone: Sequence[Heard] = ()
    idle: asyncio.Task[Connected] | None = None
    findings: dict[str, CheckResult] = field(default_factory=dict)

    async def examine(self) -> list[CheckResult]:
        """In the order of the checklist, although a connection is left to idle over several checks."""
        steps: Sequence[tuple[tuple[str, ...], Callable[[], Awaitable[Sequence[CheckResult]]]]] = (
            (("prefix cache", "cached tokens told"), self._caching),
            (("streaming",), self._stream),
            (("connections",), self._connection),
            (("batching",), self._batching),
            (("strict tools",), self._calls),
            (("stable turns",), self._turns),
            (("disconnects",), self._hang_up),
            (("exposure",), self._exposure),
            (("connections",), self._idle),
        )
        try:
            for names, step in steps:
                if not self.findings.keys() >= set(names):
                    await self._check(names, step)
        finally:
            if self.idle:
                self.idle.cancel()
        return [self.findings[name] for name in CHECKS]

    async def _check(self, names: Sequence[str], step: Callable[[], Awaitable[Sequence[CheckResult]]]) -> None:
        self.watch(names[0])
        self.findings |= {finding.check: finding for finding in await self._try(names, step)}

    async def _try(
        self, names: Sequence[str], step: Callable[[], Awaitable[Sequence[CheckResult]]]
    ) -> Sequence[CheckResult]:
        if self.num_timeouts >= _MAX_TIMEOUTS:
            return [CheckResult(name, Verdict.UNKNOWN, f"not tried after {_MAX_TIMEOUTS} timeouts") for name in names]
        verdict = Verdict.FAILURE
        try:
            async with asyncio.timeout(self.pace.check_s):
                return await step()
        except TimeoutError:
            self.num_timeouts += 1
            said = f"timed out after {self.pace.check_s:g} s"
            if self.num_timeouts < _MAX_TIMEOUTS:  # it may only be slow
                verdict = Verdict.WARNING
        except Refused as error:
            return [CheckResult(name, Verdict.UNKNOWN, f"refused again and again: {error}") for name in names]
        except RemoteError as error:
            said = str(error)
        return [CheckResult(name, verdict, said, NO_ANSWER) for name in names]

    async def _caching(self) -> Sequence[CheckResult]:
        self.rounds = await answers.probe_repeats(self.target)
        return [judges.judge_cache(self.rounds), judges.judge_cache_told(self.rounds)]

    async def _stream(self) -> Sequence[CheckResult]:
        self.alone = await answers.probe_stream(self.target)
        return [judges.judge_stream(self.alone)]

    async def _connection(self) -> Sequence[CheckResult]:
        heard = await answers.probe_connection(self.client)
        self.idle = asyncio.create_task(answers.watch_idle(self.client, heard, self.pace.idle_s))
        return []

    async def _idle(self) -> Sequence[CheckResult]:
        assert self.idle, "or else there is a finding already"
        return [judges.judge_connections(await self.idle)]

    async def _batching(self) -> Sequence[CheckResult]:
        alone = self.alone or await answers.probe_stream(self.target)
        return [judges.judge_batching(await answers.probe_batching(self.target, alone))]

    async def _calls(self) -> Sequence[CheckResult]:
        return [judges.judge_calls(*await answers.probe_calls(self.target))]

    async def _turns(self) -> Sequence[CheckResult]:
        return [judges.judge_turns(await answers.probe_turns(self.target), self.rounds)]

    async def _hang_up(self) -> Sequence[CheckResult]:
        return [judges.judge_hang_up(await probe_hang_up(self.target, self.pace.notice_s))]

    async def _exposure(self) -> Sequence[CheckResult]:
        return [judges.judge_exposure(await probe_exposure(self.target, self.addresses))]


def _advised(finding: CheckResult, kind: str) -> CheckResult:
    is_fine = finding.verdict in (Verdict.OK, Verdict.UNKNOWN)
    return finding if is_fine else replace(finding, advice=advise(finding.trouble or finding.check, kind))
