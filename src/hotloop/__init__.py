"""The public face. Names are loaded when they are first used, so that `hotloop --help` never waits for an engine."""

import importlib
from typing import TYPE_CHECKING, Any

from hotloop.core.extras import missing_extra
from hotloop.core.version import __version__

if TYPE_CHECKING:
    from hotloop.agent.agent import Agent
    from hotloop.agent.conversation import Conversation
    from hotloop.agent.executor import ToolExecutor
    from hotloop.agent.limits import Limits, Run
    from hotloop.agent.run_stream import Result
    from hotloop.agent.scripted import ScriptedCall, ScriptedModel
    from hotloop.agent.tools.consent import Approval
    from hotloop.agent.tools.tool import Context, ToolError, tool
    from hotloop.core.config import EngineConfig
    from hotloop.core.errors import HotloopError
    from hotloop.core.message import Attachment
    from hotloop.core.prices import Prices
    from hotloop.core.request import FinishReason, Priority, SamplingParams, TokenEvent, Usage
    from hotloop.engine.engine import Completion, Engine

_HOMES = {
    "Agent": "hotloop.agent.agent",
    "Approval": "hotloop.agent.tools.consent",
    "Attachment": "hotloop.core.message",
    "Completion": "hotloop.engine.engine",
    "Context": "hotloop.agent.tools.tool",
    "Conversation": "hotloop.agent.conversation",
    "Engine": "hotloop.engine.engine",
    "EngineConfig": "hotloop.core.config",
    "FinishReason": "hotloop.core.request",
    "HotloopError": "hotloop.core.errors",
    "Limits": "hotloop.agent.limits",
    "Prices": "hotloop.core.prices",
    "Priority": "hotloop.core.request",
    "Result": "hotloop.agent.run_stream",
    "Run": "hotloop.agent.limits",
    "SamplingParams": "hotloop.core.request",
    "ScriptedCall": "hotloop.agent.scripted",
    "ScriptedModel": "hotloop.agent.scripted",
    "TokenEvent": "hotloop.core.request",
    "ToolError": "hotloop.agent.tools.tool",
    "ToolExecutor": "hotloop.agent.executor",
    "Usage": "hotloop.core.request",
    "tool": "hotloop.agent.tools.tool",
}

__all__ = [
    "Agent",
    "Approval",
    "Attachment",
    "Completion",
    "Context",
    "Conversation",
    "Engine",
    "EngineConfig",
    "FinishReason",
    "HotloopError",
    "Limits",
    "Prices",
    "Priority",
    "Result",
    "Run",
    "SamplingParams",
    "ScriptedCall",
    "ScriptedModel",
    "TokenEvent",
    "ToolError",
    "ToolExecutor",
    "Usage",
    "__version__",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hotloop' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if missing := missing_extra(error, f"hotloop.{name}"):
            raise ImportError(str(missing)) from error
        raise


def __dir__() -> list[str]:
    return __all__
