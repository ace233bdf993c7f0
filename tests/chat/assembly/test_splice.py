"""What was generated comes back in the same tokens; everything else as the tokenizer has it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chat.assembly.merging import MERGES, SPECIAL, merging_tokenizer, spell
from tests.chat.speaking import byte_tokenizer
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as InnerTokenizer

from hotloop.chat.assembly.splice import _MAX_NEWS, _PLAUSIBLE_BYTES, Splicer
from hotloop.core.errors import PromptTooLong
from hotloop.models.tokenizer import Tokenizer

HEAD = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
TAIL = "<|im_end|>\n<|im_start|>user\nhello world<|im_end|>\n<|im_start|>assistant\n"
TOKENIZER = merging_tokenizer()
TEXTS = st.lists(st.sampled_from([*SPECIAL, "hello", "hell", "o", " wo", "\n\n", "é", "e\u0301", "x", "<tool_call>"]))
MERGE_LISTS = st.lists(st.tuples(*[st.sampled_from("helo wĠĊÃ©")] * 2), max_size=8).map(lambda more: [*MERGES, *more])


def bytes_of(tokenizer: Tokenizer, token_ids: list[int]) -> bytes:
    return b"".join(
        tokenizer.token_text(i).encode() if tokenizer.is_special(i) else tokenizer.token_bytes(i) for i in token_ids
    )


def test_an_answer_comes_back_in_the_tokens_it_was_written_in() -> None:
    splicer = Splicer(TOKENIZER)
    prompt = splicer.encode(HEAD)
    answer = spell(TOKENIZER, "hel", "lo", " w", "o")
    assert answer != TOKENIZER.encode("hello wo")
    splicer.remember(prompt.token_ids, [*answer, *TOKENIZER.encode("<|im_end|>")])
    again = splicer.encode(f"{HEAD}hello wo{TAIL}")
    assert again.token_ids == prompt.token_ids + answer + TOKENIZER.encode(TAIL)
    assert again.num_exact == len(TOKENIZER.encode("assistant\n")) + len(answer)


def test_it_does_so_turn_after_turn() -> None:
    splicer = Splicer(TOKENIZER)
    text, written = HEAD, splicer.encode(HEAD).token_ids
    for _ in range(5):
        answer = spell(TOKENIZER, "h", "e", "llo")
        splicer.remember(written, answer)
        text, written = f"{text}hello{TAIL}", written + answer + TOKENIZER.encode(TAIL)
        assert splicer.encode(text).token_ids == written


def test_an_answer_is_known_only_where_it_was_written() -> None:
    splicer = Splicer(TOKENIZER)
    splicer.remember(splicer.encode(HEAD).token_ids, spell(TOKENIZER, "hel", "lo"))
    elsewhere = HEAD.replace("user", "you") + "hello" + TAIL
    assert splicer.encode(elsewhere).token_ids == TOKENIZER.encode(elsewhere)
    assert splicer.encode(f"{HEAD}hello{TAIL}", scope="other").token_ids == TOKENIZER.encode(f"{HEAD}hello{TAIL}")


@pytest.mark.parametrize(
    ("answer", "returned", "kept"),
    [
        (["hel", "lo", " w", "o"], "hello w", ["hel", "lo", " w"]),  # cut by a stop string between two tokens
        (["hel", "lo"], "hell", ["hel", "l"]),  # and within one
        (["hel", "lo", "\n\n"], "hello", ["hel", "lo"]),  # trimmed by the template
        (["hel", "lo"], "hello\n", ["hel", "lo", "\n"]),  # which may add to it as well
        (["hel", "lo"], "hellos", ["hellos"]),  # but not within a word
        (["hel", "lo"], "help", ["help"]),  # edited
        (["hel", "<tool_call>", "lo"], "hel<tool_call>lo", ["hel", "<tool_call>", "lo"]),
        (["h", "e", "<|mark|>", "l", "l"], "he<|mark|>ll", ["h", "e", "<|mark|>", "l", "l"]),  # shown
        (["h", "e", "<|mark|>", "-"], "he-", ["h", "e", "-"]),  # and hidden
    ],
)
def test_of_what_comes_back_the_tokens_that_are_whole_are_kept(
    answer: list[str], returned: str, kept: list[str]
) -> None:
    splicer = Splicer(TOKENIZER)
    prompt = splicer.encode(HEAD).token_ids
    splicer.remember(prompt, spell(TOKENIZER, *answer))
    token_ids = splicer.encode(f"{HEAD}{returned}{TAIL}").token_ids
    assert token_ids == prompt + spell(TOKENIZER, *kept) + TOKENIZER.encode(TAIL)


@pytest.mark.parametrize("end", [["Ã"], ["Ã", "h"], ["©", "h"]])
def test_bytes_that_are_no_text_are_not_remembered(end: list[str]) -> None:
    splicer = Splicer(TOKENIZER)
    prompt = splicer.encode(HEAD).token_ids
    halves = [TOKENIZER._inner.token_to_id(piece) for piece in end]
    splicer.remember(prompt, [*spell(TOKENIZER, "hel", "lo"), *halves])
    returned = "hello" + TOKENIZER.decode(halves)
    token_ids = splicer.encode(f"{HEAD}{returned}{TAIL}").token_ids
    assert token_ids[: len(prompt) + 3] == prompt + spell(TOKENIZER, "hel", "lo")
    assert bytes_of(TOKENIZER, token_ids) == f"{HEAD}{returned}{TAIL}".encode()


def test_what_is_remembered_is_bounded_by_its_tokens() -> None:
    splicer = Splicer(TOKENIZER, max_tokens=600)
    answer = spell(TOKENIZER, *"hello" * 4)
    for i in range(40):
        splicer.remember(splicer.encode(f"{HEAD}{i}{TAIL}").token_ids, answer)
        splicer.check()
        assert splicer._turns.currsize >= 2 * len(answer)
        assert splicer._pieces.currsize <= 300
        assert splicer._turns.currsize <= 300


def test_of_many_answers_to_one_prompt_the_right_one_is_found() -> None:
    splicer = Splicer(TOKENIZER)
    prompt = splicer.encode(HEAD).token_ids
    answers = [["h"], ["hel", "lo"], ["hel", "lo", "!"], ["hel", "lo", "!", "!"], ["hell", "o", "?"]]
    for answer in answers:
        splicer.remember(prompt, spell(TOKENIZER, *answer))
    for answer in answers:
        token_ids = splicer.encode(f"{HEAD}{''.join(answer)}{TAIL}").token_ids
        assert token_ids == prompt + spell(TOKENIZER, *answer) + TOKENIZER.encode(TAIL)


def test_a_completion_goes_on_where_the_last_one_ended() -> None:
    tokenizer = merging_tokenizer()
    tokenizer.bos_id = tokenizer.encode("<|im_start|>")[0]
    splicer = Splicer(tokenizer)
    prompt = splicer.encode("hello", add_bos=True)
    assert prompt.token_ids[0] == tokenizer.bos_id
    assert prompt.starts == [(0, 1)]
    answer = spell(tokenizer, " h", "el", "lo")
    splicer.remember(prompt.token_ids, answer)
    token_ids = splicer.encode("hello hello, x", add_bos=True).token_ids
    assert token_ids == prompt.token_ids + answer + tokenizer.encode(", x")


def test_a_text_begins_with_a_special_token_where_that_is_asked_for_and_there_is_one() -> None:
    with_bos, without = merging_tokenizer(), merging_tokenizer()
    with_bos.bos_id, without.bos_id = with_bos.encode("<|im_start|>")[0], None
    assert Splicer(with_bos).encode("hello").token_ids == with_bos.encode("hello")
    assert Splicer(without).encode("hello", add_bos=True).token_ids == without.encode("hello")


def test_where_nothing_was_generated_nothing_comes_back() -> None:
    splicer = Splicer(TOKENIZER)
    splicer.remember(splicer.encode(HEAD).token_ids, [])
    assert splicer.encode(HEAD).num_exact == 0


def test_so_many_answers_wait_to_be_looked_into_and_no_more() -> None:
    splicer = Splicer(TOKENIZER)
    prompt, answer = splicer.encode(HEAD).token_ids, spell(TOKENIZER, "hel", "lo")
    waiting = []
    for _ in range(2 * _MAX_NEWS):
        splicer.remember(prompt, answer)
        waiting.append(len(splicer._news))
    assert max(waiting) == _MAX_NEWS


def test_a_text_that_cannot_fit_is_refused_by_its_bytes() -> None:
    splicer = Splicer(TOKENIZER, max_prompt=10)
    splicer.check_bytes(10 * TOKENIZER.max_token_bytes)
    with pytest.raises(PromptTooLong, match="at least 11 prompt tokens"):
        splicer.check_bytes(10 * TOKENIZER.max_token_bytes + 1)


def test_a_text_with_many_bytes_is_counted_before_it_is_encoded() -> None:
    """One far longer than the context is refused as soon as that is seen; any other is left to who counts exactly."""
    splicer = Splicer(TOKENIZER, max_prompt=10)
    plausible = "x" * 10 * _PLAUSIBLE_BYTES
    assert len(splicer.encode(plausible).token_ids) == len(plausible)
    with pytest.raises(PromptTooLong, match="at least 11 prompt tokens"):
        splicer.encode(plausible + "x")
    assert len(splicer.encode("hello" * 20).token_ids) == 20
    with pytest.raises(PromptTooLong):
        splicer.encode("hello" * 21)


@pytest.mark.parametrize(("num_tokens", "is_kept"), [(10, True), (11, False)])
def test_of_a_prompt_beyond_the_context_no_piece_is_kept(num_tokens: int, is_kept: bool) -> None:
    splicer = Splicer(TOKENIZER, max_prompt=10)
    splicer.encode("hello" * num_tokens)
    assert (splicer._pieces.currsize > 0) == is_kept


def test_a_long_text_without_a_special_token_is_not_looked_through_for_every_answer() -> None:
    """As where a client sends tokens of its own: prompts of a hundred thousand come back every second."""
    splicer = Splicer(TOKENIZER)
    [letter] = TOKENIZER.encode("a")
    for num_tokens, is_kept in ((4000, True), (5000, False)):
        splicer.remember([letter] * num_tokens, [letter, letter])
        encoded = splicer.encode("a" * (num_tokens + 2))
        assert (encoded.num_exact > 0) == is_kept


def test_what_was_cut_once_is_not_cut_again() -> None:
    tokenizer = merging_tokenizer()
    splicer = Splicer(tokenizer)
    for _ in range(8):  # the first prompts are looked at twice
        splicer.encode(HEAD)
    text = HEAD + "hello " * 1000
    splicer.remember(splicer.encode(text).token_ids, spell(tokenizer, "x", "y"))
    tokenizer.num_chars = 0
    splicer.encode(f"{text}xy{TAIL}new")
    assert tokenizer.num_chars == len("user\nhello world") + len("assistant\nnew")


@given(MERGE_LISTS, TEXTS, st.booleans(), st.booleans())
def test_text_nobody_generated_is_cut_as_the_tokenizer_does(
    merges: list[tuple[str, str]], parts: list[str], is_normalised: bool, has_words: bool
) -> None:
    tokenizer = merging_tokenizer(merges, is_normalised=is_normalised, has_words=has_words)
    encoded = Splicer(tokenizer).encode("".join(parts))
    assert encoded.token_ids == tokenizer.encode("".join(parts))
    assert encoded.num_exact == 0


@given(MERGE_LISTS, st.lists(st.tuples(TEXTS, st.lists(st.integers(0, 280), max_size=12), TEXTS), max_size=4))
def test_whatever_is_generated_the_text_of_a_prompt_stays_its_text(
    merges: list[tuple[str, str]], turns: list[tuple[list[str], list[int], list[str]]]
) -> None:
    """And whatever was generated as text that can come back comes back in its tokens."""
    tokenizer = merging_tokenizer(merges)
    splicer = Splicer(tokenizer, max_tokens=2000)
    text = ""
    for asked, written, more in turns:
        text += "".join(asked) + "<|im_start|>assistant\n"
        prompt = splicer.encode(text)
        assert bytes_of(tokenizer, prompt.token_ids) == text.encode()
        answer = [token_id for token_id in written if token_id < tokenizer.vocab_size]
        splicer.remember(prompt.token_ids, answer)
        splicer.check()
        data = bytes_of(tokenizer, answer)
        text += data.decode("utf-8", "replace") + "<|im_end|>" + "".join(more)
        token_ids = splicer.encode(text).token_ids
        assert bytes_of(tokenizer, token_ids) == text.encode()
        is_text = (
            all(token not in data for token in (b"<|", b"\xef\xbf\xbd"))
            and data == data.decode("utf-8", "replace").encode()
        )
        if is_text:
            assert token_ids[: len(prompt.token_ids) + len(answer)] == prompt.token_ids + answer


def test_half_a_surrogate_pair_is_no_harm() -> None:
    encoded = Splicer(TOKENIZER).encode(f"{HEAD}\ud83d!{TAIL}")
    assert encoded.token_ids == TOKENIZER.encode(f"{HEAD}\ud83d!{TAIL}")
    assert encoded.text == f"{HEAD}\ufffd!{TAIL}"


def sentencepiece() -> Tokenizer:
    vocab = {
        token: i for i, token in enumerate(["<unk>", "<s>", "▁", *"abh", *(f"<0x{byte:02X}>" for byte in range(256))])
    }
    inner = InnerTokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(steps)
    inner.add_special_tokens(["<s>"])
    return Tokenizer(inner)


@pytest.mark.parametrize(
    "tokenizer",
    [
        sentencepiece(),
        merging_tokenizer(special=[AddedToken("<|im_start|>", rstrip=True, special=True, normalized=False)]),
    ],
    ids=["space in front", "token that takes spaces"],
)
def test_a_tokenizer_whose_pieces_touch_is_left_to_itself(tokenizer: Tokenizer) -> None:
    assert not tokenizer.can_split
    splicer = Splicer(tokenizer)
    prompt = splicer.encode("a<|im_start|>  b")
    assert prompt.token_ids == tokenizer.encode("a<|im_start|>  b")
    splicer.remember(prompt.token_ids, [4, 5])
    assert splicer.encode("a<|im_start|>  bab").token_ids == tokenizer.encode("a<|im_start|>  bab")


def test_pieces_are_watched_at_first(caplog: pytest.LogCaptureFixture) -> None:
    class Touching(Tokenizer):
        def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
            return super().encode(text.replace("\n<", "<"))

    tokenizer = Touching(byte_tokenizer()._inner)
    assert tokenizer.can_split
    splicer = Splicer(tokenizer)
    assert splicer.encode("a\n<|im_end|>").token_ids == tokenizer.encode("a\n<|im_end|>")
    assert "in pieces" in caplog.text


def test_many_threads_may_ask_at_once() -> None:
    splicer = Splicer(TOKENIZER, max_tokens=4000)

    def talk(name: int) -> bool:
        text, written = f"<|mark|>{name}{HEAD}", splicer.encode(f"<|mark|>{name}{HEAD}").token_ids
        for _ in range(10):
            answer = spell(TOKENIZER, "hel", "lo")
            splicer.remember(written, answer)
            text, written = f"{text}hello{TAIL}", splicer.encode(f"{text}hello{TAIL}").token_ids
        return bytes_of(TOKENIZER, written) == text.encode()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(talk, range(16)))
    splicer.check()
