"""An explanation: a prompt is compared once its answer has begun, accounted for at its end, and rendered on request.

    event loop     start()     the first token is out: a thread finds what was prefilled before that is like the prompt,
                               and where the two part
    event loop     finish()    what was cached after all: every token gets its cause; a few additions
    on request     render()    which words, in which message: only for whom they belong to

The explainer keeps the prompts that were prefilled, and the latest explanations, both bounded.
"""

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from cachetools import FIFOCache

from hotloop.chat.assembly.spans import SpanKind, speller
from hotloop.chat.compare import Comparison, PromptPosition, compare, find_position, token_array
from hotloop.chat.prompt import Prompt
from hotloop.core.config import Explanations
from hotloop.core.lru import LruCache
from hotloop.core.request import FinishReason, Request
from hotloop.core.sharing import UNSHARED, Sharing
from hotloop.models.tokenizer import Tokenizer
from hotloop.server.account import PromptAccount, account_for
from hotloop.server.errors import UnknownExplanation
from hotloop.server.explain.past import PackedPrompt, Past, PastPrompt, is_same
from hotloop.server.metrics import Metrics
from hotloop.server.tenants import NOBODY, Caller

_KEPT_COST = 256  # of an explanation, in tokens
_PROMPT_SHARE = 8  # prompts that are kept whole, with their messages, take that much more room a token
_MAX_CHANGES = 32  # listed in the usage of one answer
_MAX_CALLERS = 4096  # answers of which it is known whose they are


@dataclass(frozen=True, slots=True)
class Question:
    prompt: Prompt
    earlier: PastPrompt | None = None
    comparison: Comparison | None = None
    spot: PromptPosition | None = None
    """Where the two part; worked out beforehand only if it is asked for with the answer."""
    is_named: bool = False
    """Whether it is the answer that was to be compared with, and not only the one most like it."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known about the prompts of an answer, once they were prefilled."""

    answer_id: str
    caller: Caller
    accounts: Sequence[PromptAccount]
    compared_with: str | None
    changes: Sequence[str]
    num_exact: int
    prompts: Sequence[Prompt] = ()
    """The prompts themselves, if something in them is to be found and they are still here."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is told with an answer to whoever named an earlier one. `unknown`: there is no such answer, or no longer."""

    outcome: Literal["same", "changed", "unknown", "unavailable"]
    kind: SpanKind = "template"
    index: int | None = None
    num_missed: int = 0
    num_common: int = 0


