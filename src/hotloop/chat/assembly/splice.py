"""Text to tokens, where text that was tokens before becomes the same tokens again.

A model may write a word in other tokens than its tokenizer would, above all where a grammar forced some of them. When
its answer comes back as text, it becomes the tokens it was generated as, so that their KV is still good.

    prompt   <|im_start|> | user⏎ hi | <|im_end|> | ⏎ | <|im_start|> | assistant⏎            answer: hel lo <|im_end|>
    piece                 |          |            |   |              | assistant⏎ hel lo |

Special tokens cut a text into pieces that do not touch each other. An answer is kept under the hash of all tokens
before the piece it stands in, so that it is only ever found where it was written.
Invariant: the text of the tokens is the text that was given (after the model's own normalisation).
"""

import hashlib
import logging
import threading
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from hotloop.core.errors import PromptTooLong
from hotloop.core.lru import LruCache
from hotloop.core.sharing import UNSHARED, Sharing
from hotloop.models.tokenizer import Tokenizer, readable

_MAX_TURNS = 64  # answers kept for one place: as many agents may have begun in the same words
_MAX_NEWS = 64  # answers that wait to be looked into
_MAX_LEAD = 4096  # tokens between the last special one and an answer: no chat has so many
_NUM_CHECKED = 8  # prompts on which it is seen that pieces do not touch each other
_PLAUSIBLE_BYTES = 8  # a token, on average: a text that has more for all of the context is counted before it is encoded
_SLICE_CHARS = 1 << 16

log = logging.getLogger("hotloop.chat")


class Encoded(NamedTuple):
    """A text and its tokens. `starts` says at which character and which token each piece begins."""

    token_ids: list[int]
    text: str
    starts: list[tuple[int, int]]
    num_exact: int = 0
    """How many of the tokens are there because they were generated so."""


class _Turn(NamedTuple):
    """A run of tokens without special ones, in which an answer stands, and the UTF-8 they spell."""

    data: bytes
    token_ids: "array[int]"


