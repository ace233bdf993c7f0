"""How deep one is in a JSON text that is still being written."""


class Nesting:
    """Told a JSON text character by character; `depth` is the number of brackets that are open."""

    def __init__(self) -> None:
        self.depth = 0
        self.is_in_string = False
        self._is_escaped = False

    @property
    def is_open(self) -> bool:
        """Whether a string or a bracket is."""
        return self.is_in_string or self.depth > 0

    def push(self, char: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif self.is_in_string:
            self._is_escaped, self.is_in_string = char == "\\", char != '"'
        elif char == '"':
            self.is_in_string = True
        elif char in "{[":
            self.depth += 1
        elif char in "}]":
            self.depth -= 1
