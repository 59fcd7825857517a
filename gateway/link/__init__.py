"""The gateway's end of its links to workers: frames in, frames out, attempts and files.

Must not know requests, prompts or HTTP.
"""

from gateway.link.attempts import (
    Attempt,
    Crashed,
    Lost,
    Outcome,
    Overdue,
    StoppedByGateway,
    Unreadable,
)
from gateway.link.model_files import ModelTexts
from gateway.link.relays import RelayClient
from gateway.link.silence import MOST_RENEWALS, SECOND_PLACE, Silence
from gateway.link.worker_link import WorkerLink
