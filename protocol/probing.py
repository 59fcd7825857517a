"""The health probe: the question by which gateways and supervisors prove that an engine answers.

Must not know who asks, or what follows from the answer.
"""

from typing import Final

from protocol.messages import Submit
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens

PROBE_TOKENS: Final = 4
PROBE_PROMPT: Final = (1, 2, 3, 4)
"""Ids that every vocabulary has; their text does not matter. They are less than a block, so no
cache keeps them.
"""


def probe_of(request_id: bytes, attempt: int, model: str) -> Submit:
    """The question to an engine that takes token ids."""
    return Submit(
        request_id=request_id,
        attempt=attempt,
        model=model,
        prompt_ids=pack_tokens(PROBE_PROMPT),
        output_ids=b"",
        sampling=SamplingParams(max_tokens=PROBE_TOKENS, temperature=0.0, ignore_eos=True),
        seed=0,
    )
