"""Checks what the ranks of one model share: the way between their cards.

Owns the reading of nvidia-smi's matrices. With two cards each layer adds two vectors over that way,
and waits for it. Must not know how an engine makes a sum; it checks the sums themselves at its
start.
"""

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Final

from config import Config, WorkerConfig
from herma.doctor.finding import Finding
from herma.doctor.host import Host
from workers.supervisor.nvidia_smi import selected_gpus

CHECK: Final = "ranks"

P2P: Final = ("nvidia-smi", "topo", "-p2p", "r")
LINKS: Final = ("nvidia-smi", "topo", "-m")
_PLACE: Final = (
    "index",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "pcie.link.gen.max",
    "pcie.link.gen.gpumax",
)
PCIE: Final = ("nvidia-smi", f"--query-gpu={','.join(_PLACE)}", "--format=csv,noheader,nounits")
"""The command that prints the PCIe lanes and generations of the cards. It does not ask for the
current generation, which an idle card lowers to save power.
"""

_REFUSALS: Final = {
    "CNS": "the chipset does not support it",
    "GNS": "the card does not support it",
    "TNS": "their places on the bus do not allow it",
    "NS": "the driver does not support it",
    "U": "the driver does not know why",
}

_SWITCHES: Final = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")

Matrix = dict[tuple[str, str], str]
"""A cell by the indices of two cards."""


def check_ranks(host: Host, config: Config) -> Iterator[Finding]:
    """Check the cards of each worker that has several."""
    for worker in config.workers:
        if worker.tensor_parallel > 1 and worker.group is None:
            yield from _check_worker(host, worker)


def _check_worker(host: Host, worker: WorkerConfig) -> Iterator[Finding]:
    lines = {row[0]: row[1:] for row in host.table(*PCIE) if row}
    cards = _cards_of(worker, host)
    if not lines or cards is None:
        return
    missing = [card for card in cards if card not in lines]
    if missing:
        yield Finding(
            "error",
            CHECK,
            f"worker `{worker.name}` needs {len(cards)} cards, and nvidia-smi lists no card "
            + " and no card ".join(missing),
            "its engine does not start",
            "correct `devices` or `tensor_parallel`, or make the card visible here: nvidia-smi -L",
        )
        return
    for name in _SWITCHES:
        if host.environ.get(name, "0") not in ("", "0"):
            yield Finding(
                "warning",
                CHECK,
                f"{name} is set: cards exchange nothing directly, or not through shared memory",
                "each sum of two cards takes a longer way, and a token has two sums a layer",
                f"unset {name} unless a test with it is faster: `herma bench` shows both",
            )
    links, readable = _matrix(host, LINKS), _matrix(host, P2P)
    for pair in combinations(cards, 2):
        yield from _check_pair(worker, pair, links.get(pair, ""), readable.get(pair, ""))
    if not all(links.get(pair, "").startswith("NV") for pair in combinations(cards, 2)):
        for card in cards:
            yield from _check_bus(card, lines[card])


def _cards_of(worker: WorkerConfig, host: Host) -> list[str] | None:
    """The indices of the cards for nvidia-smi; None if they are not known by index, or the ranks
    run on the CPU.
    """
    devices = worker.rank_devices
    if any(not device.startswith("cuda") for device in devices):
        return None
    cards = [selected_gpus(device, host.environ) for device in devices]
    found = [card for card in cards if card is not None and card.isdigit()]
    return found if len(found) == len(cards) else None


def _check_pair(
    worker: WorkerConfig, pair: tuple[str, str], link: str, status: str
) -> Iterator[Finding]:
    first, second = pair
    if status in _REFUSALS:
        yield Finding(
            "warning",
            CHECK,
            f"cards {first} and {second} of worker `{worker.name}` cannot read each other's "
            f"memory: {_REFUSALS[status]} ({status})",
            "each sum goes through the host's memory, and a token has two sums a layer",
            "take cards behind one PCIe switch or with NVLink (`devices`); in a virtual machine "
            "let the host pass peer access on",
        )
    if link == "SYS":
        yield Finding(
            "warning",
            CHECK,
            f"cards {first} and {second} of worker `{worker.name}` belong to different sockets",
            "each sum crosses the link between the CPUs",
            "name cards of one socket in `devices`: nvidia-smi topo -m shows them",
        )


def _check_bus(card: str, cells: list[str]) -> Iterator[Finding]:
    numbers = [int(cell) if cell.isdigit() else 0 for cell in cells]
    width, most_width, generation, most_generation = [*numbers, 0, 0, 0, 0][:4]
    if 0 < width < most_width:
        yield Finding(
            "warning",
            CHECK,
            f"card {card} has {width} of its {most_width} PCIe lanes",
            "sums with other cards and loads from the host are slower by that ratio",
            "put it into a slot with all lanes, or set the slot's lanes in the firmware",
        )
    if 0 < generation < most_generation:
        yield Finding(
            "note",
            CHECK,
            f"card {card} runs PCIe generation {generation} and could run {most_generation}",
            "each generation doubles what a lane carries",
            "look at the slot's generation in the firmware, and at a riser that limits it",
        )


def _matrix(host: Host, query: tuple[str, ...]) -> Matrix:
    """The cells between cards of a matrix of nvidia-smi; empty if it does not answer."""
    output = host.ask(*query)
    found: Matrix = {}
    if output is None or output.status != 0:
        return found
    columns: list[str] = []
    for line in output.text.splitlines():
        # Titles of newer versions are underlined by an escape sequence.
        words = re.sub(r"\x1b\[[0-9;]*m", "", line).split()
        if not columns:
            columns = [word.removeprefix("GPU") for word in words if re.fullmatch(r"GPU\d+", word)]
        elif words and re.fullmatch(r"GPU\d+", words[0]):
            row = words[0].removeprefix("GPU")
            found.update(
                {(row, column): cell for column, cell in zip(columns, words[1:], strict=False)}
            )
    return found
