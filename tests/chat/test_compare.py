"""Where two prompts part, in which words, and how much is the same behind."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chat.assembly.merging import merging_tokenizer, spell
from tests.engine.tiny import TOKENIZER

from hotloop.chat.assembly.spans import speller
from hotloop.chat.compare import (
    WINDOW,
    Comparison,
    Divergence,
    PromptPosition,
    Words,
    compare,
    count_common,
    find_position,
    find_words,
    hash_windows,
    token_array,
)
from hotloop.chat.prompt import ChatInput, Prompt, Prompts
from hotloop.core.message import Message, Tool
from hotloop.models.template import ChatTemplate
from hotloop.models.tokenizer import Tokenizer

SPELL = speller(TOKENIZER)
MERGING = merging_tokenizer()
CHATML = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
PROMPTS = Prompts(ChatTemplate(CHATML, bos_token="", eos_token="<|im_end|>"), TOKENIZER)
RULES = "Read all of it before you say a word, and then say it well."


def compare_texts(earlier: str, current: str, tokenizer: Tokenizer = TOKENIZER) -> Comparison:
    one, other = (token_array(tokenizer.encode(text)) for text in (current, earlier))
    return compare(one, other, speller(tokenizer))


def part(earlier: str, current: str) -> Divergence:
    divergence = compare_texts(earlier, current).divergence
    assert divergence
    return divergence


def chat(*messages: str, tools: tuple[str, ...] = (), system: str = RULES) -> Prompt:
    turns = [Message("user" if i % 2 == 0 else "assistant", text) for i, text in enumerate(messages)]
    shown = tuple(Tool(name, f"What {name} does.", {"type": "object"}) for name in tools)
    return PROMPTS.chat(ChatInput(messages=(Message("system", system), *turns), tools=shown))


def spot(earlier: Prompt, current: Prompt) -> PromptPosition | None:
    divergence = compare(token_array(current.token_ids), token_array(earlier.token_ids), SPELL).divergence
    assert divergence
    return find_position(divergence, current, SPELL)


@pytest.mark.parametrize(("earlier", "current"), [("", ""), ("", "abc"), ("abc", ""), ("abc", "abc"), ("abc", "abcd")])
def test_one_is_the_beginning_of_the_other(earlier: str, current: str) -> None:
    comparison = compare_texts(earlier, current)
    assert comparison.divergence is None
    assert comparison.num_common == min(len(earlier), len(current))
    assert comparison.num_recomputed() == 0


def test_what_follows_a_changed_word_was_read_before() -> None:
    rest = "and this is the rest of it, which is long enough."
    comparison = compare_texts(f"It is 10:01 {rest}", f"It is 10:02 {rest} And more of it.")
    assert comparison.divergence
    assert comparison.divergence.change == "diverged"
    assert comparison.num_common == comparison.divergence.index == len("It is 10:0")
    assert comparison.num_recomputed() == len(" " + rest)
    assert comparison.num_recomputed(len("It is 10:02 and ")) == len(rest) - len("and ")


def test_parts_that_changed_places_were_read_before() -> None:
    one, two = "a" * 40, "".join(map(chr, range(48, 88)))
    assert compare_texts(one + two, two + one).num_recomputed() == 80


def test_what_is_common_to_both_does_not_count_again() -> None:
    """A text that repeats itself is no reason to call it recomputed."""
    comparison = compare_texts("x" * 100 + "A", "x" * 100 + "B" + "x" * 50)
    assert comparison.num_recomputed() == 0


def test_text_that_was_only_cut_otherwise() -> None:
    written = [
        *spell(MERGING, "say "),
        *spell(MERGING, "h", "e", "l", "l", "o"),
        *spell(MERGING, " world and all that"),
    ]
    current = MERGING.encode("say hello world and all that, again")
    comparison = compare(token_array(current), token_array(written), speller(MERGING))
    assert comparison.divergence
    assert comparison.divergence.change == "retokenised"
    assert comparison.num_recomputed() == len(MERGING.encode("hello world and all that"))
    words = find_words(comparison.divergence, speller(MERGING))
    assert words.before == "say "
    assert words.previous.startswith("h|e|l|l|o|")
    assert words.current.startswith("hello|")


def test_a_cut_that_depends_on_what_follows_is_a_change() -> None:
    """Both begin in `hell`, cut otherwise; but it is the next letter that made them so."""
    one, other = MERGING.encode("say hello"), MERGING.encode("say help!")
    comparison = compare(token_array(one), token_array(other), speller(MERGING))
    assert comparison.divergence
    assert comparison.divergence.change == "diverged"


def test_an_answer_that_ends_within_a_token() -> None:
    comparison = compare(
        token_array(MERGING.encode("say hello")), token_array(spell(MERGING, "say ", "he")), speller(MERGING)
    )
    assert comparison.divergence
    assert comparison.divergence.change == "retokenised"


@pytest.mark.parametrize(
    ("earlier", "current", "words"),
    [
        ("It is 10:01 now.", "It is 10:02 now.", Words("It is ", "10:01 now.", "10:02 now.")),
        ("two words", "two other words", Words("two ", "words", "other words")),
        ("grün", "grüß", Words("", "grün", "grüß")),
        ("a é", "a è", Words("a ", "é", "è")),
        ("x", "y", Words("", "x", "y")),
        ("🙂 end", "🙃 end", Words("", "🙂 end", "🙃 end")),
    ],
)
def test_the_words_around_a_change(earlier: str, current: str, words: Words) -> None:
    assert find_words(part(earlier, current), SPELL) == words


def test_words_are_few_and_whole() -> None:
    long = "many words that nobody wants to see " * 20
    words = find_words(part(f"{long}one {long}", f"{long}two {long}"), speller(TOKENIZER))
    assert long.endswith(words.before)
    assert words.previous.startswith("one many")
    assert words.current.startswith("two many")
    assert max(map(len, (words.before, words.previous, words.current))) <= 60


def test_a_word_without_end_is_not_told_whole() -> None:
    words = find_words(part("A" * 500 + "B" * 500, "A" * 500 + "C" * 500), SPELL)
    assert max(map(len, (words.before, words.previous, words.current))) <= 60


def test_the_spot_is_the_first_character_that_differs() -> None:
    assert spot(chat("It is 10:01 now."), chat("It is 10:02 now.")) == PromptPosition("message", 1, len("It is 10:0"))
    assert spot(chat("Hi", system="Oh. " + RULES), chat("Hi", system="Ah. " + RULES)) == PromptPosition("system", 0, 0)
    assert spot(chat("Hi", "Yes", "a ü b"), chat("Hi", "Yes", "a ü c")) == PromptPosition("message", 3, len("a ü "))


def test_a_message_that_got_shorter_or_longer() -> None:
    assert spot(chat("Long words", "Yes"), chat("Long", "Yes")) == PromptPosition("message", 1, len("Long"))
    assert spot(chat("Long", "Yes"), chat("Long words", "Yes")) == PromptPosition("message", 1, len("Long"))


def test_a_message_that_was_left_out() -> None:
    """The template's own words before a message belong to it."""
    whole = chat("One", "Two", "Three")
    cut = PROMPTS.chat(ChatInput(messages=(Message("system", RULES), Message("user", "One"), Message("user", "Three"))))
    assert spot(whole, cut) == PromptPosition("message", 2, 0)