class Splicer:
    """Remembers answers and pieces of text, each scope its own. Used from any thread.

    Of a prompt of more than `max_prompt` tokens nothing is remembered.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_tokens: int = 4_000_000,
        max_prompt: int | None = None,
        sharing: Sharing = UNSHARED,
    ) -> None:
        self._tokenizer = tokenizer
        self._max_prompt = max_prompt
        self._pieces: LruCache[tuple[str, str], array[int]] = LruCache(max_tokens // 2)
        self._turns: LruCache[bytes, tuple[_Turn, ...]] = LruCache(max_tokens // 2)
        self._lock = threading.Lock()
        self._news: deque[tuple[str, Sequence[int], Sequence[int]]] = deque()
        self._news_lock = threading.Lock()
        self._is_shared = not sharing.is_alone
        self._keep_run = sharing.share("run", tuple[bytes, list[int]], self._keep)
        self._can_split = tokenizer.can_split
        self._num_unchecked = _NUM_CHECKED

    def check_bytes(self, num_bytes: int) -> None:
        """Refuse a text that cannot fit, however well it is cut into tokens."""
        least = -(-num_bytes // self._tokenizer.max_token_bytes)
        if self._max_prompt is not None and least > self._max_prompt:
            raise PromptTooLong(least, self._max_prompt, is_least=True)

    def encode(self, text: str, *, add_bos: bool = False, scope: str = "") -> Encoded:
        """Raises PromptTooLong for what is far longer than `max_prompt`, without reading all of it."""
        self._take_news()
        text = readable(text)
        self._check_length(text)
        if self._num_unchecked and self._can_split:
            self._check_pieces(text)
        token_ids = [self._tokenizer.bos_id] if add_bos and self._tokenizer.bos_id is not None else []
        if not self._can_split:
            return Encoded(token_ids + self._tokenizer.encode(text), text, [(0, len(token_ids))])
        chain = _begin_chain(scope)
        chain.update(array("i", token_ids))
        starts, num_exact, begin = [], 0, 0
        fresh: list[tuple[str, array[int]]] = []
        for piece, token_id in self._tokenizer.split(text):
            starts.append((begin, len(token_ids)))
            exact: Sequence[int] = ()
            if token_id is None:
                exact, rest = self._recall(chain.digest(), piece)
                piece_ids = [*exact, *self._cut(rest, scope, fresh)]
            else:
                piece_ids = [token_id]
            chain.update(array("i", piece_ids))
            token_ids += piece_ids
            num_exact += len(exact)
            begin += len(piece)
        if self._max_prompt is None or len(token_ids) <= self._max_prompt:
            self._keep_pieces(fresh, scope)
        return Encoded(token_ids, text, starts, num_exact)

    def remember(self, prompt_ids: Sequence[int], output_ids: Sequence[int], *, scope: str = "") -> None:
        """An answer, whatever ended it, and the prompt it answers. Looked into by the thread that next needs it, and at
        once where that may be in another process."""
        if not self._can_split or not output_ids:
            return
        self._news.append((scope, prompt_ids, output_ids))
        if self._is_shared or len(self._news) > _MAX_NEWS:
            self._take_news()

    def _take_news(self) -> None:
        with self._news_lock:
            while self._news:
                self._keep_answer(*self._news.popleft())

    def _keep_answer(self, scope: str, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None:
        is_special = self._tokenizer.is_special
        farthest = max(0, len(prompt_ids) - _MAX_LEAD)
        if farthest and not self._tokenizer.has_special(prompt_ids[farthest:]):
            return
        begin = next((i for i in range(len(prompt_ids), farthest, -1) if is_special(prompt_ids[i - 1])), 0)
        chain = _begin_chain(scope)
        chain.update(array("i", prompt_ids[:begin]))
        run: list[int] = []
        for token_id in (*prompt_ids[begin:], *output_ids):
            if not is_special(token_id):
                run.append(token_id)
                continue
            if run:
                self._keep_run((chain.digest(), run))
            chain.update(array("i", [*run, token_id]))
            run = []
        if run:
            self._keep_run((chain.digest(), run))

    def _check_length(self, text: str) -> None:
        num_bytes = len(text.encode())
        self.check_bytes(num_bytes)
        if self._max_prompt is None or num_bytes <= _PLAUSIBLE_BYTES * self._max_prompt:
            return
        num_tokens = 0
        for begin in range(0, len(text), _SLICE_CHARS):
            num_tokens += len(self._tokenizer.encode(text[begin : begin + _SLICE_CHARS]))
            if num_tokens > 2 * self._max_prompt:  # slices may have a few more tokens than the text
                raise PromptTooLong(self._max_prompt + 1, self._max_prompt, is_least=True)

    def _cut(self, text: str, scope: str, fresh: "list[tuple[str, array[int]]]") -> Iterable[int]:
        if not text:
            return ()
        with self._lock:
            known = self._pieces.find((scope, text))
        if known is not None:
            return known
        token_ids = array("i", self._tokenizer.encode(text))
        fresh.append((text, token_ids))
        return token_ids

    def _keep_pieces(self, pieces: "Iterable[tuple[str, array[int]]]", scope: str) -> None:
        with self._lock:
            for text, token_ids in pieces:
                self._pieces.put((scope, text), token_ids, len(token_ids))

    def _recall(self, place: bytes, piece: str) -> tuple[Sequence[int], str]:
        """The tokens the piece was generated as, as far as it was, and the rest of it."""
        with self._lock:
            turns = self._turns.find(place)
        if not turns:
            return (), piece
        data = piece.encode()
        # The more is shared the better, and the less the written text goes on behind it.
        shared = ((_num_shared(turn.data, data), turn) for turn in turns)
        num_bytes, turn = max(shared, key=lambda match: (match[0], -len(match[1].data)))
        num_tokens, num_bytes = self._whole_tokens(turn, num_bytes)
        return turn.token_ids[:num_tokens], data[num_bytes:].decode()

    def _keep(self, placed: tuple[bytes, list[int]]) -> None:
        place, run = placed
        turn = self._readable_turn(run)
        if not turn.data:
            return
        with self._lock:
            others = [other for other in self._turns.find(place) or () if other.data != turn.data]
            turns = (*others[1 - _MAX_TURNS :], turn)
            self._turns.put(place, turns, sum(2 * len(turn.token_ids) for turn in turns))

    def _readable_turn(self, run: Sequence[int]) -> _Turn:
        """The run, up to bytes that are no text: nobody could send those back."""
        turn = _Turn(b"".join(map(self._tokenizer.token_bytes, run)), array("i", run))
        try:
            turn.data.decode()
        except UnicodeDecodeError as error:
            num_tokens, num_bytes = self._whole_tokens(turn, error.start)
            return _Turn(turn.data[:num_bytes], turn.token_ids[:num_tokens])
        return turn

    def _whole_tokens(self, turn: _Turn, max_bytes: int) -> tuple[int, int]:
        """How many of the tokens lie within so many bytes, which are whole characters, and end one; and their bytes."""
        if max_bytes == len(turn.data):
            return len(turn.token_ids), max_bytes
        sizes = (len(self._tokenizer.token_bytes(token_id)) for token_id in turn.token_ids)
        best = 0, 0
        for num_tokens, end in enumerate(accumulate(sizes), start=1):
            if end > max_bytes:
                break
            if end == max_bytes or turn.data[end] & 0xC0 != 0x80:
                best = num_tokens, end
        return best

    def _check_pieces(self, text: str) -> None:
        """A tokenizer whose pieces do touch each other is used as it is."""
        self._num_unchecked -= 1
        pieces = (self._tokenizer.encode(piece) for piece, _ in self._tokenizer.split(text))
        if [token_id for piece in pieces for token_id in piece] != self._tokenizer.encode(text):
            self._can_split = False
            log.warning("this tokenizer cannot tokenize text in pieces: answers are tokenized again every turn")

    def check(self) -> None:
        self._take_news()


def _begin_chain(scope: str) -> "hashlib.blake2b":
    return hashlib.blake2b(repr(scope).encode(), digest_size=16)


def _num_shared(written: bytes, given: bytes) -> int:
    """How much of a written text is at the beginning of a given one: all of it, or all that was given.

    A text that goes on differently somewhere in between is another text. One that goes on where the written one ended
    must not do so within a word, which a tokenizer would rather have cut as a whole.
    """
    if written.startswith(given):
        return len(given)
    if not given.startswith(written):
        return 0
    last, first = (written[-4:].decode(errors="ignore")[-1:], given[len(written) :][:4].decode(errors="ignore")[:1])
    return 0 if last.isalnum() and first.isalnum() else len(written)
