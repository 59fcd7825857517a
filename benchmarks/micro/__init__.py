"""CPU cost of single parts: `python -m benchmarks.micro`.

One module per part yields its figures; `__main__` has the table of parts and prints. `herma bench
gateway` and `herma bench engine` measure whole processes.
"""
