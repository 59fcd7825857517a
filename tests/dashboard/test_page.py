"""The operators' page in a real browser, over a fleet of sixteen workers that lives."""

import functools
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from config import KeyConfig, hash_api_key
from gateway.dashboard import page
from gateway.http.routes import edge_app
from gateway.http.server import serve
from gateway.routing.worker import Worker
from gateway.telemetry import FallbackOn, WorkerLost
from protocol.ids import WorkerId
from protocol.messages import Fault, Progress
from tests.fakes.browser import Browser, Page, needs_browser, open_browser
from tests.fakes.fleet import facts, hello
from tests.fakes.ports import free_ports
from tests.fakes.shown_fleet import ShownFleet, shown

MOST_BYTES = 80_000
KEYS = (KeyConfig(name="boss", hash=hash_api_key("herma-sk-boss"), admin=True),)
AXE = Path(os.environ.get("AXE_JS", ""))

FILLED = "document.querySelectorAll('#workers tr').length === 16"
TEXT_OF = "document.getElementById('{}').innerText"


@asynccontextmanager
async def opened(
    fleet: ShownFleet, events_per_s: int = 0, **view: object
) -> AsyncIterator[tuple[Page, Browser, str]]:
    """The page with the fleet on it."""
    async with shown(fleet, events_per_s=events_per_s) as url, open_browser() as browser:
        tab = await browser.open(f"{url}/", **view)  # type: ignore[arg-type]
        await tab.until(FILLED)
        yield tab, browser, url


def test_the_page_is_small_and_asks_nobody_else() -> None:
    """One document, and a policy that lets the browser load nothing from elsewhere."""
    body, policy = page()
    assert len(body) < MOST_BYTES
    assert b"/* style */" not in body
    assert b"/* script */" not in body
    links = set(re.findall(rb"(?:src|href|url)\s*[=(]\s*[\"']?(https?:)?//[^\"')\s]+", body))
    assert not links
    assert policy.startswith("default-src 'none'; connect-src 'self'")
    assert "unsafe" not in policy


@needs_browser
async def test_the_fleet_is_shown_and_moves_on() -> None:
    """States, bars, the queue and money; two hundred events a second leave the log bounded."""
    fleet = ShownFleet().past(600)
    async with opened(fleet, events_per_s=200) as (tab, _, url):
        workers = await tab.run(TEXT_OF.format("workers"))
        assert "out of memory" in workers
        assert "loading weights 62" in workers
        assert "14 of 16 ready" in await tab.run(TEXT_OF.format("workers-note"))
        assert "€4.24 of €5.00" in await tab.run(TEXT_OF.format("limits"))
        assert "tokens/s" in await tab.run(TEXT_OF.format("figures"))
        assert "qwen3-coder-30b saved" in await tab.run(TEXT_OF.format("savings"))
        line = "document.querySelector('#throughput path.a').getAttribute('d')"
        assert len(await tab.run(line)) > 50
        before = await tab.run(TEXT_OF.format("requests"))
        await tab.until(f"{TEXT_OF.format('requests')} !== {before!r}")
        await tab.until("document.querySelectorAll('#log li').length === 200")
        number = fleet.feed.recent[-1].number
        await tab.until(f"document.getElementById('log').last > {number}")
        assert await tab.run("document.querySelectorAll('#log li').length") == 200
        assert tab.problems == []
        assert all(asked.startswith((url, "data:")) for asked in tab.urls)


@needs_browser
@pytest.mark.slow
async def test_what_happens_is_said_at_the_top() -> None:
    """A worker that dies, one that comes, and providers that take over; each within a second."""
    fleet = ShownFleet().past(60)
    async with opened(fleet) as (tab, _, _):
        fault = Fault("box-0", 1, "exit code 1", 1, is_final=True, kind="crash")
        fleet.workers[0].fail(fault, 2.0)
        fleet.feed.publish(WorkerLost("box-0", "its engine died"))
        await tab.until(f"{TEXT_OF.format('log')}.includes('box-0 is gone')")
        await tab.until("document.querySelector('#workers tr').innerText.includes('down')")
        fleet.away.add("qwen3-8b")
        fleet.feed.publish(FallbackOn("qwen3-8b", ("deepseek",), "no worker is ready"))
        await tab.until("document.getElementById('condition').className === 'condition cloud'")
        assert "Providers answer for qwen3-8b" in await tab.run(TEXT_OF.format("condition"))
        await tab.until(f"{TEXT_OF.format('models')}.includes('cloud since')")
        fleet.away.clear()
        starting = Worker(fleet.workers[1].worker_id, hello("box-1", models=("qwen3-8b",)), 3.0)
        starting.progress = Progress(2, "capturing graphs", 0.5)
        fleet.workers[1] = starting
        await tab.until(f"{TEXT_OF.format('workers')}.includes('capturing graphs 50')")
        assert tab.problems == []


