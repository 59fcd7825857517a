"""The prefill rate of one worker: how long a prefill takes, learned from those that it computed.

Owns the fit, its prior, and how much an old rate still counts. Must not know reservations or
workers; times are arguments.
"""

from typing import Final

PRIOR_TOKENS_PER_S: Final = 2000.0
LEAST_TOKENS_PER_S: Final = 1.0
MOST_TOKENS_PER_S: Final = 1e9
"""Reported rates are clamped to these: a broken worker must not make a cost infinite or NaN."""

_MEMORY_S: Final = 30.0
"""The window of the fit: about this much of the latest prefill time counts, older time less."""

_PRIOR_S: Final = 0.3
_PRIOR_DEPTH: Final = 10_000
"""The prior of the fit is `_PRIOR_S` of prefill at the rate that the worker reports, with
`_PRIOR_DEPTH` tokens before each. It is needed because prompts of equal length say nothing about
`context_s`.
"""

_HALF_TRUST_S: Final = 20.0
"""At this age a measured rate counts half, at twice the age a seventeenth, against the rates of
peers and against a new measurement of the worker itself. Otherwise a worker that was slow once
would get no work while its peers have time, and could never show that it has recovered.

Trying a worker with a tenth of its peers' speed costs ten times as much, so a rate fades the more
slowly the slower it is: a worker measured at 80 % of their speed counts as equal again
(`placement_cost.TIE_RATIO`) after 40 s, at 30 % after three minutes, at 10 % after nine.
"""

_LEAST_SHARE: Final = 0.1
"""`token_s` explains at least this share of the measured time, so that noise cannot attribute all
of it to the context.
"""


class PrefillRateEstimator:
    """How long prefills take on one worker, learned from those that it computed.

    A token of a prompt costs `token_s`, plus `context_s` for each token before it: because of
    attention the end of a long prompt costs more than its beginning, and a single rate would
    estimate half of the time of a long prompt. `tokens_per_s` is the average, 0 while unknown.
    """

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
        """Take the rate that the worker reports; it is used alone until the first sample."""
        if not tokens_per_s:
            return
        self._reported = min(MOST_TOKENS_PER_S, max(LEAST_TOKENS_PER_S, tokens_per_s))
        if not self._tokens:
            self.tokens_per_s, self.token_s = self._reported, 1 / self._reported
            self.learned_at = now

    def trust(self, now: float, slower: float = 1.0) -> float:
        """The weight of the measured rate: 1 when it is new, falling towards 0 with its age. It
        falls more slowly for a worker that is `slower` than its peers by that factor.
        """
        age = (now - self.learned_at) / (_HALF_TRUST_S * max(1.0, slower))
        return 1 / (1 + age**4)

    def learn(self, num_tokens: int, depth: float, seconds: float, now: float) -> None:
        """Take a sample: `num_tokens` of prompts took `seconds`, until `now`. `depth` is the sum,
        over these tokens, of the number of tokens before each.

        Least squares over the samples so far, weighted by the prompts' lengths.
        """
        if num_tokens <= 0 or seconds <= 0:
            return
        # `trust` also depends on the age: otherwise a worker with little work would count as slow
        # for hours after one slow prefill.
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
        """The time of a prefill of `num_tokens` after `num_cached` cached tokens."""
        return num_tokens * (self.token_s + self.context_s * (num_cached + num_tokens / 2))
