"""Which extra of hotloop brings which package, and the line to type where it is missing."""

from hotloop.core.errors import ConfigError

_CUDA = {"torch": "cuda", "triton": "cuda"}
_OTHERS = {"huggingface_hub": "hub", "mcp": "mcp", "opentelemetry": "otel", "ray": "ray", "zmq": "kv-events"}
_ENGINE = dict.fromkeys(("gguf", "jinja2", "llguidance", "numpy", "tokenizers"), "cpu")
EXTRA_OF = {**_ENGINE, **_OTHERS, **_CUDA}


def missing_extra(error: ImportError, who: str) -> ConfigError | None:
    """What to tell instead of an import that failed; None if no extra brings what was not found."""
    extra = EXTRA_OF.get((error.name or "").partition(".")[0])
    if extra is None:
        return None
    other = ", or 'hotloop[cuda]' for an NVIDIA GPU" if extra == "cpu" else ""
    return ConfigError(f"{who} needs the extra `{extra}`: pip install 'hotloop[{extra}]'{other}")
