"""The whole examination: every probe in turn, never two at once, and what its judge says.

A probe that the deployment fails to answer is a failed check, and the others go on. Every check has an end: one that
takes too long is given up with a warning, and after the second, which is a failure, the rest is not tried.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeVar

from rich.table import Table
from rich.text import Text

from hotloop.core.errors import RemoteError
from hotloop.doctor import judges, probes
from hotloop.doctor.advice import NO_ANSWER, advise
from hotloop.doctor.deployment import Deployment, Refused
from hotloop.doctor.facts import Batched
from hotloop.doctor.judges import CheckResult, Judged, Verdict
from hotloop.doctor.target import Target, meet

CHECKS = (
    "prefix cache",
    "cached tokens in usage",
    "streaming",
    "connections",
    "batching",
    "strict tools",
    "stable turns",
    "disconnects",
    "exposure",
)
_MAX_TIMEOUTS = 2

Fact = TypeVar("Fact")
_STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILURE: "bold red", Verdict.UNKNOWN: "dim"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
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
    findings = []
    for check in CHECKS:
        verdict, measured, trouble = judged[check]
        is_fine = verdict in (Verdict.OK, Verdict.UNKNOWN)
        findings.append(CheckResult(check, verdict, measured, "" if is_fine else advise(trouble or check, target.kind)))
    return Examination(deployment.url, await deployment.find_model(), target.kind, findings)


@dataclass(slots=True)
class _Examiner:
    target: Target
    client: Deployment
    """One with a connection of its own, which idles while others are busy."""
    pace: TimeLimits
    addresses: Sequence[str] | None
    watch: Callable[[str], None]
    num_timeouts: int = 0
    judged: dict[str, Judged] = field(default_factory=dict)

    async def examine(self) -> dict[str, Judged]:
        """By check. A connection is left to idle over several of them."""
        target, idle = self.target, None

        async def batch() -> Batched:
            return await probes.probe_batching(target, alone or await probes.probe_stream(target))

        caching = ("prefix cache", "cached tokens in usage")
        repeat = partial(probes.probe_repeats, target)
        rounds = await self._check(caching, repeat, judges.judge_cache, judges.judge_cache_usage) or ()
        alone = await self._check(("streaming",), partial(probes.probe_stream, target), judges.judge_stream)
        answers = await self._check(("connections",), partial(probes.probe_connection, self.client))
        if answers:
            idle = asyncio.create_task(probes.watch_idle(self.client, answers, self.pace.idle_s))
        try:
            await self._check(("batching",), batch, judges.judge_batching)
            call, turn = partial(probes.probe_calls, target), partial(probes.probe_turns, target)
            await self._check(("strict tools",), call, lambda called: judges.judge_calls(*called))
            await self._check(("stable turns",), turn, lambda turned: judges.judge_turns(turned, rounds))
            await self._check(("disconnects",), partial(probes.probe_hang_up, target), judges.judge_hang_up)
            expose = partial(probes.probe_exposure, target, self.addresses)
            await self._check(("exposure",), expose, judges.judge_exposure)
            if idle:
                await self._check(("connections",), lambda: idle, judges.judge_connections)
        finally:
            if idle:
                idle.cancel()
        return self.judged

    async def _check(
        self, names: Sequence[str], probe: Callable[[], Awaitable[Fact]], *judge: Callable[[Fact], Judged]
    ) -> Fact | None:
        """What the probe found out, for its judges; None if it failed, which is then said of all that it looks at."""
        self.watch(names[0])
        if self.num_timeouts >= _MAX_TIMEOUTS:
            self.judged |= dict.fromkeys(names, Judged(Verdict.UNKNOWN, f"not tried after {_MAX_TIMEOUTS} timeouts"))
            return None
        try:
            async with asyncio.timeout(self.pace.check_s):
                fact = await probe()
        except TimeoutError:
            self.num_timeouts += 1
            verdict = Verdict.WARNING if self.num_timeouts < _MAX_TIMEOUTS else Verdict.FAILURE  # it may only be slow
            failed = Judged(verdict, f"timed out after {self.pace.check_s:g} s", NO_ANSWER)
        except Refused as error:
            failed = Judged(Verdict.UNKNOWN, f"refused again and again: {error}")
        except RemoteError as error:
            failed = Judged(Verdict.FAILURE, str(error), NO_ANSWER)
        else:
            self.judged |= {name: each(fact) for name, each in zip(names, judge, strict=False)}
            return fact
        self.judged |= dict.fromkeys(names, failed)
        return None


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
    return asdict(examination) | {"failed": examination.has_failed}


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)
