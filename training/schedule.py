"""The learning rate over a run.

A pure function of the elapsed share of the run, so time-bounded runs anneal to the end too.
"""


def learning_rate_factor(done: float, warm_up: float, decay: float) -> float:
    """In [0, 1]: rises over the first `warm_up` of the run, falls linearly over its last `decay`.

    `done`, `warm_up` and `decay` are shares of the run.
    """
    rising = done / warm_up if done < warm_up else 1.0
    falling = (1.0 - done) / decay
    return max(0.0, min(rising, falling, 1.0))
