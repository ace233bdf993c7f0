"""Requests rewritten where that is safe: nothing a model is told is lost, and nothing said changes its meaning.

    tools        sorted by name, the keys of their schemas in one order; properties keep theirs
    lines that HL002 found in the system text   moved behind the message that was the newest when it was sent
    cache_control   on the last block of the system text and of the newest message

A time stays behind the message it was moved to while the conversation goes on, so that a prompt still begins as the one
before it. Bodies are never changed in place.
"""

import json
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

from hotloop.core.errors import ConfigError
from hotloop.lint.cause import LossCause
from hotloop.lint.change import Change
from hotloop.lint.parts import listing, mapping
from hotloop.lint.requests import BODY_KEYS
from hotloop.lint.run import LintedRun, LintedStep
from hotloop.stable.system import word_note
from hotloop.wire.field import Json
from hotloop.wire.stable import place_breakpoints, sort_tools


def fix_runs(runs: Sequence[LintedRun]) -> dict[int, Json]:
    return {index: body for run in runs for index, body in _fix_run(run)}


def fix_file(runs: Sequence[LintedRun]) -> Iterator[str]:
    """The lines of a file of requests, in their order, and what else they told. Raises ConfigError for a transcript."""
    rows = {step.request.index: step.request.row for run in runs for step in run.steps}
    for index, body in sorted(fix_runs(runs).items()):
        row = rows[index]
        if not row:
            raise ConfigError("transcripts cannot be fixed, only requests: one a line")
        key = next((name for name in BODY_KEYS if isinstance(row.get(name), dict)), None)
        yield json.dumps(row | {key: body} if key else body, ensure_ascii=False)


def _fix_run(run: LintedRun) -> Iterator[tuple[int, Json]]:
    moves = _Moves(run)
    wants_marks = any(part.has_breakpoint for step in run.steps for part in step.request.parts)
    for step in run.steps:
        body = moves.apply(step, sort_tools(deepcopy(step.request.body)))
        is_marked = wants_marks or (step.request.api == "messages" and len(run.steps) > 1)
        yield step.request.index, place_breakpoints(body) if is_marked and step.request.api == "messages" else body


class _Moves:
    """Which lines of the system text go where: known once all of a run was seen. `notes` are by message."""

    def __init__(self, run: LintedRun) -> None:
        self._lines = {
            (change.part.path, line)
            for step, change in run.changes_by(LossCause.VOLATILE)
            if change.part in step.request.system
            for line in _changed_lines(change)
        }
        self._notes: dict[int, str] = {}

    def apply(self, step: LintedStep, body: Json) -> Json:
        taken = [_take_line(body, path, line) for path, line in sorted(self._lines, reverse=True)]
        news = "\n".join(reversed([line for line in taken if line]))
        messages = [mapping(message) for message in listing(body.get("messages"))]
        inputs = [i for i, message in enumerate(messages) if message.get("role") in ("user", "tool")]
        if news and inputs:
            self._notes.setdefault(inputs[-1], news)
        for i, note in self._notes.items():
            if i in inputs:
                _append(messages[i], note)
        return body


def _changed_lines(change: Change) -> Iterator[int]:
    """A change goes from the first difference to the last, and what lies between may be the same."""
    assert change.old and change.new
    old, new = change.old.text.split("\n"), change.new.text.split("\n")
    first, last = (change.new.text.count("\n", 0, place) for place in (change.begin, change.end))
    if len(old) != len(new):
        yield first
    else:
        yield from (line for line in range(first, last + 1) if old[line] != new[line])


def _take_line(body: Json, path: str, line: int) -> str:
    """Cut a line out of a text of the body; empty if it has none there."""
    holder, key = _find_text(body, path)
    if holder is None:
        return ""
    lines = holder[key].split("\n")
    if line >= len(lines):
        return ""
    taken = lines.pop(line)
    if line < len(lines) and not lines[line].strip():  # the empty line that set it apart
        lines.pop(line)
    holder[key] = "\n".join(lines)
    return str(taken)


def _find_text(body: Json, path: str) -> tuple[Any, Any]:
    """What holds the text at a path, such as `messages[0].content`, and by which key; None and None if nothing does."""
    *steps, key = (int(step) if step.isdigit() else step for step in re.findall(r"\w+", path))
    holder: Any = body
    try:
        for step in steps:
            holder = holder[step]
        return (holder, key) if isinstance(holder[key], str) else (None, None)
    except (LookupError, TypeError):
        return None, None


def _append(message: Json, note: str) -> None:
    text = word_note(note)
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = f"{content}\n\n{text}"
    elif isinstance(content, list):
        content.append({"type": "text", "text": text})
