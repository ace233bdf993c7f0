"""A late system message stays where it is, in whatever words the template has for it."""

import pytest
from tests.server.serving import CHATML

from hotloop.chat.assembly.system_turns import keeps_system_turns
from hotloop.core.message import Message
from hotloop.models.template import ChatTemplate
from hotloop.stable.system import word_system_turns

HOISTING = (
    "{% for m in messages if m.role == 'system' %}{{ m.content }}\n{% endfor %}"
    "{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
)
REFUSING = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}"
)
DROPPING = "{% for m in messages if m.role != 'system' or loop.first %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@pytest.mark.parametrize(("source", "keeps"), [(CHATML, True), (HOISTING, False), (REFUSING, False), (DROPPING, False)])
def test_what_a_template_does_is_found_out_by_trying(source: str, keeps: bool) -> None:
    assert keeps_system_turns(ChatTemplate(source, bos_token="", eos_token="")) is keeps


def turns(*pairs: tuple[str, str]) -> tuple[Message, ...]:
    return tuple(Message(role, content) for role, content in pairs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "worded"),
    [
        ([("system", "a"), ("user", "b")], [("system", "a"), ("user", "b")]),
        ([("system", "a"), ("system", "b"), ("user", "c")], [("system", "a\n\nb"), ("user", "c")]),
        ([("user", "a"), ("system", "b")], [("user", "a\n\n<system>\nb\n</system>")]),
        (
            [("user", "a"), ("assistant", "b"), ("system", "c"), ("system", "d"), ("user", "e")],
            [("user", "a"), ("assistant", "b"), ("user", "<system>\nc\n</system>\n\n<system>\nd\n</system>\n\ne")],
        ),
        (
            [("user", "a"), ("tool", "b"), ("system", "c"), ("assistant", "d")],
            [("user", "a"), ("tool", "b\n\n<system>\nc\n</system>"), ("assistant", "d")],  # many refuse a user here
        ),
    ],
)
def test_late_ones_become_the_users_words(given: list[tuple[str, str]], worded: list[tuple[str, str]]) -> None:
    assert word_system_turns(turns(*given)) == turns(*worded)


def test_a_later_turn_only_adds() -> None:
    history = turns(("system", "a"), ("user", "b"), ("system", "c"), ("assistant", "d"), ("user", "e"))
    assert word_system_turns(history)[:2] == word_system_turns(history[:3])
