"""A report for people, programs, code scanners and pull requests. Pure: whoever prints is elsewhere."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from hashlib import sha256
from urllib.parse import quote

from rich.console import Group, RenderableType
from rich.text import Text

from hotloop.core.version import __version__
from hotloop.lint.engine import LintReport
from hotloop.lint.finding import Finding, Severity, TextPlace, Waste
from hotloop.lint.requests import LintedRequest
from hotloop.lint.rules import RULES
from hotloop.wire.field import Json

_STYLES = {Severity.NOTE: "cyan", Severity.WARNING: "yellow", Severity.ERROR: "red"}
_GITHUB = {Severity.NOTE: "notice", Severity.WARNING: "warning", Severity.ERROR: "error"}
_NAMES = {rule.id: rule.name for rule in RULES}
_HELP = "docs/lint.md"
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_MAX_PLACES = 3


def render_text(report: LintReport) -> RenderableType:
    """The costliest first; what is said is never taken for markup."""
    ranked = sorted(report.findings, key=lambda f: (-f.severity, -f.waste.num_recomputed, -f.waste.num_carried))
    requests = _requests_by_index(report)
    return Group(*(render_finding(finding, requests[finding.place.request]) for finding in ranked), _summary(report))


def render_finding(finding: Finding, request: LintedRequest | None = None) -> Text:
    """With its file and line, if the request that it is in came from one."""
    text = Text()
    text.append(f"{finding.rule} {finding.severity.label}", _STYLES[finding.severity])
    text.append(f" {_NAMES[finding.rule]}", "bold").append(f"  {finding.run}")
    text.append(f"  {request.source}:{request.line}\n" if request and request.line else "\n")
    text.append(f"  {finding.place}", "dim")
    if finding.others:
        text.append(f" and {len(finding.others)} more", "dim")
    text.append(f"\n  {finding.words}\n")
    if cost := render_waste(finding.waste):
        text.append(f"  costs {cost}\n")
    return text.append(f"  fix: {finding.fix}\n", "green")


def render_waste(waste: Waste) -> str:
    """In words; empty if it costs nothing that is known."""
    pieces = (
        (waste.num_recomputed, f"{waste.num_recomputed:,d} tokens recomputed"),
        (waste.num_carried, f"{waste.num_carried:,d} tokens carried along"),
        (waste.num_round_trips, f"{waste.num_round_trips} round trips"),
        (waste.ms, f"{waste.ms or 0:,.0f} ms"),
        (waste.money, f"${waste.money or 0:.4f}"),
    )
    return ", ".join(words for amount, words in pieces if amount)


def render_json(report: LintReport) -> Json:
    requests = _requests_by_index(report)
    return {
        "version": 1,
        "summary": {
            "runs": len(report.runs),
            "requests": report.num_requests,
            "prompt_tokens": report.num_prompt,
            "predicted_recomputed_tokens": report.num_recomputed,
            "reported_lost_tokens": report.num_lost,
            "findings": {s.label: sum(f.severity is s for f in report.findings) for s in Severity},
        },
        "findings": [_finding_json(finding, requests) for finding in report.findings],
    }


def render_sarif(report: LintReport) -> Json:
    """SARIF 2.1.0. Characters are of the text at the path, so a place in a file is its line."""
    requests, prints = _requests_by_index(report), _fingerprints(report)
    rules = [
        {
            "id": rule.id,
            "name": rule.name,
            "shortDescription": {"text": rule.summary},
            "help": {"text": rule.fix},
            "defaultConfiguration": {"level": rule.severity.label},
        }
        for rule in RULES
    ]
    driver = {"name": "hotloop lint", "version": __version__, "rules": rules}
    results = [_sarif_result(*each, requests) for each in zip(report.findings, prints, strict=True)]
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def render_github(report: LintReport) -> Iterator[str]:
    """Workflow commands, which become annotations of a pull request."""
    requests = _requests_by_index(report)
    for finding in report.findings:
        request = requests[finding.place.request]
        where = f" file={_escape(request.source, ',:')},line={request.line}," if request.line else " "
        message = _escape(_sentence(finding))
        yield f"::{_GITHUB[finding.severity]}{where}title={finding.rule} {_NAMES[finding.rule]}::{message}"


def _summary(report: LintReport) -> Text:
    counts = [(s, sum(f.severity is s for f in report.findings)) for s in reversed(Severity)]
    found = ", ".join(_count(count, s.label) for s, count in counts if count) or "nothing found"
    share = report.num_recomputed / report.num_prompt if report.num_prompt else 0.0
    line = f"{found} in {_count(report.num_requests, 'request')} of {_count(len(report.runs), 'run')}; "
    line += f"{report.num_recomputed:,d} of {report.num_prompt:,d} prompt tokens ({share:.1%}) recomputed for nothing"
    return Text(line, "bold")


def _count(count: int, noun: str) -> str:
    return f"{count:,d} {noun}{'s' * (count != 1)}"


def _requests_by_index(report: LintReport) -> dict[int, LintedRequest]:
    return {step.request.index: step.request for run in report.runs for step in run.steps}


def _finding_json(finding: Finding, requests: dict[int, LintedRequest]) -> Json:
    place, *others = (_place_json(place, requests) for place in finding.places)
    names = {"name": _NAMES[finding.rule], "severity": finding.severity.label}
    return asdict(finding) | names | {"place": place, "others": others}


def _place_json(place: TextPlace, requests: dict[int, LintedRequest]) -> Json:
    request = requests[place.request]
    return {**asdict(place), "source": request.source, "line": request.line}


def _fingerprints(report: LintReport) -> Iterator[str]:
    """The same for the same finding however many runs come before it: a run is known by what is said first in it."""
    openings = {run.id: next((part.text for part in run.steps[0].request.history), "") for run in report.runs}
    times: Counter[str] = Counter()
    for finding in report.findings:
        opening = sha256(openings[finding.run].encode(errors="replace")).hexdigest()[:16]
        name = f"{finding.rule}:{finding.place.path}:{opening}"
        times[name] += 1
        yield f"{name}:{times[name]}"


def _sarif_result(finding: Finding, fingerprint: str, requests: dict[int, LintedRequest]) -> Json:
    return {
        "ruleId": finding.rule,
        "ruleIndex": [*_NAMES].index(finding.rule),
        "level": finding.severity.label,
        "message": {"text": _sentence(finding)},
        "locations": [_sarif_location(place, requests[place.request]) for place in finding.places[:_MAX_PLACES]],
        "partialFingerprints": {"hotloopPlace/v1": fingerprint},
        "properties": {"waste": asdict(finding.waste), "run": finding.run, "help": _HELP},
    }


def _sarif_location(place: TextPlace, request: LintedRequest) -> Json:
    location: Json = {"logicalLocations": [{"fullyQualifiedName": place.path, "kind": "value"}]}
    if request.line:
        artifact = {"artifactLocation": {"uri": quote(request.source)}, "region": {"startLine": request.line}}
        location["physicalLocation"] = artifact
    return location


def _sentence(finding: Finding) -> str:
    cost = render_waste(finding.waste)
    return f"{finding.place}: {finding.words}." + (f" Costs {cost}." if cost else "") + f" {finding.fix}"


def _escape(text: str, also: str = "") -> str:
    for char in "%\r\n" + also:
        text = text.replace(char, f"%{ord(char):02X}")
    return text