@needs_browser
@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
async def test_it_fits_a_phone_and_follows_the_system_s_theme(scheme: str) -> None:
    """The page fits a phone without scrolling sideways and follows the system's theme; the button
    overrules the system, and is remembered.
    """
    fleet = ShownFleet().past(60)
    width = "document.documentElement.scrollWidth <= 360 && innerWidth === 360"
    light = "getComputedStyle(document.body).backgroundColor === 'rgb(246, 245, 242)'"
    async with opened(fleet, width=360, height=740, is_phone=True, scheme=scheme) as (tab, _, url):
        assert await tab.run(width)
        assert await tab.run(light) == (scheme == "light")
        trace = next(iter(fleet.traces.recent()))
        await tab.run(f"location.hash = '#/requests/{trace.id}'")
        await tab.until("document.getElementById('request-view').innerText.includes('Where its')")
        assert await tab.run(width)
        other = {"light": "dark", "dark": "light"}[scheme]
        theme = "document.documentElement.dataset.theme"
        await tab.until(f"document.getElementById('theme').click(), {theme} === '{other}'")
        assert await tab.run(light) == (other == "light")
        await tab.go(f"{url}/")
        await tab.until(FILLED)
        assert await tab.run(theme) == other


@needs_browser
async def test_an_empty_graph_has_an_axis_that_counts() -> None:
    """An empty graph has an axis with different marks: its three marks were 0, 1 and 1 ms."""
    marks = "[...document.querySelectorAll('#first text')].map(one => one.textContent)"
    async with opened(ShownFleet()) as (tab, _, _):
        await tab.until(f"{marks}.length >= 3")
        shown = [one for one in await tab.run(marks) if one.endswith("ms")]
        assert len(shown) == 3
        assert len(set(shown)) == 3


@needs_browser
@pytest.mark.parametrize("width", [800, 941, pytest.param(1241, marks=pytest.mark.slow)])
async def test_no_column_runs_into_the_next_one(width: int) -> None:
    """Heads and figures of the tables have room at the widths between a phone and a desk."""
    fleet = ShownFleet().past(60)
    tight = (
        "[...document.querySelectorAll('.workers th, .workers td.n, .requests th, .requests td.n')]"
        ".filter(cell => getComputedStyle(cell.parentNode.parentNode).position !== 'absolute')"
        ".filter(cell => cell.innerText && cell.scrollWidth > cell.clientWidth)"
        ".map(cell => cell.innerText)"
    )
    async with opened(fleet, width=width) as (tab, _, _):
        await tab.until("document.querySelectorAll('#recent tr').length > 3")
        assert await tab.run(tight) == []


@needs_browser
@pytest.mark.parametrize("width", [360, 1000])
async def test_a_long_name_ends_in_its_cell(width: int) -> None:
    """It is cut with an ellipsis; the whole name shows itself under the pointer."""
    fleet, name = ShownFleet(), "box-" + "x" * 90
    fleet.workers[3] = Worker(WorkerId(bytes([4]) * 16), hello(name, facts()), 0.0)
    cell = f"[...document.querySelectorAll('.who')].find(one => one.title.startsWith('{name} '))"
    right = f"{cell}.firstChild.getBoundingClientRect().right"
    async with opened(fleet, width=width) as (tab, _, _):
        assert await tab.run(f"{right} <= {cell}.parentNode.getBoundingClientRect().right")
        assert await tab.run(f"getComputedStyle({cell}.firstChild).textOverflow") == "ellipsis"


@needs_browser
async def test_a_request_explains_itself_and_keys_lead_there_and_back() -> None:
    """Keys lead from the list to a request and back, by Tab and Enter, and by Escape; a request
    explains itself.
    """
    fleet = ShownFleet().past(60)
    async with opened(fleet) as (tab, _, _):
        link = (
            "[...document.querySelectorAll('#recent tr')]"
            ".find(one => one.innerText.includes('box-')).querySelector('a')"
        )
        name = await tab.run(f"{link}.focus(), {link}.hash")
        await tab.press("Enter", 13)
        await tab.tell("Input.dispatchKeyEvent", type="char", text="\r")
        await tab.until(f"location.hash === {name!r}")
        await tab.until("!!document.querySelector('.candidates')")
        shown_text = await tab.run(TEXT_OF.format("request-view"))
        for part in ("Where its time went", "waited for a place", "✓", "Cost", "least delay"):
            assert part in shown_text
        assert await tab.run("document.activeElement.id") == "request-title"
        await tab.press("Escape", 27)
        await tab.until("location.hash === '#/' && !document.getElementById('fleet-view').hidden")
        await tab.press("/")
        await tab.until("document.activeElement.id === 'filter'")
        await tab.tell("Input.insertText", text="deepseek")
        fits = "one.innerText.includes('deepseek') || one.className === 'empty'"
        rows = "[...document.querySelectorAll('#recent tr')]"
        await tab.until(f"{rows}.every(one => {fits})")
        await tab.run("location.hash = '#/requests/gone'")
        await tab.until(f"{TEXT_OF.format('request-view')}.includes('No such request')")
        assert [one for one in tab.problems if "404" not in one] == []


