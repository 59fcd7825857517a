"""The older completions API: raw prompts in, text out.

Owns its bodies, chunks and answers. Must not know HTTP, tokenizers or how a turn runs.
"""

from gateway.api.completions.formatter import completions_dialect
from gateway.api.completions.request import Completions, parse_completions

__all__ = ["Completions", "completions_dialect", "parse_completions"]
