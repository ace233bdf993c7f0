"""A model from its address.

    http://localhost:8700/v1                  any server that speaks OpenAI's chat completions; its first model
    http://localhost:8700/v1#smollm2-135m     the model of that name on it
    anthropic:http://localhost:8700#name      the same, asked by Anthropic's messages
    openai:gpt-5  anthropic:claude-opus-4     OpenAI's and Anthropic's own

Keys are handed in: nothing here reads the environment.
"""

from hotloop.agent.model import Model
from hotloop.agent.wire.anthropic import AnthropicModel
from hotloop.agent.wire.openai import OpenAIModel
from hotloop.core.errors import ConfigError

_HOSTED = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}
_KINDS: dict[str, type[OpenAIModel] | type[AnthropicModel]] = {"openai": OpenAIModel, "anthropic": AnthropicModel}


def open_model(address: str, *, api_key: str | None = None, is_plain: bool = False) -> Model:
    """The model at an address; nothing is asked of its server yet. Raises ConfigError if it is no address."""
    kind, place = _split(address)
    if place.startswith(("http://", "https://")):
        url, _, name = place.partition("#")
        return _KINDS[kind](url, name or None, api_key=api_key, is_plain=is_plain)
    if not api_key:
        raise ConfigError(f"{address} needs a key: open_model({address!r}, api_key=...)")
    return _KINDS[kind](_HOSTED[kind], place, api_key=api_key, is_plain=is_plain)


def _split(address: str) -> tuple[str, str]:
    """Which API, and what of it."""
    if address.startswith(("http://", "https://")):
        return "openai", address
    kind, _, place = address.partition(":")
    if kind not in _KINDS or not place:
        raise ConfigError(f"no model at {address!r}: give an address such as http://localhost:8700/v1 or openai:NAME")
    return kind, place