@needs_browser
async def test_an_open_request_is_renewed_and_keeps_the_focus() -> None:
    """An open request is renewed and keeps the focus, on its heading at first, then on the link
    back: a keyboard does not lose its place.
    """
    fleet = ShownFleet().past(60)
    live = next(one for one in fleet.live if one.attempt is not None)
    fleet.live.remove(live)  # so that it never ends
    trace = live.trace
    async with opened(fleet) as (tab, _, _):
        await tab.run(f"location.hash = '#/requests/{trace.id}'")
        await tab.until("document.activeElement.id === 'request-title'")
        for focused in ("#request-title", ".back"):
            await tab.run(f"document.querySelector('{focused}').focus()")
            before = await tab.run(TEXT_OF.format("request-view"))
            await tab.until(f"{TEXT_OF.format('request-view')} !== {before!r}")
            assert await tab.run(f"document.activeElement.matches('{focused}')")
        assert tab.problems == []


@needs_browser
@pytest.mark.slow
async def test_elsewhere_it_asks_for_a_key() -> None:
    """A wrong one is refused with the reason; an admin's opens the page for this tab."""
    async with shown(ShownFleet().past(60), keys=KEYS) as url, open_browser() as browser:
        # Browsers take it for this machine; the gateway takes only `localhost` and addresses.
        tab = await browser.open(url.replace("127.0.0.1", "herma.localhost") + "/")
        await tab.until("!document.getElementById('key-form').hidden")
        enter = (
            "document.getElementById('key').value = {!r}, "
            "document.getElementById('key-form').requestSubmit()"
        )
        await tab.run(enter.format("herma-sk-nobody"))
        await tab.until("document.getElementById('key-error').innerText.includes('not known')")
        await tab.run(enter.format("herma-sk-boss"))
        await tab.until(FILLED)
        assert await tab.run("document.getElementById('key-form').hidden")


@needs_browser
@pytest.mark.slow
async def test_a_gateway_that_restarts_is_found_again() -> None:
    """The page says that there is no connection, and goes on with the new one."""
    app, port = edge_app(ShownFleet().past(60).edge()), free_ports(1)
    start = functools.partial(serve, app, host="127.0.0.1", port=port)
    async with open_browser() as browser:
        async with trio.open_nursery() as nursery:
            url = await nursery.start(start)
            tab = await browser.open(f"{url}/")
            await tab.until("document.getElementById('live').className === 'live on'")
            nursery.cancel_scope.cancel()
        await tab.until("document.getElementById('live').className === 'live off'")
        async with trio.open_nursery() as nursery:
            await nursery.start(start)
            await tab.until("document.getElementById('live').className === 'live on'")
            nursery.cancel_scope.cancel()


@needs_browser
@pytest.mark.slow
@pytest.mark.skipif(not AXE.is_file(), reason="AXE_JS names no axe.min.js of axe-core")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
async def test_axe_finds_nothing_serious(scheme: str, width: int) -> None:
    """axe finds nothing serious on the page of the fleet and on that of a request."""
    fleet = ShownFleet().past(60)
    fleet.publish(40)
    check = (
        "axe.run().then(found => found.violations"
        ".filter(one => ['serious', 'critical'].includes(one.impact))"
        ".map(one => one.id + one.nodes.map(node => node.html + node.failureSummary)))"
    )
    async with opened(fleet, width=width, scheme=scheme, is_phone=width < 500) as (tab, _, _):
        await tab.run(await trio.Path(AXE).read_text(encoding="utf-8"))
        assert await tab.run(check) == []
        trace = next(one for one in fleet.traces.recent() if not one.turn.attempts[-1].is_cloud)
        await tab.run(f"location.hash = '#/requests/{trace.id}'")
        await tab.until("!!document.querySelector('.candidates')")
        assert await tab.run(check) == []
