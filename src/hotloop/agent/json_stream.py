"""JSON that is still being written, in pieces cut anywhere: the elements of a list as they close. What is found is
text; whether it is good JSON is for whoever parses it.
"""

from collections.abc import Iterator

from hotloop.wire.reader import Nesting


class ElementReader:
    """The elements of the list that an object has under one key: `{"steps": [{…}, {…}]}`.

    depth    0 1         2 3 2  3 2 1 0

    What stands before the object, such as a fence, is skipped, and so is what stands behind it.
    """

    def __init__(self, key: str) -> None:
        self.is_closed = False
        """Whether the object is whole."""
        self.has_list = False
        self._key = f'"{key}"'
        self._nesting = Nesting()
        self._text: list[str] = []  # of the element, or before the list of the object's last string
        self._is_inside = False

    def feed(self, piece: str) -> Iterator[str]:
        """Take more of the text; gives each element that closes in it."""
        for char in piece:
            if self.is_closed:
                return
            before = self._nesting.depth
            if before == 0 and char != "{":
                continue
            was_in_string = self._nesting.is_in_string
            self._nesting.push(char)
            if self._is_inside:
                yield from self._element(char, is_string=was_in_string)
            elif before == 1:
                self._look_for_list(char, is_string=was_in_string)
            self.is_closed = self._nesting.depth == 0

    def _look_for_list(self, char: str, *, is_string: bool) -> None:
        """Directly before a value stands its key."""
        if char == '"' and not is_string:
            self._text = []
        if is_string or char == '"':
            self._text.append(char)
        elif char == "[" and not self.has_list and "".join(self._text) == self._key:
            self.has_list = self._is_inside = True
            self._text = []

    def _element(self, char: str, *, is_string: bool) -> Iterator[str]:
        """An object is whole at its bracket; a bare value only at the comma behind it."""
        depth = self._nesting.depth
        self._is_inside = depth > 1
        is_end = not is_string and (depth == 1 or (depth == 2 and char == ","))
        if not is_end:
            self._text.append(char)
        if is_end or (depth == 2 and char in "}]" and not is_string):
            element, self._text = "".join(self._text).strip(), []
            if element:
                yield element
