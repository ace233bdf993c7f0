"""Text as it comes: whole characters, and stop strings that never leak, however the text falls into tokens."""

import hypothesis.strategies as st
from hypothesis import given
from tests.engine.tiny import EOS_ID, TOKENIZER

from hotloop.core.request import SamplingParams
from hotloop.engine.text import TextStream


def stream(*stop: str, include_stop: bool = False) -> TextStream:
    return TextStream(TOKENIZER, SamplingParams(stop=stop, include_stop=include_stop))


def feed(text_stream: TextStream, text: str) -> tuple[list[str], str | None]:
    """The pieces of a text, a byte a token, up to the stop string that ended it."""
    pieces = []
    for token_id in TOKENIZER.encode(text):
        text, stop = text_stream.push(token_id)
        pieces.append(text)
        if stop is not None:
            return pieces, stop
    return [*pieces, text_stream.finish()], None


def cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text up to the stop string that is complete first, the slow way."""
    for end in range(len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


def test_characters_come_whole() -> None:
    assert feed(stream(), "aé€")[0] == ["a", "", "é", "", "", "€", ""]


def test_half_a_character_at_the_end_is_replaced() -> None:
    half = stream()
    assert half.push(TOKENIZER.encode("é")[0])[0] == ""
    assert half.finish() == "�"


def test_special_tokens_have_no_text() -> None:
    assert stream().push(EOS_ID)[0] == ""


def test_what_might_be_a_stop_is_held_back_until_it_is_not() -> None:
    assert feed(stream("END"), "aENEx") == (["a", "", "", "EN", "Ex", ""], None)


def test_a_stop_is_cut_off_or_kept() -> None:
    assert feed(stream("END"), "abENDx") == (["a", "b", "", "", ""], "END")
    assert feed(stream("END", include_stop=True), "abENDx") == (["a", "b", "", "", "END"], "END")


def test_a_stop_inside_a_multi_byte_text() -> None:
    assert "".join(feed(stream("ж"), "дежа")[0]) == "де"


def test_what_was_held_back_is_told_when_no_stop_came() -> None:
    assert feed(stream("END"), "aEN") == (["a", "", "", "EN"], None)


def test_the_stop_that_is_complete_first_wins() -> None:
    assert feed(stream("abc", "b"), "xabc")[1] == "b"


def test_a_stop_that_ends_too_early_passes_and_a_later_one_counts() -> None:
    text_stream = stream("b", "bcd")
    [b, c] = TOKENIZER.encode("bc")
    first = text_stream.push(b, may_stop=False)
    second = text_stream.push(c)
    assert (first[1], second[1]) == (None, None)
    assert text_stream.push(b)[1] == "b"


def test_a_stop_may_begin_before_it_may_end() -> None:
    text_stream = stream("ab")
    [a, b] = TOKENIZER.encode("ab")
    assert text_stream.push(a, may_stop=False)[0] == ""
    assert text_stream.push(b)[1] == "ab"


class Chunks:
    """A vocabulary whose tokens are whatever pieces a text is cut into."""

    eos_ids: frozenset[int] = frozenset()

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]


texts = st.text(st.sampled_from("abé€😀"), max_size=24)


@given(text=texts, stops=st.lists(texts.filter(bool), min_size=1, max_size=3), data=st.data())
def test_any_text_any_tokens_any_stops(text: str, stops: list[str], data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)))))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    params = SamplingParams(stop=tuple(stops))
    text_stream = TextStream(Chunks(pieces), params)  # type: ignore[arg-type]
    said, expected = "", cut(text, stops)
    for token_id in range(len(pieces)):
        text, stop = text_stream.push(token_id)
        said += text
        assert expected[0].startswith(said), "a stop string leaked"
        if stop is not None:
            assert (said, stop) == expected
            return
    assert (said + text_stream.finish(), None) == expected
