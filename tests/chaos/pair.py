"""Two hosts of one fleet, each with a gateway and a worker that dials both gateways.

Owns the two `herma up`, the links between every gateway and every worker (each through a proxy of
the harness), the address of each gateway for clients (through a proxy that a health check closes,
as a load balancer does), and the ledger that both share. Must not know clients or faults.
"""

import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import httpx
import trio

from housekeeping.processes import is_stopped
from tests.chaos.engine import Orders
from tests.chaos.fleet import ENGINE, ROOT, WORKER, until
from tests.chaos.proxy import Proxy, open_proxies
from tests.fakes.herma_process import HermaProcess, herma_up
from tests.fakes.ports import free_ports
from tests.fakes.text_models import write_text_model

HOSTS: Final = ("a", "b")
CHECK_EVERY_S: Final = 0.2
LATE_EVERY_S: Final = 0.02
CHECK_S: Final = 1.0
"""A gateway that does not answer `/health` for so long gets no connection, and those that it has
are closed."""
_GONE: Final = re.compile(r"gateway (tcp://\S+) is gone")

GATEWAY: Final = """
[gateway]
port = {http_port}
worker_bind = "tcp://127.0.0.1:{worker_port}"
insecure_local = true

[ledger]
path = "{ledger}"

[[models]]
name = "m"

[[models]]
name = "cloud"
fallback = [{{ provider = "far", model = "big" }}]

[providers.far]
base_url = "{provider_url}"
price = {{ input = 0, output = 1.0 }}
max_output_tokens = {answer_tokens}
limits = {{ daily = {limit} }}
"""
ANSWER_TOKENS: Final = 8
"""The length of each answer of the provider, and its cap, so that a request costs what is reserved
for it.
"""


PROMPT_TOKEN_S: Final = 0.0005
"""The time that each engine takes for a token of a prompt. Without it a prompt of 770 tokens takes
two steps here, 30 ms on an idle machine and ten times as long on a loaded one; one of an agent
takes a hundred steps of a card. A prefix must be worth more than some running answers, or where a
second try lands says nothing.
"""


class Pair:
    """The running processes. Hosts are numbered 0 and 1; worker `w1` is on host 0, `w2` on 1.
    `links[host, worker]` is the way between the gateway of that host and that worker.
    """

    def __init__(
        self,
        hosts: list[HermaProcess],
        fronts: list[Proxy],
        links: dict[tuple[int, str], Proxy],
        ledger: Path,
    ) -> None:
        self.hosts = hosts
        self.links = links
        self.ledger = ledger
        self._fronts = fronts
        self._late_s = 0.0

    def url(self, host: int) -> str:
        """The gateway's address for clients."""
        return f"http://127.0.0.1:{self._fronts[host].port}/v1"

    def gateway_pid(self, host: int) -> int:
        """0 while it has none."""
        return next(iter(self.hosts[host].pids("herma gateway")), 0)

    def signal_gateway(self, host: int, number: signal.Signals) -> None:
        """Hit the gateway process."""
        os.kill(self.gateway_pid(host), number)

    def given_up(self, host: int) -> list[str]:
        """The lines in which a worker has said that the gateway of that host is gone."""
        addresses = {
            f"tcp://127.0.0.1:{proxy.port}"
            for (of_host, _), proxy in self.links.items()
            if of_host == host
        }
        lines = (line for each in self.hosts for line in list(each.output))
        found = [(line, _GONE.search(line)) for line in lines]
        return [line.strip() for line, match in found if match and match[1] in addresses]

    def has_workers(self, host: int) -> bool:
        """Whether the gateway has both workers, ready."""
        try:
            samples = self.hosts[host].metrics()
        except OSError:
            return False
        return samples.get('herma_workers{model="m",state="ready"}') == len(HOSTS)

    async def wait_ready(self) -> None:
        """Return once both gateways have both workers."""
        for host in range(len(HOSTS)):
            await until(lambda host=host: self.has_workers(host), f"both workers at {HOSTS[host]}")

    def take_late_s(self) -> float:
        """The longest pause of the harness, through which all links go, since the last call."""
        late_s, self._late_s = self._late_s, 0.0
        return late_s

    async def watch_lateness(self) -> None:
        """Note how late this task is woken; runs until cancelled."""
        while True:
            due = trio.current_time() + LATE_EVERY_S
            await trio.sleep_until(due)
            self._late_s = max(self._late_s, trio.current_time() - due)

    async def check_health(self, host: int) -> None:
        """Close the gateway's address while it does not answer; runs until cancelled."""
        front = self._fronts[host]
        url = f"http://127.0.0.1:{front.target_port}/health"
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(timeout=CHECK_S, trust_env=False, limits=limits) as client:
            while True:
                try:
                    await client.get(url)
                except httpx.TransportError as error:
                    # Late is the harness itself, on a busy machine, unless it is stopped.
                    if is_stopped(self.gateway_pid(host)) or not isinstance(
                        error, httpx.TimeoutException
                    ):
                        front.cut()
                else:
                    front.heal()
                await trio.sleep(CHECK_EVERY_S)


