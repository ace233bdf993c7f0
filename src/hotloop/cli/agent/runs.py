"""`hotloop runs`: agents' runs by their journals, to go on with them. A run is named by its id, or how that begins."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from hotloop.cli.agent.approval import Approval
from hotloop.cli.agent.run import run_agent
from hotloop.cli.command_line import CommandLine
from hotloop.cli.output import count, shorten
from hotloop.cli.settings import TRACED, ApiKey, JsonOutput, Sources, TraceFlags
from hotloop.cli.tracing import tracing
from hotloop.core.config import TraceConfig
from hotloop.core.errors import ConfigError

if TYPE_CHECKING:
    from hotloop.agent.past import Past
    from hotloop.trace.journal import Journal, JournalRow

runs = CommandLine(
    name="runs", help="List agents' runs, and resume those that were interrupted.", config=Sources(only=TraceConfig)
)

Run = Annotated[str, Parameter(help="Run id, or a unique prefix of it.")]
_SHOWN_CHARS = 100


@runs.command(name="list")
def list_runs(
    *,
    limit: Annotated[PositiveInt, Parameter(help="Maximum runs to list.")] = 20,
    trace: TraceFlags = TRACED,
    as_json: JsonOutput = False,
) -> None:
    """List runs, newest first, with their states; those not done can be resumed."""
    with _journal(trace) as journal:
        rows = journal.list(limit).result()
    if as_json:
        print(json.dumps([_render(row) for row in rows]))
        return
    for row in rows:
        began = datetime.fromtimestamp(row.began_ns / 1e9)
        print(f"{row.run_id}  {began:%m-%d %H:%M}  {row.state:<11}  {shorten(row.agent or row.session, _SHOWN_CHARS)}")
    print(count(len(rows), "run"))


@runs.command
def show(run: Run, *, trace: TraceFlags = TRACED, as_json: JsonOutput = False) -> None:
    """Show a run: its state, its prompt, and the calls of its last turn."""
    with _journal(trace) as journal:
        shown = _describe(journal, run)
    if as_json:
        print(json.dumps(shown))
        return
    print(
        f"{shown['run_id']}: {shown['state']}; `hotloop trace show {shown['trace_id'][:8]}` shows where its time went"
    )
    if "calls" in shown:
        print(f"prompt  {shorten(shown['prompt'], _SHOWN_CHARS)}")
        _print_calls(shown["calls"], "  ")


def _print_calls(calls: list[dict[str, Any]], indent: str) -> None:
    for call in calls:
        doubt = "  (it may have run before)" if call["may_have_run"] else ""
        said = f"{call['name']} {shorten(call['arguments'], _SHOWN_CHARS)}{doubt}"
        print(f"{indent}{call['state']:<11} {call['id']}  {said}")
        if inner := call.get("run"):
            print(f"{indent}  {inner['run_id']}")
            _print_calls(inner.get("calls", []), indent + "    ")


@runs.command
def resume(
    run: Run,
    *,
    file: Annotated[Path | None, Parameter(help="The agent's file, if it has moved.")] = None,
    approve: Annotated[Approval | None, Parameter(help="Tool calls that need approval: ask, run all, or none.")] = None,
    api_key: ApiKey = None,
    trace: TraceFlags = TRACED,
    as_json: JsonOutput = False,
) -> None:
    """Resume a run of `hotloop run`, as `hotloop run FILE --resume RUN` does."""
    with _journal(trace) as journal:
        row, _ = journal.read(run).result()
    if not (file or row.source):
        raise ConfigError(
            f"the run {row.run_id} is not from `hotloop run`: pass --file, or use agent.resume() in Python"
        )
    run_agent(file or Path(row.source), resume=row.run_id, approve=approve, api_key=api_key, trace=trace, json=as_json)


@runs.command
def approve(
    run: Run,
    call: Annotated[str, Parameter(help="Id of the call; `hotloop runs show` lists them.")],
    *,
    deny: Annotated[str | None, Parameter(help="Deny the call, and give the model this reason; may be empty.")] = None,
    trace: TraceFlags = TRACED,
) -> None:
    """Approve or deny a call that a run waits for. It runs when the run is resumed."""
    from hotloop.agent.past import decide

    with _journal(trace) as journal:
        asyncio.run(decide(journal, run, call, True if deny is None else deny))
    print(f"{call}: {'approved' if deny is None else 'denied'}; `hotloop runs resume {run}` goes on")


@runs.command
def send(
    run: Run,
    message: Annotated[str, Parameter(help="Message for the model.")],
    *,
    trace: TraceFlags = TRACED,
) -> None:
    """Send a message to a run: it joins at the next turn, or when the run is resumed."""
    from hotloop.agent.past import send as tell
    from hotloop.core.message import Message

    with _journal(trace) as journal:
        asyncio.run(tell(journal, run, Message("user", message)))
    print(f"{run}: sent")


@runs.command
def pause(run: Run, *, trace: TraceFlags = TRACED) -> None:
    """Pause a run of another process after its current turn, and wait for that; `resume` continues it."""
    from hotloop.agent.past import pause as hold

    with _journal(trace) as journal:
        row = asyncio.run(hold(journal, run))
    print(f"{run}: {row.state}")


@runs.command
def cancel(run: Run, *, trace: TraceFlags = TRACED) -> None:
    """Cancel a run, and delete its conversation. If another process runs it, tool calls in progress that may have side
    effects finish first."""
    from hotloop.agent.past import cancel as give_up

    with _journal(trace) as journal:
        asyncio.run(give_up(journal, run))
    print(f"{run}: cancelled")


@contextmanager
def _journal(trace: TraceConfig) -> "Iterator[Journal]":
    with tracing(trace) as tracer:
        if tracer.journal is None:
            raise ConfigError("tracing is off; pass --trace FILE to choose a trace file")
        yield tracer.journal


def _render(row: "JournalRow") -> dict[str, Any]:
    import msgspec

    values: dict[str, Any] = msgspec.to_builtins(row)
    return {name: value for name, value in values.items() if name != "owner"}


def _describe(journal: "Journal", run_id: str) -> dict[str, Any]:
    """A run, and in its last turn's calls the runs of sub-agents."""
    from hotloop.agent.past import read_past

    row, entries = journal.read(run_id).result()
    if not entries:
        return _render(row)
    past = read_past(row, entries)
    prompt = " ".join(message.content for message in past.began.opening if message.role == "user")
    calls = list(_calls(past))
    for call in calls:
        inner_id = "" if call["state"] in ("done", "failed") else journal.find(row.run_id, call["id"]).result()
        if inner_id:
            inner = _describe(journal, inner_id)
            call |= {"run": inner, "state": inner["state"], "may_have_run": False}
    return _render(row) | {"num_turns": past.num_turns, "prompt": prompt, "calls": calls}


def _calls(past: "Past") -> "Iterator[dict[str, Any]]":
    opened = past.open
    for call in opened.message.tool_calls if opened else ():
        assert opened
        returned, is_cut = opened.outcomes.get(call.id), past.row.state != "running" and call.id in opened.running
        if returned:
            state = "failed" if returned.is_error else "done"
        elif call.id in past.verdicts:
            state = "decided"
        elif call.id in opened.waiting or call.id not in opened.begun:
            state = "waits"
        else:
            state = "cut off" if is_cut else "running"
        arguments = {"id": call.id, "name": call.name, "arguments": call.arguments}
        yield arguments | {"state": state, "may_have_run": is_cut}
