"""The whole examination: every probe in turn, never two at once, and what its judge says.

A probe that the deployment fails to answer is a failed check, and the others go on. Every check has an end: one that
takes too long is given up with a warning, and after the second, which is a failure, the rest is not tried.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from hotloop.core.errors import RemoteError
from hotloop.doctor import judges, probes
from hotloop.doctor.advice import NO_ANSWER, advise
from hotloop.doctor.deployment import Deployment, Refused
from hotloop.doctor.facts import Connected, Heard, Repeated
from hotloop.doctor.finding import CheckResult, Judged, Verdict
from hotloop.doctor.target import Target, meet

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

Step = Callable[[], Awaitable[Sequence[Judged]]]
_STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILURE: "bold red", Verdict.UNKNOWN: "dim"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """How long things may take."""

    idle_s: float = 6.0
    """Between two requests over one connection, as if a tool ran."""
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
        judged = await _Examiner(target, client, pace, addresses, watch).examine()
    findings = [CheckResult(check, *judged[check][:2], _advise(check, judged[check], target.kind)) for check in CHECKS]
    return Examination(deployment.url, await deployment.find_model(), target.kind, findings)


def _advise(check: str, judged: Judged, kind: str) -> str:
    is_fine = judged.verdict in (Verdict.OK, Verdict.UNKNOWN)
    return "" if is_fine else advise(judged.trouble or check, kind)


@dataclass(slots=True)
class _Examiner:
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
    judged: dict[str, Judged] = field(default_factory=dict)

    async def examine(self) -> dict[str, Judged]:
        """By check. A connection is left to idle over several of them."""
        steps: Sequence[tuple[tuple[str, ...], Step]] = (
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
                if not self.judged.keys() >= set(names):
                    self.watch(names[0])
                    found = await self._try(step)
                    each = [found] * len(names) if isinstance(found, Judged) else found
                    self.judged |= zip(names, each, strict=False)
        finally:
            if self.idle:
                self.idle.cancel()
        return self.judged

    async def _try(self, step: Step) -> Sequence[Judged] | Judged:
        """What its judges say, or what is to be said of all that it looks at."""
        if self.num_timeouts >= _MAX_TIMEOUTS:
            return Judged(Verdict.UNKNOWN, f"not tried after {_MAX_TIMEOUTS} timeouts")
        try:
            async with asyncio.timeout(self.pace.check_s):
                return await step()
        except TimeoutError:
            self.num_timeouts += 1
            verdict = Verdict.WARNING if self.num_timeouts < _MAX_TIMEOUTS else Verdict.FAILURE  # it may only be slow
            return Judged(verdict, f"timed out after {self.pace.check_s:g} s", NO_ANSWER)
        except Refused as error:
            return Judged(Verdict.UNKNOWN, f"refused again and again: {error}")
        except RemoteError as error:
            return Judged(Verdict.FAILURE, str(error), NO_ANSWER)

    async def _caching(self) -> Sequence[Judged]:
        self.rounds = await probes.probe_repeats(self.target)
        return [judges.judge_cache(self.rounds), judges.judge_cache_told(self.rounds)]

    async def _stream(self) -> Sequence[Judged]:
        self.alone = await probes.probe_stream(self.target)
        return [judges.judge_stream(self.alone)]

    async def _connection(self) -> Sequence[Judged]:
        heard = await probes.probe_connection(self.client)
        self.idle = asyncio.create_task(probes.watch_idle(self.client, heard, self.pace.idle_s))
        return []

    async def _idle(self) -> Sequence[Judged]:
        assert self.idle, "or else there is a finding already"
        return [judges.judge_connections(await self.idle)]

    async def _batching(self) -> Sequence[Judged]:
        alone = self.alone or await probes.probe_stream(self.target)
        return [judges.judge_batching(await probes.probe_batching(self.target, alone))]

    async def _calls(self) -> Sequence[Judged]:
        return [judges.judge_calls(*await probes.probe_calls(self.target))]

    async def _turns(self) -> Sequence[Judged]:
        return [judges.judge_turns(await probes.probe_turns(self.target), self.rounds)]

    async def _hang_up(self) -> Sequence[Judged]:
        return [judges.judge_hang_up(await probes.probe_hang_up(self.target))]

    async def _exposure(self) -> Sequence[Judged]:
        return [judges.judge_exposure(await probes.probe_exposure(self.target, self.addresses))]


def examination_table(examination: Examination) -> Table:
    """Text is the deployment's in part, so none of it is markup, nor moves the cursor."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left")
    table.title = Text(f"{examination.url}: {_plain(examination.model)}, {examination.kind}", style="bold")
    for title in ("", "check"):
        table.add_column(title, no_wrap=True)
    table.add_column("what was measured, and what to do", overflow="fold")
    for each in examination.findings:
        verdict = Text(each.verdict.value, style=_STYLES[each.verdict])
        advice = Text(f"\n→ {each.advice}" if each.advice else "", style="bold")
        table.add_row(verdict, Text(each.check), Text(_plain(each.measured)) + advice)
    return table


def examination_json(examination: Examination) -> dict[str, Any]:
    return {
        "url": examination.url,
        "model": examination.model,
        "kind": examination.kind,
        "failed": examination.has_failed,
        "findings": [asdict(each) for each in examination.findings],
    }


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)
