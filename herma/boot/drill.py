"""The drill: run the commands of the units without a reboot, and wait for a real answer of each
model.

Owns the processes of the drill, its end of sd_notify, and what counts as an answer: content or
reasoning from a worker of the units. A 200 of a list of models, or an answer of a cloud provider,
does not count.
"""

import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import trio

from herma.boot.unit_files import BootUnit
from herma.child_processes import Child
from housekeeping.certificate_dates import END_OF_PEM
from housekeeping.errors import innermost
from protocol.errors import ConfigError, HttpError
from protocol.transport import HttpClient

_POLL_S: Final = 0.5
_DATAGRAM_BYTES: Final = 4096
_ANSWER_TOKENS: Final = 32
_REFUSED: Final = frozenset((400, 401, 403, 404))
_KEYS: Final = frozenset((401, 403))
_SHOWN_LETTERS: Final = 60


@dataclass(frozen=True, slots=True)
class Drill:
    """The drill of `units`, of which the gateway starts first. Each of `models` is asked at `url`,
    and the answer must come from one of `workers`. A process gets `stop_s` to end. `tls` is for an
    https address; by default any authority that this host trusts counts.
    """

    units: Sequence[BootUnit]
    url: str
    models: Sequence[str]
    workers: frozenset[str]
    api_key: str | None
    timeout_s: float
    stop_s: float
    tls: ssl.SSLContext | None = None


class _Failed(Exception):
    """The drill has failed; the text is the reason."""


async def run_drill(drill: Drill, say: Callable[[str], None]) -> bool:
    """Run the drill. Returns whether all models answered in time. All its processes have ended
    then.
    """
    began_at = trio.current_time()
    trouble = f"no answer in {drill.timeout_s:g} s"
    with TemporaryDirectory(prefix="herma-drill-") as folder:
        try:
            with trio.move_on_after(drill.timeout_s):
                async with trio.open_nursery(strict_exception_groups=True) as nursery:
                    for number, unit in enumerate(drill.units):
                        path = Path(folder) / str(number)
                        await nursery.start(_run_unit, unit, path, drill.stop_s, say)
                    for model in drill.models:
                        await _answered(drill, model, say)
                    trouble = ""
                    nursery.cancel_scope.cancel()
        except* _Failed as group:
            trouble = str(innermost(group))
    took_s = trio.current_time() - began_at
    say(f"the drill failed: {trouble}" if trouble else f"the drill passed in {took_s:.1f} s")
    return not trouble


async def _run_unit(
    unit: BootUnit,
    path: Path,
    stop_s: float,
    say: Callable[[str], None],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run the unit's command until cancelled. It counts as started once it sends READY=1."""
    began_at = trio.current_time()
    end = trio.socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with end:
        await end.bind(str(path))
        environ = {**unit.environ, "NOTIFY_SOCKET": str(path)}
        child = Child(
            unit.name, list(unit.argv), stop_s=stop_s, environ=environ, folder=unit.folder
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_run_child, unit, child)
            while b"READY=1" not in (await end.recv(_DATAGRAM_BYTES)).split(b"\n"):
                pass
            say(f"{unit.name} has started in {trio.current_time() - began_at:.1f} s")
            task_status.started()
            while True:
                await end.recv(_DATAGRAM_BYTES)


async def _run_child(unit: BootUnit, child: Child) -> None:
    try:
        status = await child.run()
    except OSError as error:
        raise _Failed(f"{unit.name}: {unit.argv[0]}: {error.strerror}") from error
    raise _Failed(f"{unit.name} ended with status {status}")


async def _answered(drill: Drill, model: str, say: Callable[[str], None]) -> None:
    began_at = trio.current_time()
    client = HttpClient(drill.url, tls=drill.tls)
    said = ""
    try:
        while True:
            trouble, text = await _ask(client, drill, model)
            if not trouble:
                took_s = trio.current_time() - began_at
                say(f"{model} has answered in {took_s:.1f} s: {text[:_SHOWN_LETTERS]!r}")
                return
            if trouble != said:
                said = trouble
                say(f"{model}: {trouble}")
            await trio.sleep(_POLL_S)
    finally:
        client.close()


async def _ask(client: HttpClient, drill: Drill, model: str) -> tuple[str, str]:
    """Ask one model: (what is wrong or "", the answer). Raises `_Failed` for a trouble that
    waiting does not end.
    """
    messages = [{"role": "user", "content": "Say hello."}]
    body = {"model": model, "messages": messages, "max_tokens": _ANSWER_TOKENS}
    headers = [(b"content-type", b"application/json")]
    if drill.api_key is not None:
        headers.append((b"authorization", f"Bearer {drill.api_key}".encode()))
    try:
        async with client.exchange(
            "POST", "/v1/chat/completions", headers, msgspec.json.encode(body)
        ) as response:
            data = b"".join([part async for part in response.body])
            status, names = response.status, dict(response.headers)
    except HttpError as error:
        return f"not yet: {error}", ""
    if status in _REFUSED:
        remedy = "; --key-env names the variable of an API key" if status in _KEYS else ""
        raise _Failed(f"{model}: status {status}: {data.decode(errors='replace')[:400]}{remedy}")
    if status != 200:
        return f"not yet: status {status}", ""
    worker = names.get(b"x-herma-worker", b"").decode()
    if worker not in drill.workers:
        return "not yet: something other than these workers answers", ""
    text = _text(data)
    return ("", text) if text else ("not yet: the answer is empty", "")


def _text(data: bytes) -> str:
    answer: dict[str, Any] = msgspec.json.decode(data)
    with suppress(LookupError, TypeError):
        message = answer["choices"][0]["message"]
        return str(message.get("content") or message.get("reasoning_content") or "")
    return ""


def only_this(certificate: Path) -> ssl.SSLContext:
    """A context that trusts the first certificate of a chain, for any name: on loopback the gateway
    is not addressed by its name. Raises `ConfigError`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        first = certificate.read_text(encoding="ascii").partition(END_OF_PEM)
        context.load_verify_locations(cadata="".join(first[:2]))
    except (OSError, UnicodeDecodeError, ssl.SSLError) as error:
        raise ConfigError(f"[gateway] tls_certificate_file {certificate}: {error}") from error
    return context


def local_url(host: str, port: int, *, is_tls: bool = False) -> str:
    """The URL on this host of a gateway that listens on `host`. Raises `ConfigError` for port 0."""
    if not port:
        raise ConfigError(
            "[gateway] port is 0: another one at each start; a boot needs a fixed one"
        )
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(host, host)  # noqa: S104
    return f"{'https' if is_tls else 'http'}://{name}:{port}"
