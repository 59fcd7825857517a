"""Sampling parameters of one sequence.

Owns the parameters and their bounds. Must not know tokenizers, HTTP or torch.
"""

import math
from typing import Final

import msgspec

MAX_LOGPROBS: Final = 20
MAX_STOP_IDS: Final = 64


class SamplingParams(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Every default is neutral. `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 are
    off. Presence and frequency penalties count output tokens; the repetition penalty counts prompt
    and output. `logprobs` is None for none, else the number of alternatives (0 to 20) beside the
    chosen token.

    Raises `ValueError` for a value outside its bounds (`msgspec.ValidationError` on decode).
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        # Once per request, so the usual case is one expression. A NaN is outside all bounds.
        if not (
            1 <= self.max_tokens <= 2**31 - 1
            and 0.0 <= self.temperature <= 100.0
            and 0.0 <= self.top_p <= 1.0
            and 0 <= self.top_k <= 2**31 - 1
            and 0.0 <= self.min_p <= 1.0
            and -2.0 <= self.presence_penalty <= 2.0
            and -2.0 <= self.frequency_penalty <= 2.0
            and 0.01 <= self.repetition_penalty <= 100.0
            and self.stop_token_ids == ()
            and self.logprobs is None
        ):
            self._check_all()

    @property
    def has_penalties(self) -> bool:
        """Whether the sampler needs the earlier tokens of the sequence."""
        neutral = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return neutral != (1.0, 0.0, 0.0)

    def _check_all(self) -> None:
        _check("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _check("temperature", self.temperature, 0.0, 100.0)
        _check("top_p", self.top_p, 0.0, 1.0)
        _check("top_k", self.top_k, 0, 2**31 - 1)
        _check("min_p", self.min_p, 0.0, 1.0)
        _check("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        if len(self.stop_token_ids) > MAX_STOP_IDS:
            raise ValueError(f"stop_token_ids has more than {MAX_STOP_IDS} entries")
        for token_id in self.stop_token_ids:
            _check("stop_token_ids", token_id, 0, 2**32 - 1)
        if self.logprobs is not None:
            _check("logprobs", self.logprobs, 0, MAX_LOGPROBS)


def _check(name: str, value: float, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise ValueError(f"{name} must be between {low:g} and {high:g}, not {value!r}")
