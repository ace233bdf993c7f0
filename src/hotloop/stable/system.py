"""System messages that come late, as words of the user's, set apart: what came before them stays as it was."""

from collections.abc import Sequence
from dataclasses import replace

from hotloop.core.message import Message


def word_note(text: str) -> str:
    """Words of the system's among those of others."""
    return f"<system>\n{text}\n</system>"


def word_system_turns(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Leading system messages as one; later ones at the user's next turn, or the last one or the result of a tool that
    they follow, or as a turn of their own."""
    turns: list[Message] = []
    waiting: list[str] = []
    for i, message in enumerate(messages):
        if message.role != "system":
            turns.append(replace(message, content="\n\n".join([*waiting, message.content])) if waiting else message)
            waiting = []
        elif all(turn.role == "system" for turn in turns):
            turns = [replace(message, content=f"{turns[0].content}\n\n{message.content}") if turns else message]
        else:
            waiting.append(word_note(message.content))
            next_role = messages[i + 1].role if i + 1 < len(messages) else None
            if next_role not in ("system", "user"):
                _append(waiting, turns)
                waiting = []
    return tuple(turns)


def _append(words: Sequence[str], turns: list[Message]) -> None:
    if turns[-1].role in ("user", "tool"):
        turns[-1] = replace(turns[-1], content="\n\n".join([turns[-1].content, *words]))
    else:
        turns.append(Message("user", "\n\n".join(words)))
