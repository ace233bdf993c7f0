"""Errors are one clear line, with the numbers in it."""

from hotloop.core.errors import HotloopError, ModelError, Overloaded, PromptTooLong, RequestError, UnknownModel


def test_what_an_error_quotes_writes_no_lines_and_moves_no_cursor() -> None:
    assert str(ModelError("a\n  b\x1b[2J\u2028ü.gguf")) == r"a b\x1b[2J ü.gguf"


def test_a_prompt_that_does_not_fit_names_both_numbers() -> None:
    error = PromptTooLong(5000, 4096, 100)
    limit = "this model's maximum context length is 4096 tokens"
    assert str(error) == f"{limit}: 5000 prompt tokens and 100 to generate do not fit"
    assert str(PromptTooLong(5000, 4096)) == f"{limit}: 5000 prompt tokens do not fit"
    assert isinstance(error, RequestError)
    assert isinstance(error, HotloopError)


def test_an_unknown_model_names_the_one_there_is() -> None:
    error = UnknownModel("gpt-9", "tiny")
    assert (str(error), error.param) == ("the model 'gpt-9' does not exist; this server has 'tiny'", "model")


def test_overload_says_when_to_come_back() -> None:
    assert Overloaded("busy", retry_after_s=3).retry_after_s == 3
    assert Overloaded("busy", retry_after_s=600).retry_after_s == 60


def test_what_an_error_quotes_is_cut():
    assert len(str(UnknownModel("x" * 10_000_000, "tiny"))) < 5000
