"""Which model is at an address."""

import pytest

from hotloop.agent.open_model import open_model
from hotloop.core.errors import ConfigError


def test_addresses() -> None:
    assert repr(open_model("http://h:1/v1#tiny")) == "OpenAIModel('http://h:1/v1', 'tiny')"
    assert repr(open_model("anthropic:https://h/v1#tiny")) == "AnthropicModel('https://h', 'tiny')"
    assert repr(open_model("openai:gpt-5", api_key="k")) == "OpenAIModel('https://api.openai.com/v1', 'gpt-5')"
    assert repr(open_model("responses:http://h/v1#tiny")) == "ResponsesModel('http://h/v1', 'tiny')"
    assert repr(open_model("responses:gpt-5", api_key="k")) == "ResponsesModel('https://api.openai.com/v1', 'gpt-5')"
    assert repr(open_model("anthropic:c", api_key="k")) == "AnthropicModel('https://api.anthropic.com', 'c')"


@pytest.mark.parametrize(
    "address",
    ["", "gpt-5", "openai:", "ftp://h", "openai:gpt-5", "http://", "http://a:b@h", "http://h:x", "smol:http://h"],
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_model(address)
    assert "\n" not in str(caught.value)
