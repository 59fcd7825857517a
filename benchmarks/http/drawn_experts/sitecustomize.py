"""Engines that `herma up` starts draw the experts of each token, as vLLM's do with
`VLLM_MOE_ROUTING_SIMULATION_STRATEGY=uniform_random`.

Python imports it at its start where this folder is on `PYTHONPATH`:

    PYTHONPATH=benchmarks/http/drawn_experts herma up --config FILE

Answers are noise then. It is for speed: routers of drawn weights let rows choose alike, and so a
server reads too few experts. Owns which processes draw. Must not know how.
"""

import sys

if "workers.engine" in sys.orig_argv:
    from benchmarks.engine.loaded_mixtures import draw_what_is_loaded

    draw_what_is_loaded()
