"""Who counts as silent."""

import math

from gateway.link.peers import SILENCE_S, Peer, Peers
from protocol.ids import WorkerId

ONE, OTHER = WorkerId(b"1" * 16), WorkerId(b"2" * 16)


def test_the_first_that_falls_silent_is_found_in_time() -> None:
    """Each is silent a second after its last word, and not before."""
    peers = Peers({ONE: Peer("one", 100.0), OTHER: Peer("other", 100.5)})
    assert peers.silent_at() == 100.0 + SILENCE_S
    assert peers.silent(100.999) == []
    assert peers.silent(101.0) == [(ONE, 1.0)]
    peers[ONE].heard_at = 101.0
    assert peers.silent_at() == 100.5 + SILENCE_S
    assert [worker_id for worker_id, _ in peers.silent(101.5)] == [OTHER]


def test_without_workers_none_is_silent() -> None:
    """Without peers there is nothing to wake for."""
    assert (Peers().silent_at(), Peers().silent(1e9)) == (math.inf, [])


def test_lateness_of_this_process_is_no_silence() -> None:
    """What we could not hear is excused, but nobody is heard in the future for it."""
    peers = Peers({ONE: Peer("one", 100.0), OTHER: Peer("other", 104.9)})
    peers.excuse(5.0, 105.0)
    assert [peer.heard_at for peer in peers.values()] == [105.0, 105.0]
    assert peers.silent(105.5) == []
