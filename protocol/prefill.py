"""How a text-level engine goes on with the text of an assistant, as a capability of a worker.

Owns the forms and their names as capabilities. Must not know engines or requests.
"""

from collections.abc import Iterable
from typing import Final, Literal, get_args

PrefillForm = Literal["continue_final_message", "prefix", "last_message"]
"""`continue_final_message`: the fields of vLLM and SGLang. `prefix`: the field of the last message
of DeepSeek and Mistral. `last_message`: a last message of the assistant suffices (llama.cpp).
"""

CONTINUES: Final = "continues"

FORMS: Final[tuple[PrefillForm, ...]] = get_args(PrefillForm)


def capability_of(form: PrefillForm) -> str:
    """The capability of an engine that goes on in this form."""
    return f"{CONTINUES}:{form}"


def form_in(capabilities: Iterable[str]) -> PrefillForm | None:
    """The form of an engine with these capabilities; None if it does not go on."""
    reported = frozenset(capabilities)
    return next((form for form in FORMS if capability_of(form) in reported), None)
