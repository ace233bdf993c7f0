"""Which hardware is chosen, and what is refused. None of this needs a GPU."""

import pytest

from hotloop.backends.open import choose_device
from hotloop.core.errors import ConfigError


def test_the_cpu_is_one_device() -> None:
    assert choose_device("cpu").device == "cpu"
    with pytest.raises(ConfigError, match="gpus 2 and device cpu contradict each other"):
        choose_device("cpu", 2)


def test_several_gpus_are_never_replaced_by_the_cpu() -> None:
    with pytest.raises(ConfigError, match="device cuda cannot be used: "):
        choose_device("auto", 999)
