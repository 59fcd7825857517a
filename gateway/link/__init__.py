"""The gateway's end of its links to workers: frames in, frames out, attempts and files.

Must not know requests, prompts or HTTP.
"""

from gateway.link.attempts import (
    OVERDUE,
    Attempt,
    Crashed,
    Lost,
    Outcome,
    Overdue,
    StoppedByGateway,
)
from gateway.link.model_files import ModelTexts
from gateway.link.relays import RelayClient
from gateway.link.silence import MOST_RENEWALS, SECOND_PLACE, Silence
from gateway.link.worker_link import WorkerLink

__all__ = [
    "MOST_RENEWALS",
    "OVERDUE",
    "SECOND_PLACE",
    "Attempt",
    "Crashed",
    "Lost",
    "ModelTexts",
    "Outcome",
    "Overdue",
    "RelayClient",
    "Silence",
    "StoppedByGateway",
    "WorkerLink",
]