@asynccontextmanager
async def open_pair(folder: Path, provider_url: str, most_requests: int) -> AsyncIterator[Pair]:
    """Both hosts with everything ready, for the length of the block. Their limits allow a given
    number of requests to the provider, which answers as the model `cloud`.
    """
    model = await trio.to_thread.run_sync(write_text_model, folder / "model")
    ports = free_ports(4)
    async with AsyncExitStack() as stack:
        links: dict[tuple[int, str], Proxy] = {}
        fronts: list[Proxy] = []
        for host in range(len(HOSTS)):
            (front,) = await stack.enter_async_context(open_proxies(1, ports + host))
            fronts.append(front)
            both = await stack.enter_async_context(open_proxies(len(HOSTS), ports + 2 + host))
            links |= {(host, f"w{number + 1}"): proxy for number, proxy in enumerate(both)}
        ledger = folder / "ledger.sqlite"
        hosts = []
        for host, name in enumerate(HOSTS):
            text = GATEWAY.format(
                http_port=ports + host,
                worker_port=ports + 2 + host,
                ledger=ledger,
                provider_url=provider_url,
                answer_tokens=ANSWER_TOKENS,
                limit=f"{most_requests * ANSWER_TOKENS / 1e6:.6f}",
            )
            worker = f"w{host + 1}"
            config = folder / f"{name}.toml"
            config.write_text(text + _worker(worker, model, links))
            Orders(prompt_token_s=PROMPT_TOKEN_S).write(folder, worker)
            manager = _running(config, folder, ports + host)
            hosts.append(await trio.to_thread.run_sync(manager.__enter__))
            stack.push_async_callback(_stop, manager, hosts[-1])
        pair = Pair(hosts, fronts, links, ledger)
        await pair.wait_ready()
        async with trio.open_nursery() as nursery:
            for host in range(len(HOSTS)):
                nursery.start_soon(pair.check_health, host)
            nursery.start_soon(pair.watch_lateness)
            yield pair
            nursery.cancel_scope.cancel()


def _worker(name: str, model: Path, links: dict[tuple[int, str], Proxy]) -> str:
    text = WORKER.format(name=name, model=model, port=0)
    addresses = [f"tcp://127.0.0.1:{links[host, name].port}" for host in range(len(HOSTS))]
    return text.replace('["tcp://127.0.0.1:0"]', json.dumps(addresses))


@contextmanager
def _running(config: Path, folder: Path, port: int) -> Iterator[HermaProcess]:
    run = folder / config.stem
    run.mkdir(mode=0o700)
    variables = {
        "HERMA_ENGINE_COMMAND": json.dumps([sys.executable, str(ENGINE), str(folder)]),
        "HERMA_RUNTIME_DIR": str(run),
        "PYTHONPATH": str(ROOT),
    }
    with herma_up(config, port=port, **variables) as herma:
        yield herma


async def _stop(manager: "contextmanager[HermaProcess]", herma: HermaProcess) -> None:
    """A stopped gateway hears no SIGTERM."""
    for pid in herma.pids("herma gateway"):
        os.kill(pid, signal.SIGCONT)
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(manager.__exit__, None, None, None)
