"""How runs are shown on a terminal: the list, and the account of one run under its picture. Nothing is wider than it.

What comes from a run (names, words of a prompt) is put there as text, never as markup, and on one line.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hotloop.cli.output import count, make_table, shorten
from hotloop.cli.trace.waterfall import MIN_SHARE, draw, draw_legend, duration
from hotloop.trace import names
from hotloop.trace.ledger import PathStep, RunLedger, TokenCounts, TurnLedger
from hotloop.trace.runs import RunSummary
from hotloop.trace.span import Span
from hotloop.trace.sweep import TimePart
from hotloop.trace.tree import SpanNode, build_tree

MAX_WIDTH = 140
ID_CHARS = 8
PART_WORDS: Mapping[TimePart, tuple[str, str]] = {
    TimePart.ROUTER_QUEUE: ("queue of the router", "yellow"),
    TimePart.QUEUE: ("queue of the engine", "yellow"),
    TimePart.PREPARE: ("preparing the prompt", "blue"),
    TimePart.PREFILL_NEW: ("prefill: new", "blue"),
    TimePart.PREFILL_RECOMPUTED: ("prefill: recomputed", "red"),
    TimePart.DECODE_SAMPLED: ("decode: sampled", "cyan"),
    TimePart.DECODE_FORCED: ("decode: forced", "cyan"),
    TimePart.DECODE_ACCEPTED: ("decode: accepted", "cyan"),
    TimePart.HOSTED_PREFILL: ("hosted, to 1st token", "blue"),
    TimePart.HOSTED_DECODE: ("hosted, after it", "cyan"),
    TimePart.NETWORK: ("network", "dim"),
    TimePart.TOOLS: ("tools", "green"),
    TimePart.SPECULATIVE: ("speculative tools", "magenta"),
    TimePart.PREFILL_AHEAD: ("prefill ahead", "blue"),
    TimePart.RUNTIME: ("the runtime", "dim"),
    TimePart.CLIENT: ("the client", "dim"),
}
_WHO = "AGENT, SESSION"
_LIST_WIDTH = 100
_NAME_CHARS = 40
_WORDS_CHARS = 60
_PARTS = "WHERE THE TIME WENT"
_PART_CELLS = 30


def make_console() -> Console:
    console = Console(highlight=False, markup=False)
    console.width = min(console.width, MAX_WIDTH)
    return console


def list_runs(runs: Iterable[RunSummary], width: int) -> Table:
    titles = ("RUN", "WHEN", _WHO, "TURNS", "WALL", "TOKENS", "CACHED", "MONEY")
    table = make_table(*titles, words=(_WHO,), width=min(width, _LIST_WIDTH))
    for run in runs:
        words = ", ".join(word for word in (run.agent, run.session) if word) or run.model
        ill = run.end if run.end in ("failed", "limit", "cancelled") else "errors" if run.num_errors else ""
        state = ("running: ", "green") if run.is_running else (f"{ill}: " if ill else "", "red")
        who = Text.assemble(state, shorten(words, _LIST_WIDTH))
        table.add_row(
            run.trace_id[:ID_CHARS],
            f"{_local(run.start_ns):%m-%d %H:%M}",
            who,
            f"{run.num_turns:,}",
            duration(run.wall_s),
            compact(run.num_prompt + run.num_output),
            _percent(run.num_cached, run.num_prompt),
            money(run.money),
        )
    return table


def show_run(spans: Sequence[Span], ledger: RunLedger, width: int, chosen: range | None = None) -> Group:
    roots = build_tree(spans)
    nodes = {node.span.span_id: node for root in roots for node in root.walk()}
    turns = [turn for turn in ledger.turns if turn.span_id in nodes]
    if chosen is None:
        return Group(*_sections(ledger, roots, nodes, turns, ledger.parts, width))
    # A turn's number is that of the agent who was asked, not of those it asked.
    turns = [turn for turn in turns if turn.index in chosen and not _is_within_turn(nodes[turn.span_id])]
    parts = {part: sum(turn.parts.get(part, 0.0) for turn in turns) for part in ledger.parts}
    return Group(*_sections(ledger, [nodes[turn.span_id] for turn in turns], nodes, turns, parts, width))


def _is_within_turn(node: SpanNode) -> bool:
    above = node.parent
    while above and above.name != names.TURN:
        above = above.parent
    return above is not None


def _sections(
    ledger: RunLedger,
    roots: Sequence[SpanNode],
    nodes: Mapping[str, SpanNode],
    turns: Sequence[TurnLedger],
    parts: Mapping[TimePart, float],
    width: int,
) -> Iterator[RenderableType]:
    yield from _heading(ledger)
    if roots:
        yield Text()
        yield from draw(roots, ledger, width)
        yield draw_legend()
    if turns:
        yield Text()
        yield _token_table(turns, ledger)
    recomputed = [line for turn in turns for line in _describe_recomputed(turn, nodes[turn.span_id])]
    if recomputed:
        yield Text("\nrecomputed", style="bold")
        yield from recomputed
    yield Text()
    yield _part_table(parts)
    yield Text("\nwaited for, in order", style="bold")
    yield _describe_path(ledger, roots, nodes)


def _heading(ledger: RunLedger) -> Iterator[Text]:
    end = "running, as far as it has come" if ledger.is_running else ledger.end
    who = [ledger.agent, f"session {ledger.session}" if ledger.session else "", end]
    yield Text(shorten(", ".join(word for word in (f"run {ledger.trace_id}", *who) if word), MAX_WIDTH), style="bold")
    read, began_at = ledger.tokens.prompt, _local(ledger.start_ns)
    cost = f", {money(ledger.money)} cost" if ledger.money else ""
    yield Text(
        f"{began_at:%Y-%m-%d %H:%M:%S}: {count(len(ledger.turns), 'turn')} in {duration(ledger.wall_s)}, {read:,} "
        f"prompt tokens ({_percent(ledger.tokens.cached, read)} cached), {ledger.tokens.output:,} output{cost}"
    )
    num_speculative, wasted = (
        sum(getattr(turn, name) for turn in ledger.turns) for name in ("num_speculative", "num_wasted")
    )
    speculative = f"; speculative {num_speculative}, wasted {wasted}" if num_speculative else ""
    reused = [tool for turn in ledger.turns for tool in turn.tools if tool.reused]
    saved = f"; results reused {len(reused)}, {duration(sum(tool.saved_s for tool in reused))} saved" if reused else ""
    idle, hidden = duration(ledger.model_idle_s), duration(ledger.tools_hidden_s)
    yield Text(
        f"model idle {idle}, tools idle {duration(ledger.tool_idle_s)}, tools hidden {hidden}{speculative}{saved}"
    )
    if ledger.num_saved:
        worth = f", {money(ledger.money_saved)} money" if ledger.money_saved else ""
        yield Text(f"stable prompts saved {ledger.num_saved:,} prompt tokens{worth}")
    if ledger.error:
        yield Text(shorten(ledger.error, MAX_WIDTH), style="red")


def _token_table(turns: Sequence[TurnLedger], ledger: RunLedger) -> Table:
    titles = ("TURN", "PROMPT", "CACHED", "NEW", "RECOMPUTED", "OUTPUT", "FORCED", "ACCEPTED", "TTFT", "WALL")
    table = make_table(*titles, words=())
    for turn in turns:
        first = duration(turn.first_token_s) if turn.first_token_s is not None else ""
        table.add_row(str(turn.index), *_token_cells(turn.tokens), first, duration(turn.wall_s))
        if turn.prefill_ahead.prompt:
            table.add_row("ahead", *_token_cells(turn.prefill_ahead), "", "", style="dim")
        if turn.lost.prompt:
            table.add_row("lost", *_token_cells(turn.lost), "", "", style="dim")
    if len(turns) == len(ledger.turns):
        table.add_row("all", *_token_cells(ledger.tokens), "", duration(ledger.wall_s), style="bold")
    return table


def _token_cells(tokens: TokenCounts) -> list[Text]:
    counts = (
        tokens.prompt,
        tokens.cached,
        tokens.new,
        tokens.recomputed,
        tokens.output,
        tokens.forced,
        tokens.accepted,
    )
    styles = ("", "", "", "red" if tokens.recomputed else "", "", "", "")
    return [Text(f"{number:,}", style) for number, style in zip(counts, styles, strict=True)]


def _describe_recomputed(turn: TurnLedger, node: SpanNode) -> Iterator[Text]:
    """What the server told of the turn's answers."""
    causes = (cause for call in node.calls() for below in call.walk() for cause in below.causes())
    for cause, words in causes:
        if cause["reason"] != "cold":
            reason, place, quoted = shorten(cause["reason"], _NAME_CHARS), _place(cause), _quote(words)
            line = f"turn {turn.index}  {reason}: {cause['num_tokens']:,} tokens"
            yield Text(line + (f", {place}" if place else "") + (f": {quoted}" if quoted else ""))


