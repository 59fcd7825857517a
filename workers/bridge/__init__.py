"""The engine process of a worker whose engine is an external one: vLLM, SGLang, llama.cpp and
others.

It takes the place of our own engine behind the supervisor's channel, and speaks HTTP to the
external engine instead of computing.
"""

from workers.bridge.rank import serve_rank
from workers.bridge.serve import serve_external
