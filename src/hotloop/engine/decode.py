"""From the rows of a step to the tokens of its requests: sampled under the grammar, forced by it, or as drafted.

A token is *forced* where the grammar leaves no choice; all others are sampled, each from its own row, with the random
number of its position. Drafts only decide how many rows a step has: what a token is does not depend on them.

    draft     [ d0 d1 d2 d3 ]            row i is what the model says after d(i-1), row 0 after the last token
    produced  [ d0 d1 x ]  [ f f ]       the first token that differs ends it: its row was the last one to be right
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hotloop.backends.backend import Mask, SampledTokens
from hotloop.core.errors import HotloopError, RequestError
from hotloop.core.request import Request, TokenLogprob
from hotloop.engine.grammar.matcher import Matcher, masks_of
from hotloop.engine.step import Slice

_MAX_FORCED = 512  # tokens speculative at a time; the loop waits for no more than that
_FAR = 512  # tokens left, from where on the room is watched
_NEAR = 8  # tokens to spare, below which each further one is looked at before it is taken
_MAX_RESERVED = 16  # tokens kept for what the model has still to choose when something must be closed
_LARGE = 3  # forced tokens after a sampled one that tell that something with parts has begun


@dataclass(slots=True)
class Sampled:
    token_id: int
    logprob: TokenLogprob | None = None
    is_forced: bool = False  # whether the grammar alone gave it, without any logits


@dataclass(slots=True)
class Guide:
    """A request's place in its grammar. `forced` tokens come next; the matcher has taken them already."""

    matcher: Matcher
    forced: deque[int] = field(default_factory=deque)
    look_at: int = _FAR  # tokens left, from which on it is seen whether the answer can still be completed
    is_cut: bool = False  # whether the answer ends as it does for lack of room
    complete_at: int | None = None  # tokens after which it could have ended: what came since was the model's choice


