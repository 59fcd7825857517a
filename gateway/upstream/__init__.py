"""Other people's OpenAI-compatible APIs."""

from gateway.upstream.answer import Answer, ProviderCut, ProviderFailed
from gateway.upstream.provider import Provider

__all__ = ["Answer", "Provider", "ProviderCut", "ProviderFailed"]
