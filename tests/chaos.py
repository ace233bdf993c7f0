"""Do the real parts stay right together? A router, two servers with a tiny model and agents that ask all the time while
servers are killed, stopped for a while, told to leave, and have no room on their disks, and clients hang up.

The model is random but fixed, and greedy: what it answers in a quiet hour it must answer in trouble, word for word,
from whichever server and whatever is cached. Every request ends with that answer or with an error that says so; in the
end nothing is left behind. All of it is on loopback, and ends what it started and nothing else.

With `--signals` all three are only told to reload and to stop, and are started again: then no answer may be lost.
With `--kills N` there is one server with three fronts: so often one of them or the engine is killed, or a client stops
to read or hangs up. Then only what a killed front was answering may be lost.
"""

import asyncio
import json
import math
import os
import random
import re
import resource
import signal
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
from benchmarks.command import main, show_report
from benchmarks.route.processes import RouterProcess
from benchmarks.vocabularies import END, write_filled_tokenizer
from cyclopts.types import PositiveFloat
from rich.table import Table

from hotloop.bench.serving import ChildServer
from hotloop.cli.output import console
from hotloop.cli.settings import JsonOutput
from hotloop.core.errors import ConfigError, RemoteError
from hotloop.http.listen import bind

MARK = "BENCH_CHAOS"
"""In the environment of all that is started here, and of what that starts."""

_NUM_AGENTS, _NUM_CONVERSATIONS, _NUM_TURNS = 8, 12, 4
_MAX_ANSWER_S, _MAX_SETTLE_S, _LEAVE_SHARE = 90.0, 60.0, 0.1
_NUM_RELOADS, _NUM_STOPS = 200, 50
_VOCAB_SIZE = 600
_CONFIG = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": _VOCAB_SIZE, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "tie_word_embeddings": False,
}  # fmt: skip
_TEMPLATE = (
    "{% if tools %}{{ tools|tojson }}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function|tojson }}</tool_call>{% endfor %}<|im_end|>{% endfor %}"
)
_PROPERTIES = {"a": {"type": "integer", "minimum": 0, "maximum": 999}, "b": {"enum": ["x", "y"]}}
_SCHEMA = {"type": "object", "properties": _PROPERTIES, "required": ["a", "b"], "additionalProperties": False}
_TOOL = {"type": "function", "function": {"name": "look", "parameters": _SCHEMA}}

Outcome = Literal["right", "wrong", "refused", "left", "cut", "lost", "late"]
Trouble = Literal["killed", "stopped", "drained", "disk full", "reloaded", "front killed", "reader stopped", "hung up"]
_KILLS: dict[Trouble, int] = {"front killed": 20, "reader stopped": 9, "hung up": 9, "killed": 1}
_NO_ROUTER: dict[str, Any] = {"waiting": 0, "replicas": ()}
_TROUBLES: tuple[Trouble, ...] = ("killed", "killed", "stopped", "stopped", "drained", "disk full")


@dataclass(slots=True)
class ChaosReport:
    """`refused` were told so, `left` hung up themselves; of the others that are not `right` there may be none."""

    duration_s: float = 0.0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    troubles: Counter[Trouble] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        bad = sum(self.outcomes[each] for each in ("wrong", "cut", "lost", "late"))
        return not self.findings and not bad and self.outcomes["right"] > 0

    def to_json(self) -> dict[str, Any]:
        return {  # by hand: asdict would count the pairs of a Counter
            "duration_s": self.duration_s,
            "outcomes": dict(self.outcomes),
            "troubles": dict(self.troubles),
            "refusals": dict(self.refusals),
            "findings": self.findings,
            "is_good": self.is_good,
        }

    def to_table(self) -> Table:
        table = Table("what", "how often")
        for counts in (self.outcomes, self.troubles, self.refusals):
            for name, count in counts.most_common():
                table.add_row(name, f"{count:,}")
            table.add_section()
        for finding in self.findings:
            table.add_row(finding, "")
        return table


