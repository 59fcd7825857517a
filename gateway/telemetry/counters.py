"""What the gateway has counted since its start.

Owns plain integers that the gateway's parts raise and `gateway/http/metrics.py` reads. Must not
know any metrics library: a counter must cost one addition on the token path.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from gateway.api import Usage

COUNTED: Final[Mapping[str, str]] = {
    "frames_received": "Frames from workers.",
    "frames_garbage": "Frames from workers that could not be read.",
    "frames_from_strangers": "Frames from workers that had not registered.",
    "items_stale": "Parts of answers that came for requests that are over, or had moved on.",
    "items_foreign": "Parts of answers that came from another worker than the request's.",
    "offset_gaps": "Answers with tokens missing between two frames; their requests move on.",
    "links_full": "Times that a worker did not take its frames and was let go.",
    "peers_unroutable": "Times that a registered worker could not be reached.",
    "unroutable_frames": "Frames to workers that could not be reached.",
    "workers_accepted": "Registrations of workers.",
    "workers_refused": "Workers or strangers that were not let in.",
    "workers_lost": "Workers whose link was lost, or that left.",
    "engine_faults": "Deaths of engines.",
    "turns_started": "Requests that began.",
    "turns_finished": "Requests that ended well.",
    "turns_failed": "Requests that ended with an error.",
    "turns_cancelled": "Requests whose client left, or that were cancelled.",
    "sequences_resumed": "Sequences that went on at another place.",
    "busy_requeued": "Sequences that a worker had no room for, and that waited again.",
    "prompt_tokens": "Tokens of prompts that workers answered.",
    "cached_tokens": "Of them, tokens that were cached.",
    "completion_tokens": "Tokens of workers' answers.",
    "cloud_answers": "Answers of providers.",
    "cloud_failures": "Requests that a provider failed before its first content.",
    "cloud_cut": "Answers that a provider broke off.",
    "spans_sent": "Spans that the collector took.",
    "spans_lost": "Spans that the collector did not take.",
    "processes_replaced": "Processes that ended before in the place of this one.",
}
"""What each counter counts, in words."""


@dataclass(slots=True)
class GatewayCounters:
    """Monotonic counts; every field starts at 0 and only rises."""

    frames_received: int = 0
    frames_garbage: int = 0
    frames_from_strangers: int = 0
    items_stale: int = 0
    items_foreign: int = 0
    offset_gaps: int = 0
    links_full: int = 0
    peers_unroutable: int = 0
    workers_accepted: int = 0
    workers_refused: int = 0
    workers_lost: int = 0
    engine_faults: int = 0
    turns_started: int = 0
    turns_finished: int = 0
    turns_failed: int = 0
    turns_cancelled: int = 0
    sequences_resumed: int = 0
    busy_requeued: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cloud_answers: int = 0
    cloud_failures: int = 0
    cloud_cut: int = 0
    spans_sent: int = 0
    spans_lost: int = 0
    processes_replaced: int = 0

    def end_turn(self, error: BaseException | None) -> None:
        """Count a turn by how it ended: by no error, by an `Exception`, or by cancellation, which
        for a turn with several choices is a group of `Cancelled`.
        """
        if error is None:
            self.turns_finished += 1
        elif isinstance(error, Exception):
            self.turns_failed += 1
        else:
            self.turns_cancelled += 1

    def count(self, usage: Usage) -> None:
        """Add the tokens of an answer by a worker."""
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.completion_tokens += usage.completion_tokens

    def as_dict(self) -> dict[str, int]:
        return {field.name: getattr(self, field.name) for field in fields(self)}
