"""What commands show."""

import pytest

from hotloop.cli.output import show


def test_what_looks_like_markup_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]):
    show({}, "the model is at /models/[old]/a.gguf", as_json=False)
    assert capsys.readouterr().out == "the model is at /models/[old]/a.gguf\n"


def test_a_program_is_shown_json_and_people_the_first_errors(capsys: pytest.CaptureFixture[str]):
    show({"a": 1}, "table", as_json=True, errors=["one", "two", "three", "four"])
    shown = capsys.readouterr()
    assert shown.out == '{"a": 1}\n'
    assert shown.err == "hotloop: one\nhotloop: two\nhotloop: three\n"
