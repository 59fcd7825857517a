"""Values that are not words: order numbers, times of the day."""

from training.data.world import World


def code(world: World) -> str:
    """Something like an order number."""
    letters = "".join(world.pick("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(world.between(1, 3)))
    number = world.between(10, 99999)
    return world.pick((f"{letters}-{number}", f"{letters}{number}", f"{number}", f"#{number}"))


def clock_time(world: World) -> str:
    """A time of the day to the quarter of an hour."""
    return f"{world.between(0, 23)}:{world.pick(('00', '15', '30', '45'))}"
