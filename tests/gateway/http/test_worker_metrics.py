"""What `/metrics` says of each worker, and of which process it is."""

import msgspec

from gateway.http.edge import FleetGauges
from gateway.http.metrics import Metrics
from gateway.routing.worker import Worker
from gateway.telemetry import RequestTrace
from protocol.messages import CacheUse, DraftResults, Fault, Load
from tests.fakes.fleet import W1, facts, hello


def _lines(worker: Worker) -> set[str]:
    gauges = FleetGauges(workers=(worker.view(cached_blocks=0),))
    text = Metrics(lambda: (), lambda: gauges).render().decode()
    return {line for line in text.splitlines() if line.startswith("herma_worker_")}


def test_a_worker_has_one_state_and_a_standing_fault_its_kind() -> None:
    """The kind is one word; the cause, which is any text, is no label."""
    worker = Worker(W1, hello("w1", facts()), 0.0)
    assert _lines(worker) == {'herma_worker_state{state="ready",worker="w1"} 1.0'}
    cause = "exit code 127: file not found"
    worker.fail(Fault("w1", 1, cause, 127, is_final=True, kind="file_not_found"), 1.0)
    assert _lines(worker) == {
        'herma_worker_state{state="down",worker="w1"} 1.0',
        'herma_worker_fault{kind="file_not_found",worker="w1"} 1.0',
    }


def test_every_sample_of_one_of_several_processes_says_which() -> None:
    """A scrape of the shared port meets any of them; alone, nothing changes."""
    alone, second = (Metrics(lambda: (), FleetGauges, process=p) for p in (None, "1"))
    for metrics in (alone, second):
        metrics.observe(
            RequestTrace(model="m", status=200, served_by="w", first_at=0.1, ended_at=0.2)
        )
    samples = [line for line in second.render().decode().splitlines() if not line.startswith("#")]
    assert samples
    assert all('process="1"' in line for line in samples)
    assert "process=" not in alone.render().decode()
    assert second.render() == second.render()


def test_an_engine_that_drafts_says_what_it_brings() -> None:
    """An engine that drafts has lines for accepted drafts by place; one that does not draft has
    none.
    """
    worker = Worker(W1, hello("w1", facts()), 0.0)
    worker.load = Load(1, 0, 0, 9, 9, 5, 0, 4.0, 0.0)
    gauges = FleetGauges(workers=(worker.view(cached_blocks=0),))
    assert "draft_gain{" not in Metrics(lambda: (), lambda: gauges).render().decode()
    drafting = DraftResults("suffix", 10, 25, (10, 8, 0), (9, 6, 0), 1.8, 1.5)
    worker.load = msgspec.structs.replace(worker.load, drafting=drafting)
    gauges = FleetGauges(workers=(worker.view(cached_blocks=0),))
    lines = set(Metrics(lambda: (), lambda: gauges).render().decode().splitlines())
    assert lines >= {
        'herma_engine_draft_passes{worker="w1"} 10.0',
        'herma_engine_draft_tokens{worker="w1"} 25.0',
        'herma_engine_draft_depth{worker="w1"} 1.8',
        'herma_engine_draft_gain{worker="w1"} 1.5',
        'herma_engine_drafts_verified{place="1",worker="w1"} 10.0',
        'herma_engine_drafts_accepted{place="2",worker="w1"} 6.0',
    }


def test_an_engine_with_a_host_tier_says_what_it_holds() -> None:
    """Hits by tier; one without has no such lines."""
    worker = Worker(W1, hello("w1", facts()), 0.0)
    worker.load = Load(1, 0, 0, 9, 9, 5, 0, 4.0, 0.0)
    gauges = FleetGauges(workers=(worker.view(cached_blocks=0),))
    assert "cache_host_bytes{" not in Metrics(lambda: (), lambda: gauges).render().decode()
    use = CacheUse(4096, 1024, 512, 256, 96, 32, 3, 2, 1, 128, 64, 250.0)
    worker.load = msgspec.structs.replace(worker.load, cache=use)
    gauges = FleetGauges(workers=(worker.view(cached_blocks=9, host_blocks=5),))
    lines = set(Metrics(lambda: (), lambda: gauges).render().decode().splitlines())
    assert lines >= {
        'herma_engine_cache_host_bytes{worker="w1"} 4096.0',
        'herma_engine_cache_host_held_bytes{worker="w1"} 1024.0',
        'herma_engine_cache_host_stored_bytes{worker="w1"} 512.0',
        'herma_engine_cache_host_loaded_bytes{worker="w1"} 256.0',
        'herma_engine_cache_host_evicted{worker="w1"} 3.0',
        'herma_engine_cache_host_spoilt{worker="w1"} 2.0',
        'herma_engine_cache_host_recovered{worker="w1"} 1.0',
        'herma_engine_cache_hit_tokens{tier="card",worker="w1"} 64.0',
        'herma_engine_cache_hit_tokens{tier="host",worker="w1"} 32.0',
        'herma_engine_cache_prompt_tokens{worker="w1"} 128.0',
        'herma_engine_cache_host_load_bytes_per_second{worker="w1"} 250.0',
        'herma_engine_cache_blocks{tier="card",worker="w1"} 4.0',
        'herma_engine_cache_blocks{tier="host",worker="w1"} 5.0',
    }
