"""Each client asks, calls a tool, hands its result back and prints the answer: straight and through a router, of a
model that reasons and of one that does not, and where it can, with tools that come on a later turn.
"""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.chat.reasoning_templates import thinking_template
from tests.clients.agents import AGENTS
from tests.clients.client import Client, Late, run
from tests.clients.libraries import LIBRARIES
from tests.clients.rows import MODELS, ROWS, WAYS, Row
from tests.clients.speaking import WORD, SpeakingBackend, follow, think
from tests.server.serving import CHATML, Routing, Serving

from hotloop.core.config import EngineConfig, ServerConfig
from hotloop.trace import names
from hotloop.trace.span import Span
from hotloop.trace.tracer import ListTracer

CASES: list[tuple[Client, Late | None]] = [(client, None) for client in (*AGENTS, *LIBRARIES)]
CASES += [(client, late) for client in AGENTS for late in client.late]


def name_of(case: tuple[Client, Late | None]) -> str:
    client, late = case
    return f"{client.name}, {late.how}" if late else client.name


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_client_works_as_it_is(
    case: tuple[Client, Late | None], model: str, way: str, clients: Path, tmp_path: Path
) -> None:
    client, late = case
    if not list(clients.glob(client.needs)):
        pytest.skip(f"{client.name} is not installed")
    row = Row(client.name, way, model, late.how if late else "")
    ROWS.append(row)
    client = client.made_late(late) if late else client
    (tmp_path / "word.txt").write_text(f"{WORD}\n")
    tracer = ListTracer(keeps_content=True)
    script = think(client.script) if model == "reasoning" else client.script
    template = thinking_template() if model == "reasoning" else CHATML
    backend = SpeakingBackend(follow(script))
    with ExitStack() as stack:
        serving = stack.enter_context(
            Serving(ServerConfig(port=0), EngineConfig(), backend=backend, tracer=tracer, template=template)
        )
        url = stack.enter_context(Routing(serving.url)) if way == "routed" else serving.url
        ended = run(client, url, clients, tmp_path)
        row.refusals = read_refusals(serving.http.get("/metrics").text)
    requests = read_requests(tracer)
    keep_requests(clients / "requests", row, requests)
    assert ended.code == 0, str(ended)
    assert client.output in ended.output, str(ended)
    turns = find_turns(requests)
    row.num_prompt = max(turn.attributes[names.NUM_PROMPT] for turn in turns)
    if client.has_tools:
        assert len(turns) == len(client.script), "each call was made, and its result came back"
        assert WORD in turns[-1].attributes[names.CONTENT_REQUEST]
    shares = [turn.attributes[names.NUM_CACHED] / turn.attributes[names.NUM_PROMPT] for turn in turns[1:]]
    row.cached = min(shares, default=None)
    row.num_recomputed = sum(turn.attributes[names.NUM_RECOMPUTED] for turn in turns[1:])
    row.works = True
    assert row.cached is None or row.cached >= client.least_cached


def read_requests(tracer: ListTracer) -> list[Span]:
    """Those that were answered, in order."""
    requests = [
        span for span in tracer.spans if span.name == names.REQUEST and names.CONTENT_REQUEST in span.attributes
    ]
    return sorted(requests, key=lambda span: span.start_ns)


def find_turns(requests: Sequence[Span]) -> list[Span]:
    """The conversation with the longest prompt, and not what some clients ask beside it, such as for a title: requests
    with tools, or those without, each longer than the one before."""
    conversations: dict[bool, list[Span]] = {True: [], False: []}
    for span in requests:
        turns = conversations[bool(json.loads(span.attributes[names.CONTENT_REQUEST]).get("tools"))]
        if not turns or span.attributes[names.NUM_PROMPT] > turns[-1].attributes[names.NUM_PROMPT]:
            turns.append(span)
    return max(conversations.values(), key=lambda turns: turns[-1].attributes[names.NUM_PROMPT] if turns else 0)


def read_refusals(metrics: str) -> str:
    """`404: 2` where two requests were answered so."""
    lines = [line for line in metrics.splitlines() if line.startswith("hotloop_http_errors_total{")]
    return ", ".join(f"{line.split(chr(34))[1]}: {float(line.split()[-1]):.0f}" for line in lines)


def keep_requests(folder: Path, row: Row, requests: Sequence[Span]) -> None:
    folder.mkdir(exist_ok=True)
    name = ", ".join(filter(None, (row.client, row.late, row.model, row.way))).replace("/", "-")
    kept = [
        {key: value for key, value in span.attributes.items() if not key.startswith("content")}
        | {"body": json.loads(span.attributes[names.CONTENT_REQUEST])}
        for span in requests
    ]
    (folder / f"{name}.json").write_text(json.dumps(kept, indent=1, default=str))
