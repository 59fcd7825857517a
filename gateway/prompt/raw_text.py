"""Text and token ids of a model without any chat around them.

Owns what raw completions and the tokenizer's own endpoints need: here the client writes the whole
prompt, control tokens included. Must not know messages.
"""

from array import array
from collections.abc import Sequence

from gateway.api import invalid
from gateway.prompt.model_text import ModelText
from gateway.prompt.tokenizer import encode_batch


def encode_raw(
    text: ModelText, prompt: str | Sequence[int], *, add_special_tokens: bool = True
) -> "array[int]":
    """The ids of `prompt`, as `array("I")`. Control tokens spelt in it are control tokens.

    `add_special_tokens`: with those that the tokenizer puts around a text. Raises `ApiError` 400
    for no tokens at all, and for ids that the model does not know.
    """
    if not isinstance(prompt, str):
        ids = array("I", checked_ids(text, prompt, "prompt"))
    else:
        tokenizer = text.encoder.tokenizer
        encodings = encode_batch(tokenizer, [prompt], add_special_tokens=add_special_tokens)
        ids = array("I", encodings[0].ids)
    if not ids:
        raise invalid("prompt", "'prompt' has no tokens; a model needs at least one to go on from.")
    return ids


def checked_ids(text: ModelText, ids: Sequence[int], param: str) -> Sequence[int]:
    """`ids` if the model knows all of them. Raises `ApiError` 400 that names the first other."""
    size = text.vocab_size
    if ids and max(ids) >= size:
        at, wrong = next((at, one) for at, one in enumerate(ids) if one >= size)
        raise invalid(
            f"{param}[{at}]",
            f"'{param}[{at}]' is {wrong}, but the model's vocabulary ends at {size - 1}.",
        )
    return ids


def decode_raw(text: ModelText, ids: Sequence[int]) -> str:
    """The text of `ids`, control tokens spelt out."""
    return text.encoder.tokenizer.decode(list(ids), skip_special_tokens=False)


def token_strings(text: ModelText, ids: Sequence[int]) -> list[str]:
    """Each token as its vocabulary spells it."""
    return [text.encoder.tokenizer.id_to_token(token_id) or "" for token_id in ids]
