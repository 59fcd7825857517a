"""From messages to token ids: chat templates, tokenizers, and the caches of prompts.

Owns how a model's text files are read and used. Must not know running requests, workers or HTTP.
Pure; its callers run it in threads.
"""

from gateway.prompt.control_tokens import END_SEGMENTS
from gateway.prompt.model_text import (
    ModelText,
    check_template,
    checked_ids,
    decode_raw,
    encode_raw,
    read_model_text,
    token_strings,
)
from gateway.prompt.prompt_encoder import DigestCache, Draft
from gateway.prompt.stepwise import STEP_CHARS, StepwiseDraft, StepwiseText
from gateway.prompt.strict_turns import INSTRUCTIONS
from gateway.prompt.token_bound import TokenBound
