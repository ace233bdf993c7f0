"""Text for a terminal: on one line, no longer than there is room, and nothing that moves the cursor."""

from collections.abc import Iterator


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shorten(text: str, max_chars: int, *, tail: bool = False) -> str:
    """On one line, and no longer than this."""
    line = " ".join(_printable(text[: 4 * max_chars] if not tail else text[-4 * max_chars :]))
    if len(line) <= max_chars:
        return line
    return f"...{line[3 - max_chars :]}" if tail else f"{line[: max_chars - 3]}..."


def _printable(text: str) -> Iterator[str]:
    """Its words, without what would move a terminal's cursor."""
    for word in text.split():
        yield "".join(character if character.isprintable() else "?" for character in word)
