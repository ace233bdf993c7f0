"""Which extra of hotloop brings which package, and the line to type where it is missing."""

import sys
from pathlib import Path

from hotloop.core.errors import ConfigError

_CUDA = {"torch": "cuda", "triton": "cuda"}
_OTHERS = {"huggingface_hub": "hub", "mcp": "mcp", "opentelemetry": "otel", "ray": "ray", "zmq": "kv-events"}
_ENGINE = dict.fromkeys(("gguf", "jinja2", "llguidance", "numpy", "tokenizers"), "cpu")
EXTRA_OF = {**_ENGINE, **_OTHERS, **_CUDA}
_OWN_ENVIRONMENT = {"pipx_metadata.json": "pipx install --force", "uv-receipt.toml": "uv tool install"}
_UVX = "uvx --from"
_UV_CACHE = ("archive-v", "environments-v")


def missing_extra(error: ImportError, who: str) -> ConfigError | None:
    """What to tell instead of an import that failed; None if no extra brings what was not found."""
    extra = EXTRA_OF.get((error.name or "").partition(".")[0])
    if extra is None:
        return None
    other = ", or 'hotloop[cuda]' for an NVIDIA GPU" if extra == "cpu" else ""
    return needs_extra(extra, who, other)


def needs_extra(extra: str, who: str, other: str = "") -> ConfigError:
    return ConfigError(f"{who} needs the extra `{extra}`: {line_to_type(Path(sys.prefix), extra, who)}{other}")


def line_to_type(prefix: Path, extra: str, who: str) -> str:
    """In that environment, for a command or for something that commands do."""
    command = _installer(prefix)
    runs = who if who.startswith("hotloop ") else "hotloop …"
    return f"{command} 'hotloop[{extra}]'" + (f" {runs}" if command == _UVX else "")


def _installer(prefix: Path) -> str:
    """What installs into that environment: pipx and uv keep one of its own for each program, where pip would not."""
    for name, command in _OWN_ENVIRONMENT.items():
        if (prefix / name).exists():
            return command
    return _UVX if any(part.startswith(_UV_CACHE) for part in prefix.parts) else "pip install"