class ChaosServer(ChildServer):
    """`hotloop serve` with a folder of its own."""

    def __init__(self, model: Path, folder: Path, flags: Sequence[str]) -> None:
        super().__init__(
            [
                *("--model", str(model), "--load-format", "dummy", "--device", "cpu", "--precision", "exact"),
                *("--kv-memory", "2MB", "--kv-dir", str(folder / "kv"), "--kv-dir-size", "16MB"),
                *("--max-context", "2048", "--trace", str(folder / "trace.db"), "--debug-checks", *flags),
            ]
        )


def stay(server: ChildServer) -> None:
    """Have it listen where it does, whenever it is started: at a port that the system gives to no connection."""
    port = 0
    while not port:
        with suppress(ConfigError), bind("127.0.0.1", random.randrange(10_000, 30_000)) as listener:
            port = listener.getsockname()[1]
    server._command[server._command.index("--port") + 1] = str(port)


def restart(server: ChildServer, children: Sequence[int] = ()) -> None:
    """Told to stop, and started again once those have ended that have its port: a front has it before it listens."""
    ChildServer.close(server)  # a router's own would also remove its file
    while any(Path(f"/proc/{child}/fd/0").exists() for child in children):
        time.sleep(0.05)
    server.start()


@dataclass(slots=True)
class _Stage:
    """The parts, and what is asked of them."""

    router: RouterProcess | None
    servers: list[ChaosServer]
    http: httpx.AsyncClient
    rng: random.Random
    report: ChaosReport
    over: asyncio.Event = field(default_factory=asyncio.Event)
    answers: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    """The message of the assistant, by conversation and turn."""
    killed: set[int] = field(default_factory=set)
    """Fronts."""
    killed_at: float = 0.0

    async def learn(self) -> None:
        """What is answered when all is quiet."""
        for number in range(_NUM_CONVERSATIONS):
            for turn in range(_NUM_TURNS):
                body = self._body(number, turn)
                said = (await self.http.post("/v1/chat/completions", json=body)).raise_for_status().json()
                self.answers[number, turn] = said["choices"][0]["message"]

    def _body(self, number: int, turn: int) -> dict[str, Any]:
        rng = random.Random(number)
        messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief. " * 20}]
        for i in range(turn + 1):
            if i:
                messages.append(self.answers[number, i - 1])
                messages += [
                    {"role": "tool", "tool_call_id": call["id"], "content": f"found {rng.random():.3f}"}
                    for call in messages[-1].get("tool_calls") or ()
                ]
            messages.append({"role": "user", "content": f"{number}/{i} " + "word " * rng.randint(1, 60)})
        body = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 24, "session_id": f"s{number}"}
        has_tools = (number + turn) % 3 == 0
        return body | ({"tools": [_TOOL], "tool_choice": "required", "max_tokens": 80} if has_tools else {})

    async def ask_on(self, url: str) -> None:
        """One agent: conversations from their beginning, over and over."""
        while not self.over.is_set():
            number = self.rng.randrange(_NUM_CONVERSATIONS)
            for turn in range(_NUM_TURNS):
                self.report.outcomes[await self.ask(number, turn, url)] += 1
                await asyncio.sleep(self.rng.uniform(0, 0.3))
                if self.over.is_set():
                    return

    async def ask(self, number: int, turn: int, url: str = "") -> Outcome:
        body = self._body(number, turn) | {"stream": self.rng.random() < 0.6}
        leaves_at = self.rng.randint(1, 8) if self.rng.random() < _LEAVE_SHARE else None
        began_at, front = time.monotonic(), None
        try:
            async with (
                asyncio.timeout(_MAX_ANSWER_S),
                self.http.stream("POST", f"{url}/v1/chat/completions", json=body) as got,
            ):
                front = None if self.router else front_of(got, self.servers[0].pid)
                if got.status_code != 200:
                    return self._refused(json.loads(await got.aread())["error"]["code"])
                if not body["stream"]:
                    message = json.loads(await got.aread())["choices"][0]["message"]
                    return self._judge(number, turn, said_by(message))
                return await self._hear(got, number, turn, leaves_at)
        except TimeoutError:
            return "late"
        except httpx.ConnectError:
            return self._refused("connection refused")
        except (httpx.HTTPError, ValueError, KeyError) as error:
            if front in self.killed or not (front or self.router or self.killed_at < began_at):
                return self._refused("its front was killed" if front else "a front was killed before it was admitted")
            self.report.findings.append(f"{number}/{turn}: {error!r:.200}")
            return "lost"

    async def _hear(self, got: httpx.Response, number: int, turn: int, leaves_at: int | None) -> Outcome:
        said, num_events, is_whole = "", 0, False
        async for line in got.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event, num_events = json.loads(line.removeprefix("data: ")), num_events + 1
            if "error" in event:
                return self._refused(f"{event['error']['code']} in the stream")
            for choice in event["choices"]:
                said += said_by(choice["delta"])
                is_whole = is_whole or bool(choice["finish_reason"])
            if num_events == leaves_at:
                return "left"
        return self._judge(number, turn, said) if is_whole else "cut"

    def _judge(self, number: int, turn: int, said: str) -> Outcome:
        expected = said_by(self.answers[number, turn])
        if said == expected:
            return "right"
        self.report.findings.append(f"{number}/{turn}: said {said!r:.200} instead of {expected!r:.200}")
        return "wrong"

    def _refused(self, code: str) -> Outcome:
        self.report.refusals[code] += 1
        return "refused"

    async def trouble(self, duration_s: float) -> None:
        deadline = time.monotonic() + duration_s
        while (left_s := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, self.rng.uniform(2, 8)))
            await self._make(self.rng.choice(_TROUBLES), self.rng.choice(self.servers))
        self.over.set()

    async def signal(self) -> None:
        plan: list[Trouble] = [*["reloaded"] * _NUM_RELOADS, *["drained"] * _NUM_STOPS]  # type: ignore[list-item]
        self.rng.shuffle(plan)
        for trouble in plan:
            await self._make(trouble, self.rng.choice((*filter(None, (self.router,)), *self.servers)))
            await asyncio.sleep(self.rng.uniform(0, 0.3))
        self.over.set()

    async def play_kills(self, num_kills: int) -> None:
        async with self.http:
            await self.learn()
            began_at = time.monotonic()
            await asyncio.gather(self.kill(num_kills), *map(self.ask_on, [""] * _NUM_AGENTS))
            self.report.duration_s = time.monotonic() - began_at
            await self.settle()

    async def kill(self, num_kills: int) -> None:
        server = self.servers[0]
        for trouble in self.rng.choices([*_KILLS], [*_KILLS.values()], k=num_kills):
            while len(fronts_of(server.pid)) < 2:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0.05)
            await self._make(trouble, server)
            await asyncio.sleep(self.rng.uniform(0, 0.3))
        self.over.set()

    async def _begin_answer(self, read_s: float) -> None:
        """Of which no more than the first line is read, for so long."""
        body = self._body(0, 0) | {"stream": True, "max_tokens": 1000, "ignore_eos": True}
        with suppress(httpx.HTTPError):  # it may be its front that is killed
            async with self.http.stream("POST", "/v1/chat/completions", json=body) as got:
                await anext(got.aiter_lines(), None)
                await asyncio.sleep(read_s)

    async def _make(self, trouble: Trouble, server: ChildServer) -> None:
        self.report.troubles[trouble] += 1
        match trouble:
            case "front killed":
                front = self.rng.choice(fronts_of(server.pid))
                self.killed.add(front)
                self.killed_at = time.monotonic()
                os.kill(front, signal.SIGKILL)
            case "reader stopped" | "hung up":
                await self._begin_answer(self.rng.uniform(0.5, 3) if trouble == "reader stopped" else 0)
            case "killed":
                children, self.killed_at = children_of(server.pid), math.inf  # until it is back
                self.killed.update(fronts_of(server.pid))
                os.kill(server.pid, signal.SIGKILL)
                await asyncio.sleep(self.rng.uniform(0, 3))
                await asyncio.to_thread(restart, server, children)
                self.killed_at = time.monotonic()
            case "drained":
                await asyncio.to_thread(restart, server)
            case "reloaded" if server is self.router:
                urls = [each.url for each in self.servers]
                self.router.reload(self.rng.sample(urls, self.rng.randint(1, len(urls))))
            case "reloaded":
                os.kill(server.pid, signal.SIGHUP)
            case "stopped":
                os.kill(server.pid, signal.SIGSTOP)
                await asyncio.sleep(self.rng.uniform(0.5, 8))
                os.kill(server.pid, signal.SIGCONT)
            case "disk full":
                _, most = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
                resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, most))
                await asyncio.sleep(self.rng.uniform(2, 8))
                resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (most, most))

    async def settle(self) -> None:
        """All is quiet again: everything is answered rightly, and nothing is held for anybody."""
        deadline = time.monotonic() + _MAX_SETTLE_S
        while found := await self._unsettled():
            if time.monotonic() > deadline:
                self.report.findings += found
                break
            await asyncio.sleep(0.5)
        for number, turn in self.answers:
            if (outcome := await self.ask(number, turn)) not in ("right", "left"):
                self.report.findings.append(f"{number}/{turn}: {outcome} after all was over")

    async def _unsettled(self) -> list[str]:
        found = []
        try:
            page = (await self.http.get("/router/replicas")).json() if self.router else _NO_ROUTER
            found += [f"waiting at the router: {page['waiting']}"] if page["waiting"] else []
            for each in page["replicas"]:
                if each["state"] != "up" or each["running"]:
                    found.append(f"{each['name']} is {each['state']} with {each['running']} running")
            for server in self.servers:
                page = (await self.http.get(f"{server.url}/metrics")).text
                for name in ("requests_running", "requests_waiting", "kv_blocks_used"):
                    num = sum(map(float, re.findall(rf"(?m)^hotloop_{name}(?:{{.*}})? (\S+)$", page)))
                    found += [f"{server.url}: {name} is {num:g}"] if num else []
        except httpx.HTTPError as error:
            found.append(f"{error!r}")
        return found


