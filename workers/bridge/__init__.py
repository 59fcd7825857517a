"""The engine process of a worker whose engine is somebody else's: vLLM, SGLang, llama.cpp.

It stands where our own engine stands, between the supervisor's channel and the model, and speaks
HTTP to the engine instead of computing.
"""

from workers.bridge.rank import serve_rank
from workers.bridge.serve import serve_external

__all__ = ["serve_external", "serve_rank"]