class CacheExplanation:
    """What is asked about one answer. One without questions says nothing."""

    def __init__(
        self,
        explainer: "Explainer | None" = None,
        caller: Caller = NOBODY,
        prompts: Sequence[Prompt] = (),
        *,
        named: str | None = None,
    ) -> None:
        self._explainer = explainer
        self._caller = caller
        self._prompts = prompts
        self._named = named
        self._asked_at = time.monotonic()
        self._questions: Sequence[Question] = ()
        self._comparing = threading.Lock()
        self._requests: Sequence[Request] = ()
        self._answer_id = ""
        self._num_open = 0
        self._accounts: list[PromptAccount] = []  # once there is nothing to add
        self._told: list[str] = []

    @property
    def changes(self) -> list[str]:
        """What was done otherwise than it was asked for."""
        changes = [*dict.fromkeys(self._told)]
        more = len(changes) - _MAX_CHANGES
        return [*changes[:_MAX_CHANGES], f"and {more} more"] if more > 0 else changes

    def tell(self, *changes: str) -> None:
        self._told += changes

    def begin(self, answer_id: str, requests: Sequence[Request]) -> None:
        if self._explainer:
            self._explainer.note_caller((answer_id, self._caller))
            self._answer_id, self._num_open = answer_id, len(requests)
            self._requests = requests[:: len(requests) // len(self._prompts)]

    def start(self) -> None:
        """The answer has begun: compare its prompts, so that nothing waits for it later."""
        if self._explainer and not self._questions:
            asyncio.get_running_loop().run_in_executor(None, self.compare)

    def compare(self) -> Sequence[Question]:
        """Compare the prompts, once; whoever comes while that is under way waits for it. It takes a moment."""
        with self._comparing:
            if self._explainer and not self._questions:
                ask = partial(self._explainer.ask, caller=self._caller, named=self._named, asked_at=self._asked_at)
                self._questions = [*map(ask, self._prompts)]
            return self._questions

    def finish(self, request: Request) -> None:
        """A request of the answer has ended. To be told before the client can come back."""
        if not self._explainer:
            return
        if request.first_token_at is not None:
            self.compare()  # before it is among those it is compared with
        if request.finish_reason is not FinishReason.ERROR and request.num_computed_at_end:
            token_ids = token_array(request.token_ids[: request.num_computed_at_end])
            prompt = PastPrompt(self._answer_id, self._caller, token_ids, request.num_prompt)
            self._explainer.note_prompt(prompt.packed)
        self._num_open -= 1
        if not self._num_open and self._is_prefilled:
            compared = [question.earlier.answer_id for question in self.compare() if question.earlier]
            prompts = self._prompts
            explanation = Explanation(
                self._answer_id,
                self._caller,
                self.accounts(),
                compared[0] if compared else None,
                self.changes,
                sum(prompt.num_exact for prompt in prompts),
                prompts,
            )
            self._explainer.keep(explanation)

    def accounts(self) -> list[PromptAccount]:
        """Where the tokens of each prompt came from; nothing before all of them were prefilled."""
        if self._accounts or not self._explainer or not self._is_prefilled:
            return self._accounts
        size = self._explainer.block_size
        accounts = [
            account_for(question.comparison, request.num_prompt, request.num_cached, size, request.eviction)
            for question, request in zip(self.compare(), self._requests, strict=True)
        ]
        if not self._num_open:
            self._accounts = accounts
        return accounts

    def diagnose(self) -> Diagnosis | None:
        """What became of the comparison that was asked for; None if none was."""
        if self._named is None:
            return None
        accounts = self.accounts()
        if not accounts:
            return Diagnosis("unavailable")
        question, account = self.compare()[0], accounts[0]
        if not question.is_named:
            return Diagnosis("unknown")
        comparison = question.comparison
        assert comparison
        assert question.earlier
        is_changed = comparison.divergence is not None and comparison.divergence.change == "diverged"
        num_missed = sum(cause.num_tokens for cause in account.causes if cause.reason == "diverged")
        if is_changed and (num_missed or comparison.num_common < question.earlier.num_prompt):
            spot = question.spot or PromptPosition("template", None, 0)
            return Diagnosis("changed", spot.kind, spot.index, num_missed, comparison.num_common)
        return Diagnosis("unavailable" if account.num_recomputed > account.num_block else "same")

    @property
    def _is_prefilled(self) -> bool:
        return bool(self._requests) and all(request.first_token_at is not None for request in self._requests)


NO_INQUIRY = CacheExplanation()


class Explainer:
    """Compares prompts with earlier ones. `past` may be used from any thread, the rest only on the event loop."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        metrics: Metrics,
        *,
        block_size: int,
        level: Explanations,
        memory_tokens: int,
        sharing: Sharing = UNSHARED,
    ) -> None:
        self.past = Past(memory_tokens)
        self.note_prompt = sharing.share("past", PackedPrompt, lambda packed: self.past.add(PastPrompt.unpack(packed)))
        self._callers: FIFOCache[str, Caller] = FIFOCache(_MAX_CALLERS)
        self.note_caller = sharing.share("caller", tuple[str, Caller], self._put_caller)
        self.level = level
        self.spell = speller(tokenizer)
        self._metrics = metrics
        self.block_size = block_size
        self._kept: LruCache[tuple[str, ...], Explanation] = LruCache(memory_tokens)
        self._prompts: LruCache[str, Sequence[Prompt]] = LruCache(memory_tokens // _PROMPT_SHARE)

    def inquire(self, prompts: Sequence[Prompt], caller: Caller, named: str | None = None) -> CacheExplanation:
        """To compare prompts with the answer that was named, or with what is most like them."""
        if self.level == "off":
            return CacheExplanation(named=named)
        return CacheExplanation(self, caller, prompts, named=named)

    def keep(self, explanation: Explanation) -> None:
        for account in explanation.accounts:
            self._metrics.count_prompt(account)
        if any(cause.divergence for account in explanation.accounts for cause in account.causes):
            cost = sum(len(prompt.token_ids) for prompt in explanation.prompts)
            self._prompts.put(explanation.answer_id, explanation.prompts, cost)
        caller, kept = explanation.caller, replace(explanation, prompts=())
        self._kept.put((explanation.answer_id,), kept, _KEPT_COST)
        self._kept.put((caller.owner, caller.scope, caller.request_id), kept, _KEPT_COST)

    def find(self, name: str, viewer: Caller) -> Explanation:
        """By an answer's id, or by a request's, which two clients may have given alike. Raises UnknownExplanation; so
        it does for those of others and of other scopes, but to an admin."""
        for key in ((name,), (viewer.owner, viewer.scope, name)):
            if (found := self._kept.find(key)) and (viewer.tenant.is_admin or is_same(found.caller, viewer)):
                return replace(found, prompts=self._prompts.find(found.answer_id) or ())
        unknown = f"no explanation for {name!r:.100}: unknown, still running, or expired"
        raise UnknownExplanation("explanations are switched off" if self.level == "off" else unknown)

    def name_beneficiary(self, request_id: str, viewer: Caller) -> str | None:
        """The answer that a request was made for, if it is the viewer's own."""
        answer_id = request_id.rpartition("-")[0]
        caller = self._callers.get(answer_id)
        return answer_id if caller and (viewer.tenant.is_admin or is_same(caller, viewer)) else None

    def _put_caller(self, asked: tuple[str, Caller]) -> None:
        answer_id, caller = asked
        self._callers[answer_id] = caller

    def ask(self, prompt: Prompt, caller: Caller, named: str | None, asked_at: float) -> Question:
        """On any thread; takes a moment."""
        token_ids = token_array(prompt.token_ids)
        earlier = self.past.find(named, caller) if named else None
        is_named = earlier is not None
        earlier = earlier or self.past.find_like(token_ids, caller, asked_at)
        if earlier is None:
            return Question(prompt)
        comparison = compare(token_ids, earlier.token_ids, self.spell)
        divergence = comparison.divergence if is_named else None
        spot = find_position(divergence, prompt, self.spell) if divergence else None
        return Question(prompt, earlier, comparison, spot, is_named)
