"""Plausible runs that never were: an agent asks, a router places, a server reads and writes, tools run; some ahead of
time. The same seed makes the same run. With `content`, what was said is there as well, and it is hostile unless tame.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotloop.trace import names
from hotloop.trace.content import Content
from hotloop.trace.span import Span
from hotloop.trace.store import Bounds, StoreTracer
from hotloop.ui.source import KvUse, LintLine, Live, LiveReplica, LiveRequest, SessionBlocks

MS = 1_000_000
START_NS = 1_790_000_000 * 10**9
AGENTS = ("flight desk", "code review", "night report", "triage")
TOOLS = ("search_flights", "read_file", "run_tests", "lookup_customer", "list_orders")
SCRIPT = "<script>window.hacked = true</script><img src=x onerror='window.hacked = true'>"
TAME = ("Monday 10:15", '{"city": "Rome", "days": 2}', "Two flights leave before noon.")
HOSTILE = (
    SCRIPT,
    "\"'`</style></title><svg onload=alert(1)>",
    "\u202eforged\u202c شلوم",
    "x" * 9000,
    "\x00\x1b[31m\n\t{{constructor}}",
)


@dataclass
class Run:
    """One run in the making. `now` is where its clock stands."""

    seed: int
    agent: str = ""
    session: str = ""
    content: bool = False
    is_tame: bool = False
    start_ns: int = START_NS
    spans: list[Span] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.trace_id = self._id(128)
        self.now = self.start_ns
        self.num_prompt = self.random.randrange(800, 4000)
        self.num_cached = 0
        self.texts = TAME if self.is_tame else HOSTILE

    @property
    def is_hostile(self) -> bool:
        return self.content and not self.is_tame

    def agent_run(self, num_turns: int, *, end: str = "done") -> list[Span]:
        _, *later = self.growing(num_turns, end=end)
        return [span for spans in later for span in spans]

    def growing(self, num_turns: int, *, end: str = "done") -> Iterator[list[Span]]:
        """As it is recorded while it goes on: that it has begun, turn after turn, and how it ended."""
        run_id = self._id()
        self._add(names.RUN, run_id, None, "agent", self.start_ns, self.start_ns, {names.AGENT: self.agent})
        yield self._take()
        for turn in range(1, num_turns + 1):
            self._turn(run_id, turn, is_last=turn == num_turns)
            yield self._take()
        told = {names.AGENT: self.agent, names.END: end, names.NUM_TURNS: num_turns} | self._said(names.CONTENT_PROMPT)
        error = "the model could not be reached" if end == "failed" else ""
        self._add(names.RUN, run_id, None, "agent", self.start_ns, self.now, told, error)
        yield self._take()

    def _take(self) -> list[Span]:
        spans, self.spans = self.spans, []
        return spans

    def plain_request(self) -> list[Span]:
        self._request(None, self._id(), 0)
        return self.spans

    def _turn(self, run_id: str, turn: int, *, is_last: bool) -> None:
        turn_id, chat_id, route_id, began_ns = self._id(), self._id(), self._id(), self.now
        self.now += self._ms(0.2, 1)
        routed_ns = self.now
        self.now += self._ms(0.1, 1)
        first_ns, decode_ns, tokens = self._request(route_id, self._id(), turn)
        self.now += self._ms(0.1, 0.5)
        usage = {name: tokens[name] for name in (names.NUM_PROMPT, names.NUM_CACHED, names.NUM_OUTPUT)}
        told: dict[str, Any] = {
            names.REPLICA: f"tiny-{turn % 2 + 1}",
            names.REASON: "most of the prompt is there",
            names.FIRST_BYTE_NS: first_ns,
            names.MODEL: "tiny",
            **usage,
        }
        self._add(names.ROUTE, route_id, chat_id, "router", routed_ns, self.now, told)
        told = {names.MODEL: "tiny", names.FIRST_TOKEN_NS: first_ns, **usage}
        self._add(names.CHAT, chat_id, turn_id, "agent", began_ns + MS // 10, self.now, told)
        if not is_last:
            self._tools(turn_id, decode_ns, self.now)
        self._add(names.TURN, turn_id, run_id, "agent", began_ns, self.now, {names.INDEX: turn})

    def _request(self, parent: str | None, span_id: str, turn: int) -> tuple[int, int, dict[str, Any]]:
        """The server's part; when the first token came, when the first call was whole, and what was counted."""
        arrived_ns, rng = self.now, self.random
        tokens = self._tokens(turn)
        scheduled_ns = arrived_ns + self._ms(0.5, 12)
        first_ns = scheduled_ns + self._ms(2, 5) + (tokens[names.NUM_NEW] + tokens[names.NUM_RECOMPUTED]) * MS // 6
        last_ns = first_ns + tokens[names.NUM_SAMPLED] * rng.randrange(9, 20) * MS
        server = f"server:tiny@870{1 + turn % 2}"
        for name, begin, end in (
            (names.QUEUE, arrived_ns, scheduled_ns),
            (names.PREFILL, scheduled_ns, first_ns),
            (names.DECODE, first_ns, last_ns),
        ):
            self._add(name, self._id(), span_id, server, begin, end, {})
        self.now = last_ns
        words: dict[str, Any] = {}
        if self.content and tokens[names.CAUSES]:
            divergence = {"before": "system\nIt is ", "previous": "Monday 10:14", "current": self.texts[0]}
            words = {names.CONTENT_WORDS: [divergence] + [None] * (len(tokens[names.CAUSES]) - 1)}
        told = {
            names.MODEL: "tiny",
            names.ANSWER_ID: f"chatcmpl-{span_id}",
            names.PRIORITY: rng.choice(("interactive", "workflow")),
            names.FINISH_REASON: "stop",
            **tokens,
            **words,
            **self._said(names.CONTENT_ANSWER),
        }
        self._add(names.REQUEST, span_id, parent, server, arrived_ns, last_ns, told)
        return first_ns, first_ns + (last_ns - first_ns) // 3, tokens

    def _tokens(self, turn: int) -> dict[str, Any]:
        """Prompts grow; most of each was read before; now and then something at the front has changed."""
        rng = self.random
        num_prompt = self.num_prompt
        num_cached = min(self.num_cached, num_prompt - 1) // 16 * 16
        num_block = max(min(self.num_cached, num_prompt) - num_cached, 0) if turn > 1 else 0
        causes: list[dict[str, Any]] = [{"reason": "block", "num_tokens": num_block}] if num_block else []
        if turn > 1 and rng.random() < 0.06:
            num_common = rng.randrange(0, num_cached // 16 + 1) * 16
            place = {"token_index": num_common + 3, "kind": "system", "index": 0}
            causes = [{"reason": "diverged", "num_tokens": num_cached + num_block - num_common, **place}]
            num_cached = num_common
        num_recomputed = sum(cause["num_tokens"] for cause in causes)
        num_output = rng.randrange(12, 90)
        num_forced = rng.randrange(0, num_output // 3)
        num_drafted = rng.randrange(0, num_output // 2)
        num_accepted = min(rng.randrange(0, num_drafted + 1), num_output - num_forced)
        self.num_cached = num_prompt + num_output
        self.num_prompt = num_prompt + num_output + rng.randrange(40, 400)
        return {
            names.NUM_PROMPT: num_prompt,
            names.NUM_CACHED: num_cached,
            names.NUM_RECOMPUTED: num_recomputed,
            names.NUM_NEW: num_prompt - num_cached - num_recomputed,
            names.CAUSES: causes,
            names.NUM_OUTPUT: num_output,
            names.NUM_SAMPLED: num_output - num_forced,
            names.NUM_FORCED: num_forced,
            names.NUM_DRAFTED: num_drafted,
            names.NUM_ACCEPTED: num_accepted,
            names.NUM_STEPS: num_output - num_forced - num_accepted,
        }

    def _tools(self, turn_id: str, decode_ns: int, chat_end_ns: int) -> None:
        rng, end_ns = self.random, chat_end_ns
        for i in range(rng.randrange(1, 4)):
            dispatched_ns = min(decode_ns + i * 60 * MS, chat_end_ns)
            was_speculative = rng.random() < 0.25
            begin_ns = dispatched_ns - self._ms(5, 40) if was_speculative else dispatched_ns
            tool_end_ns = dispatched_ns + self._ms(20, 900)
            told = {
                names.TOOL_NAME: rng.choice(HOSTILE[:3] if self.is_hostile else TOOLS),
                names.CALL_ID: f"call_{i}",
                names.DISPATCHED_NS: dispatched_ns,
                names.WAS_SPECULATIVE: was_speculative,
                names.NUM_TRIES: 1,
                names.IS_ERROR: rng.random() < 0.05,
                **self._said(names.CONTENT_ARGUMENTS),
                **self._said(names.CONTENT_RESULT),
            }
            self._add(names.TOOL, self._id(), turn_id, "agent", begin_ns, tool_end_ns, told)
            end_ns = max(end_ns, tool_end_ns)
        if rng.random() < 0.2:
            told = {names.TOOL_NAME: rng.choice(TOOLS), names.CONFIDENCE: 0.71, names.WAS_USED: False}
            self._add(names.SPECULATIVE, self._id(), turn_id, "agent", decode_ns, decode_ns + self._ms(10, 60), told)
        self.now = end_ns + self._ms(0.1, 2)

    def _said(self, name: str) -> dict[str, str]:
        return {name: self.random.choice(self.texts)} if self.content else {}

    def _add(
        self,
        name: str,
        span_id: str,
        parent_id: str | None,
        service: str,
        start_ns: int,
        end_ns: int,
        attributes: dict[str, Any],
        error: str = "",
    ) -> None:
        self.spans.append(
            Span(
                trace_id=self.trace_id,
                span_id=span_id,
                parent_id=parent_id,
                name=name,
                service=service,
                start_ns=start_ns,
                end_ns=end_ns,
                session=self.session,
                attributes=attributes,
                error=error,
            )
        )

    def _id(self, num_bits: int = 64) -> str:
        return f"{self.random.getrandbits(num_bits):0{num_bits // 4}x}"

    def _ms(self, least: float, most: float) -> int:
        return int(self.random.uniform(least, most) * MS)


def make_runs(num_runs: int, *, every_s: float = 40.0) -> Iterator[list[Span]]:
    """Runs of several agents, the newest last; every seventh is a plain client's, every ninth has failed."""
    for i in range(num_runs):
        start_ns = START_NS + int(i * every_s * 1e9)
        session, agent = f"session-{i % 40:02}", AGENTS[i % len(AGENTS)]
        run = Run(i, agent, session, start_ns=start_ns)
        yield run.plain_request() if i % 7 == 3 else run.agent_run(1 + i % 5, end="failed" if i % 9 == 4 else "done")


def long_run(num_turns: int = 200) -> list[Span]:
    return Run(200_000, "long haul", "session-long", start_ns=START_NS - 10**13).agent_run(num_turns)


def hostile_run() -> list[Span]:
    run = Run(600_666, SCRIPT, SCRIPT, content=True, start_ns=START_NS - 10**12)
    return run.agent_run(12)


def fill_store(path: Path, *runs: list[Span], tags: Sequence[str] = ()) -> Path:
    bounds = Bounds(max_age_days=36_500)  # they were long ago, or will be
    tracer = StoreTracer(path, bounds=bounds, content=Content(is_kept=True), tags=tags)
    for spans in runs:
        for span in spans:
            tracer.record(span)
        assert tracer.flush()
    tracer.close()
    return path


class Engine:
    """Stands in for a server and a router at once: each time it is asked, a second has passed and more was done."""

    def __init__(self, session: str = SCRIPT) -> None:
        self.session = session
        self.num_asked = 0

    async def live(self) -> Live:
        self.num_asked += 1
        i = self.num_asked
        sessions = (
            SessionBlocks(session=None, num_used=20, num_cached=40),
            *(SessionBlocks(session=f"session-{n:02}", num_used=(n * i) % 9, num_cached=4 + 3 * n) for n in range(12)),
        )
        requests = tuple(
            LiveRequest(
                session=self.session if n == 1 else f"session-{n:02}",
                priority=("interactive", "workflow", "background")[n % 3],
                state=("decode", "prefill", "waiting")[n % 3],
                num_prompt=2000 + 310 * n,
                num_cached=1800 + 250 * n,
                num_output=0 if n % 3 else 7 * i % 60,
                age_s=0.4 + n / 3,
                above=((), (), (), ("main",), ("session-02",), ("main", "session-03"))[n],
            )
            for n in range(6)
        )
        num_prompt = sum(900 + 500 * (n % 7) for n in range(i))
        return Live(
            at_s=float(i),
            num_running=4 + i % 3,
            max_running=64,
            waiting={"interactive": 0, "workflow": 2, "background": 5 + i % 4},
            totals={
                "num_prompt": num_prompt,
                "num_cached": num_prompt * 93 // 100,
                "num_output": sum(60 + 25 * (n % 5) for n in range(i)),
                "num_forced": 20 * i,
                "num_accepted": 25 * i,
            },
            kv=KvUse(num_blocks=900, num_used=90, num_cached=420, block_size=16, sessions=sessions),
            requests=requests,
            replicas=(
                LiveReplica(name="tiny-1", kind="hotloop", state="up", models=("tiny",), num_running=3),
                LiveReplica(name="tiny-2", kind="vllm", state="down", why="connection refused", models=("tiny",)),
            ),
        )


FINDINGS = (
    LintLine(
        rule="HL001",
        severity="warning",
        words=f"the time of day stands before what does not change: {SCRIPT}",
        fix="Put it behind the tools, or into the last message.",
        place="request 4, messages[0].content characters 6-21",
        num_tokens=5_120,
        ms=840.0,
        money=0.0042,
    ),
    LintLine(rule="HL009", severity="note", words="the same file is sent twice", fix="Refer to it.", num_tokens=410),
)
