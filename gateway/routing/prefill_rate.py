"""How long one worker's prefills take, learned from those that it did.

Owns the two numbers, their fit and how far they can still be trusted. A token of a prompt costs
`token_s`, and `context_s` for each token before it: attention makes the end of a long prompt dearer
than its beginning, so one rate takes a long prompt for half of what it is. Must not know who
computes what, nor other workers.
"""

from typing import Final

PRIOR_TOKENS_PER_S: Final = 2000.0
LEAST_TOKENS_PER_S: Final = 1.0
MOST_TOKENS_PER_S: Final = 1e9
"""Others count as these: what a broken worker reports must not make a cost infinite or no number.
"""

_MEMORY_S: Final = 30.0
"""About so much of the last prefill time decides, less of it the longer ago it was."""

_PRIOR_S: Final = 0.3
_PRIOR_DEPTH: Final = 10_000
"""The fit leans on the rate that the worker reports as if it had computed at it for so long, with
so many tokens before each. Prompts that are all of one length tell nothing of `context_s`."""

_HALF_TRUST_S: Final = 20.0
"""A worker that was slow once gets no work while its peers have time, and so could never show that
it is not slow any more. A pace this old counts half, one twice as old a seventeenth: against what
peers measured, and against what it measures itself when it is asked again.

To ask a worker of a tenth of the others' speed costs ten times as much as one of their speed, so
against theirs a pace fades the more slowly the slower it is: who was seen at 80 % is their equal
again (`route.TIE_RATIO`) after 40 s, at 30 % after three minutes, at 10 % after nine."""

_LEAST_SHARE: Final = 0.1
"""Of all time, at least so much is the tokens' own: noise must not charge everything to context."""


class PrefillRateEstimator:
    """`tokens_per_s` is the average, 0 while nothing is known."""

    __slots__ = (
        "_deep_s",
        "_depth",
        "_reported",
        "_seconds",
        "_spread",
        "_tokens",
        "context_s",
        "learned_at",
        "token_s",
        "tokens_per_s",
    )

    def __init__(self) -> None:
        self.tokens_per_s = 0.0
        self.token_s = 0.0
        self.context_s = 0.0
        self.learned_at = 0.0
        self._reported = PRIOR_TOKENS_PER_S
        self._tokens = self._depth = self._spread = self._seconds = self._deep_s = 0.0

    def report(self, tokens_per_s: float, now: float) -> None:
        """The rate that the worker measured itself: all that is known before the first sample."""
        if not tokens_per_s:
            return
        self._reported = min(MOST_TOKENS_PER_S, max(LEAST_TOKENS_PER_S, tokens_per_s))
        if not self._tokens:
            self.tokens_per_s, self.token_s = self._reported, 1 / self._reported
            self.learned_at = now

    def trust(self, now: float, slower: float = 1.0) -> float:
        """From 1, just measured, towards 0: how much it still counts; against peers that take a
        part of the time, 1 in `slower`.
        """
        age = (now - self.learned_at) / (_HALF_TRUST_S * max(1.0, slower))
        return 1 / (1 + age**4)

    def learn(self, num_tokens: int, depth: float, seconds: float, now: float) -> None:
        """That many prompt tokens took so long, until now. `depth`: the tokens before each, summed.

        Least squares over what is remembered; an error counts by the prompt's own length.
        """
        if num_tokens <= 0 or seconds <= 0:
            return
        # Who works little would else remember for hours that it was slow once.
        kept = (1 - seconds / _MEMORY_S) * self.trust(now) if seconds < _MEMORY_S else 0.0
        self.learned_at = now
        mean_depth = depth / num_tokens
        self._tokens = kept * self._tokens + num_tokens
        self._depth = kept * self._depth + depth
        self._spread = kept * self._spread + depth * mean_depth
        self._seconds = kept * self._seconds + seconds
        self._deep_s = kept * self._deep_s + seconds * mean_depth
        prior_tokens = _PRIOR_S * self._reported
        tokens = self._tokens + prior_tokens
        seconds = self._seconds + _PRIOR_S
        spread = self._spread + prior_tokens * _PRIOR_DEPTH**2
        slope = tokens * self._deep_s - self._depth * seconds
        context_s = slope / (tokens * spread - self._depth**2) if slope > 0 else 0.0
        most_s = (1 - _LEAST_SHARE) * seconds
        if context_s * self._depth > most_s:
            context_s = most_s / self._depth
        self.context_s = context_s
        self.token_s = (seconds - context_s * self._depth) / tokens
        self.tokens_per_s = tokens / seconds

    def seconds(self, num_cached: int, num_tokens: int) -> float:
        """For that many tokens behind those cached."""
        return num_tokens * (self.token_s + self.context_s * (num_cached + num_tokens / 2))
