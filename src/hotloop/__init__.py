"""The public face. Names are loaded when they are first used, so that `hotloop --help` never waits for an engine."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotloop.core.config import EngineConfig
    from hotloop.core.errors import HotloopError
    from hotloop.core.request import FinishReason, Priority, SamplingParams, TokenEvent, Usage
    from hotloop.engine.engine import Completion, Engine

__version__ = "0.1.0"

_HOMES = {
    "Completion": "hotloop.engine.engine",
    "Engine": "hotloop.engine.engine",
    "EngineConfig": "hotloop.core.config",
    "FinishReason": "hotloop.core.request",
    "HotloopError": "hotloop.core.errors",
    "Priority": "hotloop.core.request",
    "SamplingParams": "hotloop.core.request",
    "TokenEvent": "hotloop.core.request",
    "Usage": "hotloop.core.request",
}

__all__ = [
    "Completion",
    "Engine",
    "EngineConfig",
    "FinishReason",
    "HotloopError",
    "Priority",
    "SamplingParams",
    "TokenEvent",
    "Usage",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hotloop' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
