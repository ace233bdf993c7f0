"""What an answer may look like, as a value: the text of a grammar, in one of three notations.

Two equal grammars are the same shape and are compiled once. Nothing here knows how they are compiled or matched.
"""

from dataclasses import dataclass
from typing import Literal

GrammarKind = Literal["json_schema", "regex", "lark"]


@dataclass(frozen=True, slots=True)
class Grammar:
    """A language that the whole answer must belong to.

    `lark` is llguidance's dialect: `%json {...}` embeds a JSON schema, `<[12]>` is the token with that id.
    """

    kind: GrammarKind
    text: str
