"""Which models fit together on one device, by what was measured of their workers.

Owns the sums. Must not know where measurements are kept.
"""

from collections.abc import Iterable, Iterator

from housekeeping.sizes import bytes_text
from workers.turns.record import TurnRecord


def overfull(records: Iterable[TurnRecord]) -> Iterator[str]:
    """A line for each device that cannot hold its always resident workers together, else for each
    worker of it that finds no room beside them, and so never wakes.
    """
    for device, found in _by_device(records).items():
        always = [one for one in found if one.residency == "always"]
        total = max((one.total_bytes or 0 for one in found), default=0)
        need = sum(one.awake_bytes or 0 for one in always)
        names = ", ".join(f"{one.worker} {bytes_text(one.awake_bytes or 0)}" for one in always)
        if len(always) > 1 and total and need > total:
            yield (
                f"{device} has {bytes_text(total)}, and its always resident workers were "
                f"measured to take {bytes_text(need)} ({names}): set residency = "
                '"on-demand" for the models of all but those that leave room for each other model'
            )
            continue
        whole = need + sum(one.asleep_bytes for one in found if one.residency != "always")
        for one in found:
            is_asked = one.residency != "always" and one.awake_bytes is not None
            if is_asked and total and whole - one.asleep_bytes + (one.awake_bytes or 0) > total:
                beside = f" beside its always resident workers ({names})" if always else ""
                yield (
                    f"{device} has {bytes_text(total)}, and {one.worker} was measured to take "
                    f"{bytes_text(one.awake_bytes or 0)}: it never wakes{beside}; set "
                    'residency = "on-demand" for more models, or kv_tokens of native engines'
                )


def together(records: Iterable[TurnRecord]) -> Iterator[str]:
    """A line for each device with several measured workers: which of them are resident together."""
    for device, found in _by_device(records).items():
        measured = [one for one in found if one.awake_bytes is not None and one.total_bytes]
        if len(measured) < 2:
            continue
        total = max(one.total_bytes or 0 for one in measured)
        asleep = {one.worker: one.asleep_bytes for one in measured}
        whole = sum(asleep.values())
        fitting = [
            group
            for group in _groups([one for one in measured if one.residency != "always"])
            if _need(group, measured, whole) <= total
        ]
        largest = [
            one for one in fitting if not any(_names(one) < _names(more) for more in fitting)
        ]
        always = [one.worker for one in measured if one.residency == "always"]
        sets = [" + ".join([*always, *(each.worker for each in one)]) for one in largest]
        yield f"{device} ({bytes_text(total)}) holds together: {'; or '.join(sets) or 'none'}"


def _names(group: tuple[TurnRecord, ...]) -> set[str]:
    return {one.worker for one in group}


def _need(group: tuple[TurnRecord, ...], measured: list[TurnRecord], whole: int) -> int:
    awake = [*group, *(one for one in measured if one.residency == "always")]
    return whole + sum((one.awake_bytes or 0) - one.asleep_bytes for one in awake)


def _groups(records: list[TurnRecord]) -> list[tuple[TurnRecord, ...]]:
    groups: list[tuple[TurnRecord, ...]] = [()]
    for one in records[:12]:  # 4,096 sets; a device with more models is not planned by hand
        groups += [(*group, one) for group in groups]
    return [group for group in groups if group]


def _by_device(records: Iterable[TurnRecord]) -> dict[str, list[TurnRecord]]:
    found: dict[str, list[TurnRecord]] = {}
    for one in records:
        found.setdefault(one.device, []).append(one)
    return found
