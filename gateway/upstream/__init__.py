"""Other people's OpenAI-compatible APIs; the only importer of httpx.

`Provider` is imported when somebody asks for it: httpx takes a third of a start and 12 MB, which
a gateway without providers does not need.
"""

from typing import TYPE_CHECKING

from gateway.upstream.answer import Answer, ProviderCut, ProviderFailed

if TYPE_CHECKING:
    from gateway.upstream.provider import Provider

__all__ = ["Answer", "Provider", "ProviderCut", "ProviderFailed"]


def __getattr__(name: str) -> object:
    if name != "Provider":
        raise AttributeError(f"gateway.upstream has no {name!r}")
    from gateway.upstream.provider import Provider  # noqa: PLC0415 (see above)

    return Provider
