"""Other people's OpenAI-compatible APIs; the only importer of httpx."""

from gateway.upstream.provider import Answer, Provider, ProviderCut, ProviderFailed

__all__ = ["Answer", "Provider", "ProviderCut", "ProviderFailed"]
