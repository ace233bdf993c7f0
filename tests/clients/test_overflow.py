"""Conversations that outgrow the context: the client compacts them and goes on, before it is refused if it was told the
window, and when it is refused if not. Straight and through a router.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from tests.clients.agents import AGENTS, make_qwen_code
from tests.clients.client import Client, run
from tests.clients.rows import RECOVERIES, WAYS
from tests.clients.speaking import ANSWER, WORD, SpeakingBackend
from tests.clients.test_clients import read_refusals, read_requests
from tests.server.calls import write_call
from tests.server.serving import Routing, Serving

from hotloop.core.config import EngineConfig, ServerConfig
from hotloop.trace import names
from hotloop.trace.tracer import ListTracer

NOTES = "It is written here what the birds did today.\n" * 330
SUMMARY = "The notes were read, and the word was not in them."
BY_NAME = {client.name: client for client in AGENTS}


def claude_code(window: int | None) -> Client:
    variables = ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", "CLAUDE_CODE_AUTO_COMPACT_WINDOW")
    told = dict.fromkeys(variables, str(window)) if window else {}
    client = BY_NAME["claude code"]
    return replace(client, environment={**client.environment, **told})


def qwen_code(window: int | None) -> Client:
    return make_qwen_code({"model": {"generationConfig": {"contextWindowSize": window}}} if window else {})


CLIENTS = {
    "claude code": (claude_code, (160_000, 160_000), "Bash", "create a detailed summary"),
    "qwen code": (qwen_code, (160_000, 85_000), "run_shell_command", "generate the <state_snapshot>"),
}
"""How each is made; the window it is told of, and one smaller than what it takes for granted; its shell; and what the
last message says where a summary is asked for."""


def speak(shell: str, wants_summary: str) -> Callable[[str], str]:
    more = {"is_background": False} if shell == "run_shell_command" else {"description": "Reads"}

    def speak(prompt: str) -> str:
        if wants_summary in prompt.rpartition("<|im_start|>user")[2]:
            return f"<summary>{SUMMARY}</summary><state_snapshot>{SUMMARY}</state_snapshot>"
        if WORD in prompt:
            return ANSWER
        return write_call(shell, command="cat word.txt" if SUMMARY in prompt else "cat notes.txt", **more)

    return speak


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_told", [True, False], ids=["told the window", "not told"])
@pytest.mark.parametrize("name", CLIENTS)
def test_a_conversation_that_outgrows_the_context_is_compacted(
    name: str, is_told: bool, way: str, clients: Path, tmp_path: Path
) -> None:
    make, windows, shell, wants_summary = CLIENTS[name]
    window = windows[0 if is_told else 1]
    client = make(window if is_told else None)
    if not list(clients.glob(client.needs)):
        pytest.skip(f"{name} is not installed")
    (tmp_path / "word.txt").write_text(f"{WORD}\n")
    (tmp_path / "notes.txt").write_text(NOTES)
    tracer = ListTracer(keeps_content=True)
    backend = SpeakingBackend(speak(shell, wants_summary), max_context=window)
    with ExitStack() as stack:
        serving = stack.enter_context(Serving(ServerConfig(port=0), EngineConfig(), backend=backend, tracer=tracer))
        url = stack.enter_context(Routing(serving.url)) if way == "routed" else serving.url
        ended = run(client, url, clients, tmp_path)
        refusals = read_refusals(serving.http.get("/metrics").text)
    is_compacted = any(SUMMARY in span.attributes[names.CONTENT_REQUEST] for span in read_requests(tracer))
    goes_on = ended.code == 0 and ANSWER in ended.output
    cells = ("yes" if each else "no" for each in ("400" in refusals, is_compacted, goes_on))
    RECOVERIES.append((name, "told" if is_told else "not told", way, *cells))
    assert goes_on, str(ended)
    assert is_compacted
    assert ("400" in refusals) != is_told
