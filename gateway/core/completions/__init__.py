"""The older completions API: raw prompts in, text out.

Owns its bodies, chunks and answers. Must not know HTTP, tokenizers or how a turn runs.
"""

from gateway.core.completions.request import Completions, parse_completions
from gateway.core.completions.writing import completions_dialect

__all__ = ["Completions", "completions_dialect", "parse_completions"]
