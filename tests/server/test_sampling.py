"""Every sampling parameter has its effect, through the real `openai` client.

The model's likeliest token has a logit of 10 and all others have between 0 and 1, so that at a temperature of 2 one
token in three is the likeliest.
"""

from typing import Any

import openai
import pytest
from tests.server.serving import HELLO, MODEL, TOKENIZER, only, token


def say(client: openai.OpenAI, *, extra: dict[str, Any] | None = None, **params: Any) -> str:
    """Sixteen tokens, if nothing else is said."""
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, **{"max_tokens": 16} | params, extra_body={"ignore_eos": True} | (extra or {})
    )
    content = answer.choices[0].message.content
    assert content is not None
    return content


def leaning(text: str) -> dict[str, Any]:
    """A bias by which the model says this character, but only just."""
    return {"logit_bias": {str(token(text)): 11}, "temperature": 0}


def test_temperature(client: openai.OpenAI) -> None:
    assert say(client, temperature=0) == say(client, temperature=0, seed=5)
    assert say(client, temperature=2, seed=5) != say(client, temperature=0)


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 0.01}, {"min_p": 1.0}], ids=str)
def test_cuts_that_leave_only_the_likeliest(client: openai.OpenAI, narrow: dict[str, Any]) -> None:
    assert say(client, temperature=2, seed=5, extra=narrow) == say(client, temperature=0)


@pytest.mark.parametrize("wide", [{"top_k": -1}, {"top_k": 0}, {"top_p": 1.0}, {"min_p": 0.0}], ids=str)
def test_cuts_that_leave_everything(client: openai.OpenAI, wide: dict[str, Any]) -> None:
    assert say(client, temperature=2, seed=5, extra=wide) == say(client, temperature=2, seed=5)


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
def test_penalties_break_a_repetition(client: openai.OpenAI, name: str) -> None:
    assert say(client, extra=leaning("a")) == "a" * 16
    penalised = say(client, **{name: 2}, extra=leaning("a"))
    assert penalised[0] == "a" != penalised[1]


def test_a_repetition_penalty_counts_the_prompt(client: openai.OpenAI) -> None:
    prompt = [token_id for token_id in range(TOKENIZER.vocab_size) if token_id != token("z")]
    said = [
        client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=1, temperature=0, extra_body={"repetition_penalty": penalty}
        )
        for penalty in (1, 100)
    ]
    assert [answer.choices[0].text == "z" for answer in said] == [False, True]


def test_a_bias_forces_or_forbids(client: openai.OpenAI) -> None:
    assert say(client, temperature=2, logit_bias={str(token("q")): 100}) == "q" * 16
    forbidden = say(client, logit_bias={str(token("q")): -100}, extra={"temperature": 2, "max_tokens": 500})
    assert "q" not in forbidden


def test_seeds(client: openai.OpenAI) -> None:
    said = [say(client, temperature=2, seed=seed) for seed in (1, 1, 2, 3)]
    assert said[0] == said[1]
    assert len(set(said)) == 3
    assert len({say(client, temperature=2) for _ in range(3)}) == 3, "without a seed every answer has its own"


def test_the_end_of_a_turn_comes_when_it_may(client: openai.OpenAI) -> None:
    def count(**extra: Any) -> int:
        answer = client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=9, extra_body=only("<|im_end|>") | extra
        )
        assert answer.usage
        return answer.usage.completion_tokens

    assert [count(), count(min_tokens=4), count(ignore_eos=True)] == [1, 5, 9]


def test_stop_tokens_and_strings(client: openai.OpenAI) -> None:
    assert say(client, extra=only("c") | {"stop_token_ids": [token("c")], "min_tokens": 3}).count("c") == 1
    assert say(client, stop="cc", extra=only("c")) == ""
    assert say(client, stop="cc", extra=only("c") | {"include_stop_str_in_output": True}) == "cc"
    assert say(client, stop="cc", extra=only("c") | {"min_tokens": 5}) == "ccc"


def test_number_and_length_of_the_choices(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, n=3, max_tokens=5, extra_body=only("n"))
    assert [choice.message.content for choice in answer.choices] == ["nnnnn"] * 3