class TokenDecoder:
    def __init__(self, eos_ids: Iterable[int], *, can_force: bool) -> None:
        self.eos_ids = frozenset(eos_ids)
        self._can_force = can_force
        self.guides: dict[str, Guide] = {}

    def open(self, request: Request, matcher: Matcher | None) -> list[Sampled]:
        """Append what its answer begins with and, if it follows a grammar, what that forces before the first step, but
        for the last of it."""
        if matcher is None:
            request.token_ids.extend(request.begun_ids)
            return [Sampled(token_id) for token_id in request.begun_ids]
        guide = self.guides[request.id] = Guide(matcher)
        self._take_forced(guide, request.max_tokens)
        begun: list[Sampled] = []
        for token_id in request.begun_ids:
            if not self._give(request, guide, token_id):
                break
            begun.append(Sampled(request.token_ids[-1]))
        if not self._forces(request):
            return begun
        num_forced = max(0, min(len(guide.forced), request.max_tokens - request.num_output) - 1)
        return begun + [self._append(request, guide.forced.popleft()) for _ in range(num_forced)]

    def _give(self, request: Request, guide: Guide, token_id: int) -> bool:
        """Take a token of an answer begun elsewhere as if it had been sampled here. False where the grammar does not
        allow it: what follows is chosen here."""
        if guide.matcher.has_ended:
            return False
        if guide.forced:
            if guide.forced[0] != token_id:
                return False
            guide.forced.popleft()
        elif guide.matcher.allows(token_id):
            try:
                token_id = self._take(request, guide, token_id)  # another one where there is no room for it
            except HotloopError:
                return False
        else:
            return False
        request.token_ids.append(token_id)
        return True

    def masks(self, parts: Iterable[Slice]) -> Iterator[tuple[int, Mask]]:
        """Which tokens grammars allow after the rows of level slices, but where a token is forced already."""
        if not self.guides:
            return
        guides = ((part, self.guides.get(part.request.id)) for part in parts if part.wants_token)
        guided = [(part, guide.matcher) for part, guide in guides if guide and not guide.forced]
        for (part, matcher), mask in zip(guided, masks_of([matcher for _, matcher in guided]), strict=True):
            yield part.first_row, mask
            for i, token_id in enumerate(part.draft_ids, 1):
                matcher.advance(token_id)
                yield part.first_row + i, matcher.mask()
            matcher.rollback(len(part.draft_ids))

    def decode(self, part: Slice, chosen: SampledTokens, index: int) -> list[Sampled]:
        """The tokens of a level slice, whose rows begin at this index; the request has them when this returns."""
        request, draft, guide = part.request, part.draft_ids, self.guides.get(part.request.id)
        num_known = request.num_tokens
        tokens: list[Sampled] = []
        while len(tokens) <= len(draft):
            try:
                tokens += self._next(request, guide, chosen, index + len(tokens))
            except HotloopError as error:  # nothing of this step counts
                part.error = error
                del request.token_ids[num_known:]
                return []
            if tokens[-1].token_id in self.eos_ids or not self._is_as_drafted(part, tokens):
                break
        return tokens

    def _is_as_drafted(self, part: Slice, tokens: list[Sampled]) -> bool:
        """Count the drafts that are right; False as soon as one is not."""
        while part.num_accepted < len(tokens):
            is_drafted = part.num_accepted < len(part.draft_ids)
            if not is_drafted or part.draft_ids[part.num_accepted] != tokens[part.num_accepted].token_id:
                return False
            part.num_right += part.match_lengths[part.num_accepted] is not None
            part.num_accepted += 1
        return True

    def _next(self, request: Request, guide: Guide | None, chosen: SampledTokens, row: int) -> list[Sampled]:
        """One token from a row, and those that are forced after it."""
        if guide is None:
            token_id = chosen.token(row)
        elif guide.forced:
            token_id = guide.forced.popleft()
        else:
            token_id = self._take(request, guide, chosen.token(row, guide.matcher))
        num_top = request.sampling.logprobs
        token = Sampled(token_id, None if num_top is None else chosen.logprob(row, token_id, num_top))
        request.token_ids.append(token_id)
        if guide is None or not self._forces(request):
            return [token]
        forced = [self._append(request, token_id) for token_id in guide.forced]
        guide.forced.clear()
        return [token, *forced]

    def _append(self, request: Request, token_id: int) -> Sampled:
        request.token_ids.append(token_id)
        return Sampled(token_id, is_forced=True)

    def _take(self, request: Request, guide: Guide, token_id: int) -> int:
        """Let the matcher take a sampled token, unless the answer could then not be completed in the room there is.

        Then the first token of the shortest ending is taken instead, if that closes something: an answer may be cut
        short, but nothing else is put in its place, unless the model's token is but space or leaves no way to end.
        Where nothing closes, and the answer could have ended before, it ends: what was begun since, such as one call
        more, would not be whole; but not within a call whose function has been chosen. Whether there is room is seen at
        places that depend on the tokens alone.
        """
        num_left = request.max_tokens - request.num_output
        if guide.matcher.is_complete:
            guide.complete_at = request.num_output
        self._advance(guide, token_id, num_left)
        is_large = len(guide.forced) >= _LARGE and num_left <= _FAR
        if num_left > guide.look_at and not is_large:
            return token_id
        num_reserved = min(request.max_tokens // 32, _MAX_RESERVED)
        num_spare = self._num_spare(guide, num_left, num_reserved=num_reserved)
        if num_spare >= 0:
            guide.look_at = num_left - num_spare // 2 if num_spare > _NEAR else num_left
            return token_id
        is_too_long = guide.complete_at is not None and guide.matcher.ending(_FAR) is not None
        guide.matcher.rollback(1 + len(guide.forced))
        guide.forced.clear()
        if is_too_long and guide.complete_at is not None:
            is_too_long = not guide.matcher.is_in_arguments(request.num_output - guide.complete_at)
        ending = guide.matcher.ending(num_left)
        closing_id = None if ending is None else ending[0] if ending else guide.matcher.eos_id
        is_hopeless = guide.matcher.is_blank(token_id) or (num_spare + num_reserved < 0 and not is_too_long)
        if closing_id is not None and (is_hopeless or guide.matcher.closes(closing_id)):
            guide.is_cut |= token_id != closing_id
            token_id = closing_id
        elif closing_id is not None and is_too_long:
            guide.is_cut = True
            return guide.matcher.eos_id
        elif closing_id is None:  # there was not room enough before, or the ending is unknown
            guide.look_at = num_left // 2
        self._advance(guide, token_id, num_left)
        return token_id

    def _num_spare(self, guide: Guide, num_left: int, *, num_reserved: int) -> int:
        """How many tokens would be left if the answer were completed from here; less than none if it cannot be."""
        if guide.matcher.has_ended:
            return num_left
        num_left -= 1 + len(guide.forced)
        ending = guide.matcher.ending(num_left) if num_left >= 0 else None
        if ending is None:
            return -1 - num_reserved
        return num_left - len(ending) - num_reserved if ending else num_left

    def _advance(self, guide: Guide, token_id: int, num_left: int) -> None:
        guide.matcher.advance(token_id)
        if guide.matcher.error:  # a limit that is only seen behind this token
            raise RequestError(f"the grammar failed: {guide.matcher.error}", param="grammar")
        self._take_forced(guide, num_left - 1)

    def _take_forced(self, guide: Guide, num_left: int) -> None:
        for token_id in guide.matcher.forced()[: min(num_left, _MAX_FORCED)]:
            if not guide.matcher.advance(token_id):
                break
            guide.forced.append(token_id)

    def _forces(self, request: Request) -> bool:
        """Logprobs need a row for each token."""
        return self._can_force and request.sampling.shortcuts and request.sampling.logprobs is None
