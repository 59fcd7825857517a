"""Trust in a worker: whether its engine answers requests.

Owns the judgement from the results of requests and of health probes. An engine may answer its
health check while every generation fails (vllm#39863), so only tokens prove that it works. Must not
know how a probe is run, nor what follows for requests.

    trusted  --`DIFFERENT` requests failed since the last success--> unproven
    trusted  --nothing but refusals for load during `BUSY_S`, while nothing runs--> unproven
    unproven --a probe passed, or a request that had begun got its tokens--> trusted
    unproven --`PROBES` probes in a row failed--> faulty
    unproven --still refused for load, with nothing running, after `BUSY_FAULT_S`--> faulty
    faulty   --a probe passed--> trusted

A worker that came back by a probe, and lost the trust again before a request got its tokens, has
relapsed: its probes prove little. A passed probe restores it only `HOLD_S` after the relapse, after
the next one twice as long, up to `MOST_HOLD_S`. A request that gets its tokens ends this doubling.

A worker that is not trusted gets no requests. A faulty one is told to start another engine. One
request that fails again and again counts once: the request may be at fault (`quarantine.py`).
"""

from typing import Final, Literal

from gateway.routing.effects import ProbeResult
from gateway.routing.quarantine import RequestIdentity

DIFFERENT: Final = 3
BUSY_S: Final = 3.0
BUSY_GAP_S: Final = 5.0
"""Refusals that are further apart than this are not one row of refusals."""
BUSY_FAULT_S: Final = 120.0
"""An engine that loads a model, or wakes, refuses for load: it gets as long as a silent start."""
PROBES: Final = 2
PAUSE_S: Final = 0.5
LONG_PAUSE_S: Final = 5.0
"""The pause between probes of a faulty worker, whose engine should be replaced."""

HOLD_S: Final = 1.0
MOST_HOLD_S: Final = 64.0
RELAPSED: Final = "; its health probes pass, and requests fail"

TrustState = Literal["trusted", "unproven", "faulty"]


class Trust:
    """The trust in one engine. Times are on the caller's clock. `is_suspect` is False while nothing
    counts against it, so that a success need not be reported; a passed probe leaves it True.
    `why` is the last failure, in one of a few fixed phrases; `probed_at` is when the last probe was
    sent.
    """

    __slots__ = (
        "_busy_at",
        "_busy_since",
        "_failed",
        "_held_until",
        "_hold_s",
        "_is_by_probe",
        "_is_probing",
        "_not_before",
        "_num_bad_probes",
        "_serial",
        "is_suspect",
        "probed_at",
        "state",
        "why",
    )

    def __init__(self) -> None:
        self.state: TrustState = "trusted"
        self.why = ""
        self.is_suspect = False
        self.probed_at = float("-inf")
        self._failed: set[RequestIdentity] = set()
        self._busy_since: float | None = None
        self._busy_at = float("-inf")
        self._serial = 0
        self._is_probing = False
        self._num_bad_probes = 0
        self._not_before = float("-inf")
        self._held_until: float | None = None
        self._is_by_probe = False
        self._hold_s = 0.0

    @property
    def full_why(self) -> str:
        """`why`, and that its probes pass, if so."""
        return self.why + RELAPSED if self._hold_s else self.why

    def failed(self, request: RequestIdentity, why: str) -> bool:
        """The engine failed on a request. True if that ends the trust."""
        self.why = why
        self.is_suspect = True
        if self.state != "trusted":
            return False
        self._failed.add(request)
        return len(self._failed) >= DIFFERENT and self._doubt()

    def refused(self, now: float, *, is_idle: bool) -> bool:
        """The engine refused a request for load. `is_idle`: nothing runs there, as far as is known.
        True if that ends the trust.
        """
        if not is_idle:
            self._busy_since = None
            return False
        if self._busy_since is None or now - self._busy_at > BUSY_GAP_S:
            self._busy_since = now
        self._busy_at = now
        self.is_suspect = True
        if self.state != "trusted" or now - self._busy_since < BUSY_S:
            return False
        self.why = "it is idle and refuses for load"
        return self._doubt()

    def succeeded(self) -> bool:
        """A request got its tokens. True if that restores the trust."""
        self.is_suspect = False
        self._is_by_probe = False
        self._hold_s = 0.0
        return self._restored()

    def _restored(self) -> bool:
        self._failed.clear()
        self._busy_since = None
        if self.state == "trusted":
            return False
        self.state = "trusted"
        self._is_probing = False
        self._num_bad_probes = 0
        return True

    def next_probe(self, now: float) -> int | None:
        """The serial number of the probe to run now, if one is due."""
        if self.state == "trusted" or self._is_probing or now < self._not_before:
            return None
        if self._held_until is None:
            self._held_until = now + self._hold_s
        self._serial += 1
        self._is_probing = True
        self.probed_at = now
        return self._serial

    def probe_ended(
        self, serial: int, result: ProbeResult, now: float, *, is_moving: bool, is_idle: bool
    ) -> bool:
        """The result of the probe with that number; results of old probes are ignored. `is_moving`:
        the engine has worked for other requests meanwhile, so that a late probe means nothing. True
        if the state has changed.
        """
        if not self._is_probing or serial != self._serial:
            return False
        self._is_probing = False
        has_changed = self._judge(result, now, is_moving=is_moving, is_idle=is_idle)
        if self.state == "unproven" and result == "passed":
            self._not_before = min(now + LONG_PAUSE_S, self._held_until or now)
        else:
            self._not_before = now + (LONG_PAUSE_S if self.state == "faulty" else PAUSE_S)
        return has_changed

    def _judge(self, result: ProbeResult, now: float, *, is_moving: bool, is_idle: bool) -> bool:
        match result:
            case "passed" if self._held_until is not None and now < self._held_until:
                self._num_bad_probes = 0
                return False
            case "passed":
                self._is_by_probe = True
                return self._restored()
            case "busy":
                self.refused(now, is_idle=is_idle)
                since = self._busy_since
                if since is None or now - since < BUSY_FAULT_S:
                    return False
            case "late" if is_moving:
                return False
            case "late" | "failed":
                self._num_bad_probes += 1
                if self._num_bad_probes < PROBES:
                    return False
        was_unproven, self.state = self.state == "unproven", "faulty"
        return was_unproven

    def rejoined(self) -> None:
        """The worker has registered again with the same engine: what was sent to it may be lost."""
        if self.state != "trusted":
            self._begin_probing()
            self._is_probing = False

    def _doubt(self) -> bool:
        if self._is_by_probe:
            self._hold_s = min(2 * self._hold_s or HOLD_S, MOST_HOLD_S)
        self._held_until = None
        return self._begin_probing()

    def _begin_probing(self) -> bool:
        self.state = "unproven"
        self._failed.clear()
        self._num_bad_probes = 0
        self._not_before = float("-inf")
        return True
