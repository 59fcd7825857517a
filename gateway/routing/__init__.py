"""Where a request goes and when: fleet state, prefix index, cost, admission, health.

Owns every decision about workers. All of it is pure, except for the dispatcher (`dispatcher.py`)
and the leases that it hands out. Must not know tokens, HTTP or sockets.
"""

from gateway.routing.admission_queue import QueuePosition
from gateway.routing.breaker import BothBreakers, Breaker, in_order
from gateway.routing.dispatcher import Dispatcher
from gateway.routing.effects import Demand, Probe, ProbeResult, RouteRequest, UseProvider
from gateway.routing.encoding_queue import EncodingQueue, EncodingVisit
from gateway.routing.lease import Lease
from gateway.routing.models import ModelView, with_refusals
from gateway.routing.quarantine import PROOF_TOKENS, RequestIdentity
from gateway.routing.route_preview import RoutePreview
from gateway.routing.worker_view import WorkerView
