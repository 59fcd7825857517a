"""Fields of a request that are not read, although an answer would depend on them.

Owns the list of them: fields of other engines, and at each API the fields of the other APIs. A
client finds their names in a header of the answer. Must not know bodies of an API.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

_NOT_SERVED: Final = frozenset(
    {
        "allowed_token_ids", "bad_words", "chat_template", "documents", "dry_multiplier",
        "extra_body", "include_stop_str_in_output", "length_penalty", "logits_processors",
        "min_tokens", "mirostat", "n_predict", "prompt_logprobs", "repeat_penalty",
        "return_token_ids", "truncate_prompt_tokens", "typical_p", "use_beam_search",
        "xtc_probability",
    }
)  # fmt: skip
"""Fields of vLLM, llama.cpp and others on which an answer would depend, and which native engines do
not have.
"""
_OF_ANSWERS: Final = frozenset(
    {
        "messages", "prompt", "prompt_embeds", "input", "system", "instructions", "tools",
        "functions", "function_call", "mcp_servers", "container", "web_search_options",
        "max_tool_calls", "previous_response_id", "conversation", "context_management", "audio",
        "max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens",
        "stop", "stop_sequences", "stop_token_ids", "ignore_eos",
        "n", "best_of", "echo", "suffix", "logprobs", "logit_bias",
        "response_format", "text", "output_format", "output_config", "reasoning_effort",
        "presence_penalty", "frequency_penalty", "repetition_penalty", "min_p", "verbosity",
    }
)  # fmt: skip
"""Fields of all APIs on which an answer would depend. An API names those that it does not read."""
_WITHOUT_EFFECT: Final[Mapping[str, object]] = {
    "best_of": 1,
    "length_penalty": 1,
    "n": 1,
    "repeat_penalty": 1,
    "repetition_penalty": 1,
    "response_format": {"type": "text"},
    "typical_p": 1,
    "verbosity": "medium",
}
"""Values that change nothing."""


def fields_of_others(kind: type[msgspec.Struct], *read: str) -> frozenset[str]:
    """The fields on which an answer would depend at another API or engine, and which a body of
    `kind` has not; the fields in `read` are read although the type of the body does not have them.
    """
    has = {field.name for field in msgspec.structs.fields(kind)}
    return _NOT_SERVED | (_OF_ANSWERS - has - set(read))


def not_served(raw: Mapping[str, Any], unread: frozenset[str]) -> tuple[str, ...]:
    """The fields of a body that have a value, and that only other engines and providers serve: of
    those that its API does not read. Most bodies have none, which their parsers see without a call.
    """
    found = (name for name in unread & raw.keys() if raw[name])
    return tuple(
        sorted(
            one for one in found if one not in _WITHOUT_EFFECT or raw[one] != _WITHOUT_EFFECT[one]
        )
    )
