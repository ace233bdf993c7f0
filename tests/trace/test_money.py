import pytest

from hotloop.cli.tracing import load_prices
from hotloop.core.errors import ConfigError
from hotloop.core.prices import Prices
from hotloop.trace.money import LISTED, PriceTable

TOKENS = {"num_prompt": 1_000_000, "num_cached": 400_000, "num_output": 100_000}


def test_what_was_cached_costs_less():
    table = PriceTable({"mine": Prices(prompt=10.0, cached=1.0, output=20.0)})
    assert table.cost("mine", **TOKENS) == pytest.approx(6.0 + 0.4 + 2.0)


def test_a_model_nobody_priced_costs_nothing():
    assert PriceTable().cost("smollm2-135m", **TOKENS) == 0


def test_the_first_pattern_that_fits_is_taken_and_ones_own_before_the_listed():
    name = next(iter(LISTED))
    assert PriceTable().find("openai/gpt-4o-mini-2024") == LISTED["gpt-4o-mini*"]
    assert PriceTable({name: Prices(prompt=7.0)}).find(name.replace("*", "-x")) == Prices(prompt=7.0)
    assert PriceTable({"gpt*": Prices(prompt=7.0)}).find("gpt-4o") == Prices(prompt=7.0)


def test_a_listed_pattern_is_never_hidden_by_a_shorter_one_before_it():
    for pattern, prices in LISTED.items():
        assert PriceTable().find(pattern.replace("*", "")) == prices


def test_prices_come_from_a_file(tmp_path):
    path = tmp_path / "prices.toml"
    path.write_text('["my-*"]\nprompt = 1\noutput = 2.5\n')
    assert load_prices(path).find("my-model") == Prices(prompt=1.0, output=2.5)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("x = ", "is not TOML"),
        ("x = 3", "'x' must be a table"),
        ("[x]\ninput = 3", "'x' must be a table of prompt, cached, output"),
        ("[x]\nprompt = true", "prompt of 'x' must be a price, not True"),
        ("[x]\nprompt = -1", "must be a price"),
        ("[x]\nprompt = nan", "must be a price"),
    ],
)
def test_a_file_that_is_wrong_is_one_line(tmp_path, text, wrong):
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=wrong):
        load_prices(path)


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        load_prices(tmp_path / "none.toml")
