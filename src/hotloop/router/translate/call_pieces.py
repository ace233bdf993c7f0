"""Which call a piece of a chat's stream belongs to: replicas take liberties with its index and its id."""

from hotloop.router.translate.chat_shapes import CallPiece, Function
from hotloop.router.translate.failures import bad_answer


class Calls:
    """Tells the pieces of calls apart: some replicas leave out the index, others give every call the same."""

    def __init__(self) -> None:
        self.num = 0
        self._index: int | None = None
        self._id: str | None = None

    def begin(self, piece: CallPiece) -> None:
        self.num += 1
        self._index, self._id = piece.index, piece.id

    def is_new(self, piece: CallPiece, function: Function) -> bool:
        """Whether a piece begins a call; one that is neither new nor of the last call makes no sense."""
        is_last = self.num > 0 and (piece.index is None or piece.index == self._index)
        if is_last:
            is_other = bool(piece.id and self._id and piece.id != self._id)
            return bool(function.name) and (is_other or (piece.index is None and not piece.id))
        if not function.name:
            raise bad_answer("a call begins without a name, or goes on after it ended")
        return True
