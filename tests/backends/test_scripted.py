"""The backend that says what it is told."""

from tests.backends.scripted import ScriptedBackend
from tests.engine.tiny import EOS_ID, TOKENIZER

from hotloop.core.config import EngineConfig
from hotloop.core.request import SamplingParams
from hotloop.engine.engine import Engine

OPENING = "<|im_start|>assistant\n"
SCRIPT = ("first", "zweite – €", "")


def say(*prompts: str, **sampling: object) -> list[str]:
    backend = ScriptedBackend(TOKENIZER, SCRIPT)
    with Engine(TOKENIZER, backend, EngineConfig(debug_checks=True)) as engine:
        return [engine.generate(prompt, SamplingParams(**sampling)).text for prompt in prompts]  # type: ignore[arg-type]


def test_an_answer_is_the_text_of_its_turn() -> None:
    first = f"hello{OPENING}"
    second = f"{first}first<|im_end|>again{OPENING}"
    third = f"{second}zweite<|im_end|>{OPENING}"
    assert say(first, second, third, first, temperature=2) == ["first", "zweite – €", "", "first"]


def test_nothing_is_said_out_of_turn() -> None:
    assert say("no answer begins here", OPENING * 4, f"{OPENING}other words") == ["", "", ""]


def test_a_text_can_be_cut_and_ends_its_turn() -> None:
    assert say(OPENING, max_tokens=3) == ["fir"]
    assert min(TOKENIZER.eos_ids) == EOS_ID
