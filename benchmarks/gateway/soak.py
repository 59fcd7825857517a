"""The two long runs: many streams for a minute, and a hundred thousand requests.

Owns their sizes and their bars. Must not know how they are shown.
"""

SOAKS = {}