def _place(cause: Mapping[str, Any]) -> str:
    kind, index, token = (cause.get(name) for name in ("kind", "index", "token_index"))
    words = [f"in {kind}" if kind else "", str(index) if kind and index is not None else ""]
    words.append(f"from token {token:,}" if isinstance(token, int) else "")
    return shorten(" ".join(words), _WORDS_CHARS)


def _quote(words: Any) -> str:
    match words:
        case {"previous": str(previous), "current": str(current)}:
            return f"“{shorten(current, _WORDS_CHARS)}”, which was “{shorten(previous, _WORDS_CHARS)}”"
    return ""


def _part_table(parts: Mapping[TimePart, float]) -> Table:
    table = make_table(_PARTS, "TIME", "SHARE", words=(_PARTS,))
    table.add_column()
    total_s = sum(parts.values())
    for part, words, style in ((part, *PART_WORDS[part]) for part in TimePart if parts.get(part)):
        share = parts[part] / total_s
        bar = Text("█" * round(share * _PART_CELLS), style)
        table.add_row(words, duration(parts[part]), f"{share:.1%}", bar)
    table.add_row("all", duration(total_s), "", "", style="bold")
    return table


def _describe_path(ledger: RunLedger, roots: Sequence[SpanNode], nodes: Mapping[str, SpanNode]) -> Text:
    """While these lasted; what took a hundredth of the run or more."""
    begin, end = min((root.begin for root in roots), default=0), max((root.end for root in roots), default=0)
    steps = [step for step in ledger.critical_path if begin <= step.start_ns < end]
    long = [step for step in steps if _length_s(step) >= MIN_SHARE * ledger.wall_s]
    words = [f"{_step_words(nodes.get(step.span_id))} {duration(_length_s(step))}" for step in long]
    return Text(" → ".join(words) or "nothing for long")


def _step_words(node: SpanNode | None) -> str:
    match node.name if node else "":
        case names.TOOL | names.SPECULATIVE if node:
            return shorten(str(node.span.attributes.get(names.TOOL_NAME) or node.name), _NAME_CHARS)
        case names.CHAT | names.ROUTE | names.ATTEMPT if node:
            return "network" if node.is_served else "model"
        case names.RUN | names.TURN:
            return "runtime"
        case names.REQUEST:
            return "server"
        case "":
            return "client"
        case name:
            return shorten(name, _NAME_CHARS)


def _length_s(step: PathStep) -> float:
    return (step.end_ns - step.start_ns) / 1e9


def _local(unix_ns: int) -> datetime:
    return datetime.fromtimestamp(unix_ns / 1e9).astimezone()


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def compact(number: float) -> str:
    """A count in seven characters at most."""
    if number < 100_000:
        return f"{number:,.0f}"
    return f"{number / 1e3:.0f}k" if number < 999_500 else f"{number / 1e6:.2f}M"


def money(amount: float) -> str:
    return f"{amount:.4f}" if amount else "-"