def said_by(message: dict[str, Any]) -> str:
    """Words and calls, but for the ids, which are new each time."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return (message.get("content") or "") + "".join(f"{call.get('name') or ''}{call['arguments']}" for call in calls)


def write_model(folder: Path) -> Path:
    """A model of random weights: tokens are bytes and made-up words, and one that ends an answer."""
    folder.mkdir()
    write_filled_tokenizer(folder, _VOCAB_SIZE)
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": _TEMPLATE, "eos_token": END}))
    return folder


def marked_processes(mark: str) -> list[int]:
    """What was started here, or by what was started here, and still runs."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={mark}\0".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return [pid for pid in found if pid != os.getpid()]


def children_of(pid: int) -> list[int]:
    """The processes that one has started and that have not ended."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def fronts_of(pid: int) -> list[int]:
    """The processes of a server that listen to each other."""
    lines = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if "/hotloop-" in line]
    return sorted(child for child in children_of(pid) if any(line.endswith(f"/{child}") for line in lines))


def front_of(got: httpx.Response, pid: int) -> int | None:
    """Which of them has the other end of the connection; None if it has just ended."""
    port = got.extensions["network_stream"].get_extra_info("client_addr")[1]
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{row[9]}]" for row in rows if row[2].endswith(f":{port:04X}")}
    with suppress(OSError):
        for front in fronts_of(pid):
            if inodes & {os.readlink(each) for each in Path(f"/proc/{front}/fd").iterdir()}:
                return front
    return None


def num_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def _play(stage: _Stage, duration_s: float | None) -> None:
    """Trouble for so long; if that is not given, signals."""
    report, router = stage.report, stage.router
    assert router
    async with stage.http:
        await stage.learn()
        num_before, began_at = num_files(router.pid), time.monotonic()
        urls = [router.url] * _NUM_AGENTS
        if duration_s is None:
            urls += [server.url for server in stage.servers]
        trouble = stage.signal() if duration_s is None else stage.trouble(duration_s)
        await asyncio.gather(trouble, *map(stage.ask_on, urls))
        report.duration_s = time.monotonic() - began_at
        router.reload([server.url for server in stage.servers])
        await stage.settle()
        if (num := num_files(router.pid)) > num_before + 4 * _NUM_AGENTS:
            report.findings.append(f"the router has {num} files open, {num_before} when it began")


def run_kills(num_kills: int, seed: int = 0) -> ChaosReport:
    report = ChaosReport()
    with tempfile.TemporaryDirectory(prefix="hotloop-chaos-") as name:
        server = ChaosServer(write_model(Path(name) / "tiny"), Path(name), ("--fronts", "3", "--drain-timeout-s", "5"))
        stay(server)
        with server:
            limits = httpx.Limits(max_keepalive_connections=0)  # what is sent to a front that dies is none of ours
            http = httpx.AsyncClient(base_url=server.url, timeout=_MAX_ANSWER_S, limits=limits, verify=False)
            asyncio.run(_Stage(None, [server], http, random.Random(seed), report).play_kills(num_kills))
    return report


def run_chaos(duration_s: float | None, seed: int = 0) -> ChaosReport:
    mark = os.environ[MARK] = uuid.uuid4().hex
    report, delay_s = ChaosReport(), "1" if duration_s is None else "0"
    drain = ("--drain-timeout-s", "5", "--drain-delay-s", delay_s)
    with tempfile.TemporaryDirectory(prefix="hotloop-chaos-") as name, ExitStack() as stack:
        folder = Path(name)
        model = write_model(folder / "tiny")
        for each in ("a", "b"):
            (folder / each).mkdir()
        servers = [ChaosServer(model, folder / each, drain) for each in ("a", "b")]
        for server in servers:
            stay(server)
            stack.enter_context(server)
        flags = ("--health-interval-s", "0.5", "--first-byte-timeout-s", "30", "--idle-timeout-s", "30", *drain)
        router = RouterProcess([server.url for server in servers], flags)
        stay(router)
        stack.enter_context(router)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=_NUM_AGENTS)
        http = httpx.AsyncClient(base_url=router.url, timeout=_MAX_ANSWER_S, limits=limits, verify=False)
        asyncio.run(_play(_Stage(router, servers, http, random.Random(seed), report), duration_s))
    deadline = time.monotonic() + 10
    while (left := marked_processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    report.findings += [f"process {pid} is left behind" for pid in left]
    del os.environ[MARK]
    return report


def chaos(
    *, minutes: PositiveFloat = 10.0, signals: bool = False, kills: int = 0, seed: int = 0, as_json: JsonOutput = False
) -> None:
    """Make trouble for a router, two servers and agents, and see whether every request ends rightly.

    Parameters
    ----------
    minutes
        How long.
    signals
        Instead, reload them 200 times and stop and start them 50 times.
    kills
        Instead, kill fronts of one server, stop to read and hang up so often.
    seed
        Which troubles.
    """
    with console.status("signals ..." if signals else f"{kills} kills ..." if kills else f"{minutes:g} minutes ..."):
        report = run_kills(kills, seed) if kills else run_chaos(None if signals else minutes * 60, seed)
    show_report(report, as_json)
    if not report.is_good:
        raise RemoteError("a request was not answered rightly, or something was left behind")


if __name__ == "__main__":
    main(chaos, "tests")