def test_a_tool_that_was_not_there_before() -> None:
    found = spot(chat("Hi", tools=("alpha", "beta")), chat("Hi", tools=("alpha", "gamma")))
    assert found
    assert (found.kind, found.index) == ("tool", 1)


def test_a_prompt_that_came_as_tokens_has_no_parts() -> None:
    one, other = (PROMPTS.tokens(TOKENIZER.encode(text)) for text in ("abc", "abd"))
    assert spot(one, other) is None


def test_plain_text_has_one_part() -> None:
    assert spot(PROMPTS.text("It is so."), PROMPTS.text("It is not.")) == PromptPosition("text", 0, len("It is "))


@given(st.lists(st.integers(0, 3), max_size=80), st.lists(st.integers(0, 3), max_size=80))
def test_recomputed_tokens_are_those_in_windows_that_both_have(one: list[int], other: list[int]) -> None:
    comparison = compare(token_array(one), token_array(other), lambda token_id: bytes([97 + token_id]))
    common = comparison.num_common
    assert one[:common] == other[:common]
    assert common in (len(one), len(other)) or one[common] != other[common]
    assert (comparison.divergence is None) == (common in (len(one), len(other)))
    rest, behind = one[common:], other[common:]
    known = {tuple(behind[i : i + WINDOW]) for i in range(len(behind) - WINDOW + 1)}
    covered = {
        j for i in range(len(rest) - WINDOW + 1) if tuple(rest[i : i + WINDOW]) in known for j in range(i, i + WINDOW)
    }
    assert comparison.num_recomputed() == len(covered)
    assert 0 <= comparison.num_recomputed(common + 5) <= comparison.num_recomputed()


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_two_texts_have_words_and_a_spot(earlier: str, current: str) -> None:
    one, other = PROMPTS.text(current), PROMPTS.text(earlier)
    divergence = compare(token_array(one.token_ids), token_array(other.token_ids), SPELL).divergence
    if divergence is None:
        return
    words = find_words(divergence, SPELL)
    assert words.previous != words.current
    found = find_position(divergence, one, SPELL)
    assert found
    assert one.text[: found.offset] == other.text[: found.offset]


def test_windows_of_a_long_prompt_are_all_told_apart() -> None:
    rng = random.Random(0)
    ids = token_array([rng.randrange(50_000) for _ in range(100_000)])
    assert len({*hash_windows(ids).tolist()}) == len(ids) - WINDOW + 1
    assert len(hash_windows(ids[: WINDOW - 1])) == 0
    assert compare(ids[7:], ids, SPELL).num_recomputed() == len(ids) - 7
    assert count_common(ids, ids) == len(ids)
