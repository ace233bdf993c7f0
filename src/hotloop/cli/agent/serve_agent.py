"""`hotloop serve-agent`: an agent from a file, for whoever speaks OpenAI's APIs or MCP."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from hotloop.cli.settings import TRACED, AgentServerFlags, ConfigFile, Reread, TraceFlags
from hotloop.core.config import AgentServerConfig


def serve_agent(
    file: Annotated[Path, Parameter(help="Python file that defines an Agent.")],
    /,
    *,
    agent: Annotated[str | None, Parameter(help="Name of the agent, if the file defines several.")] = None,
    approve: Annotated[
        Literal["all", "none"] | None,
        Parameter(help="Tool calls that need approval: run all, or run none. If not given, the run waits for one."),
    ] = None,
    server: AgentServerFlags = AgentServerConfig(),
    trace: TraceFlags = TRACED,
    config: ConfigFile = None,
    reread: Reread = None,
) -> None:
    """Serve the agent defined in a file over OpenAI's chat completions and responses, and as an MCP tool.

    Its tools run here. A call that needs approval ends its run as `waiting`: `hotloop runs approve` decides, and the
    client goes on with the header X-Hotloop-Run. SIGHUP reads API keys and the log level again.
    """
    from hotloop.agent.service.server import AgentServer
    from hotloop.agent.tools.consent import Approval
    from hotloop.cli.agent.approval import answer_all
    from hotloop.cli.agent.file import load_agent_file
    from hotloop.cli.serving.reload import Reload, Settings
    from hotloop.cli.tracing import tracing
    from hotloop.http.logs import start_logging

    def read() -> "Settings[AgentServerConfig]":
        assert reread
        now = reread()
        return Settings(now["server"], now["trace"])

    def later(call: object) -> Approval:
        return Approval.later()

    start_logging(server)
    reload = Reload(Settings(server, trace), read)
    found = load_agent_file(file, agent)
    with tracing(trace) as tracer:
        settings = found.agent.settings
        found.agent.settings = replace(
            settings,
            name=settings.name or file.stem,
            approve=answer_all(is_yes=approve == "all") if approve else settings.approve or later,
            tracer=settings.tracer or tracer,
            source=str(file.resolve()),
        )
        name = found.agent.settings.name
        AgentServer(
            found.agent,
            server,
            context=found.context,
            keys=reload.keys,
            reload=reload if reread else None,
            on_ready=lambda url: print(f"{name} is at {url}\nOpenAI: {url}/v1\nMCP: {url}/mcp", flush=True),
        ).run()
