"""The page in a real browser: it sees a move arrive, asks nobody else, and shows what it is told as text."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swjoin.monitor.status_board import Board
from swjoin.monitor.web import Server
from tests.support.boards import (
    Clock,
    Run,
    a_board,
    a_plan_board,
    collector_view,
    gateways_view,
    get,
    key,
    master_view,
    plain,
)
from tests.support.limits import PROCESS_S

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FOUND, DRIVER = next(filter(None, map(shutil.which, BROWSERS)), None), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(FOUND is None or DRIVER is None, reason="needs a browser: apt-get install chromium chromium-driver"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(FOUND)
    for argument in ("--headless=new", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1280,1240"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium has none for root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


def until(condition: Any, what: str, limit_s: float = PROCESS_S) -> Any:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"never seen: {what}")


def all_of(browser: Any, selector: str) -> list[Any]:
    elements: list[Any] = browser.find_elements("css selector", selector)
    return elements


def text_of(browser: Any, selector: str) -> str:
    return str(browser.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector))


def asked(browser: Any) -> set[str]:
    """Hosts that the page has asked for anything."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return {urllib.parse.urlsplit(url).netloc for url in urls if not url.startswith("data:")}


def test_a_move_arrives_on_the_page(browser: Any, tmp_path: Path) -> None:
    workload = {"rate": 4000, "duration": "30s", "bias": 0.7, "domain": 20_000, "payload": "16B"}
    moves = {"policy": "random", "epoch": "600ms", "random_moves": 2}
    with Run(tmp_path, plain(workload=workload, reorganization=moves), "--threads", 3) as run:
        address = run.address
        browser.get_log("browser")
        browser.get_log("performance")
        browser.get(address)
        until(lambda: len(all_of(browser, ".tile")) == 24, "a tile for each partition-group")
        # Read in one step: the tile may move again at any time.
        moved = "{...tile.dataset, row: tile.closest('div.slave').dataset.slave}"
        moved = f"const tile = document.querySelector('.tile[data-moved]'); return tile && {moved}"
        tile = until(lambda: browser.execute_script(moved), "a tile that has moved")
        group, slave, came_from = (tile[name] for name in ("group", "slave", "moved"))
        assert slave != came_from
        assert tile["row"] == slave
        arrived = f"group {group}: slave {came_from} → {slave}"
        until(lambda: any(arrived in e.text for e in all_of(browser, "#events li.released")), "the event of this move")
        until(lambda: "tuples/s" in text_of(browser, "#stream-left .value"), "the rate")
        until(lambda: len(all_of(browser, "#keys-left .key")) > 3, "hot keys")
        told = json.loads(get(address, "status.json"))
        assert text_of(browser, "#phase") == told["run"]["phase"] == "running"
        assert {t.get_attribute("data-slave") for t in all_of(browser, ".tile")} == {str(s) for s in set(told["map"]["owner"])}
        assert text_of(browser, "#balanced").startswith("✓")
        assert [e["message"] for e in browser.get_log("browser")] == []
        assert asked(browser) == {urllib.parse.urlsplit(address).netloc}, "the page asks nobody else"
    until(lambda: all_of(browser, "#gone:not([hidden])"), "that the run is over")
    browser.get("about:blank")


def test_many_groups_and_foreign_text(browser: Any) -> None:
    """A map too large for tiles is drawn; what comes from the data is shown as text and never runs."""
    clock = Clock()
    board = a_board(clock)
    bad = "<img src=x onerror='document.title=1'><script>document.title=2</script>"
    stop = threading.Event()

    def write(to: Board) -> None:
        owner = np.arange(5000) % 2
        while not stop.wait(0.1):
            owner = owner.copy()
            owner[7] ^= 1
            clock.now += 0.6
            to.set_master(master_view(int(clock.now), loads=None), owner)
            to.set_collector(collector_view(clock.now, 5))
            to.take_hot_keys(
                {"left": {"rows": 9, "one_in": 2, "keys": [key(bad)]}, "right": {"rows": 0, "one_in": 1, "keys": []}}
            )

    writer = threading.Thread(target=write, args=(board,), daemon=True)
    writer.start()
    server = Server(board.snapshot, 0)
    try:
        browser.get_log("browser")
        browser.get(server.address)
        until(lambda: bad in text_of(browser, "#keys-left"), "the key as text")
        until(lambda: all_of(browser, "#grid:not([hidden])"), "the map as a picture")
        pixel = "const c = document.querySelector('#grid'); return [...c.getContext('2d').getImageData(3, 3, 1, 1).data]"
        until(lambda: browser.execute_script(pixel)[3] > 0, "a cell that is drawn")
        assert all_of(browser, ".tile") == []
        assert text_of(browser, "title") == "swjoin: running"
        assert text_of(browser, "#keys-right") == "no key stands out"
        assert [e["message"] for e in browser.get_log("browser")] == []
        inject = "const s = document.createElement('script'); s.textContent = 'window.injected = 1'; document.body.append(s);"
        assert browser.execute_script(f"{inject} return window.injected") is None, "no other script runs"
    finally:
        stop.set()
        writer.join(PROCESS_S)
        server.close()
        browser.get("about:blank")


def test_the_stages_of_a_plan(browser: Any) -> None:
    """A source may have any name, that of a card of the page among them."""
    server = Server(a_plan_board().snapshot, 0)
    try:
        browser.get_log("browser")
        browser.get(server.address)
        until(lambda: len(all_of(browser, ".tile")) == 8, "a tile for each partition-group of each stage")
        assert [text_of(browser, f".stage[data-stage='{s}'] .about b") for s in (0, 1)] == ["stage 0 first ", "stage 1 last "]
        for stage, slaves in (0, ["0", "1"]), (1, ["2", "3"]):
            assert [e.get_attribute("data-slave") for e in all_of(browser, f".stage[data-stage='{stage}'] .slave")] == slaves
        where = "return [...document.querySelectorAll('.tile')].map(e => [e.dataset.slave, e.dataset.group])"
        assert browser.execute_script(where) == [[s, g] for s, g in zip("00112233", "01230123", strict=True)]
        assert [e.text for e in all_of(browser, ".tile.moving")] == ["1"]
        heads = [e.text.lower() for e in all_of(browser, ".figure h2")]
        assert heads == ["pairs", "b", "c", "pairs", "production delay", "waiting", "moves"]
        assert "first → last, left" in text_of(browser, "#edges")
        assert text_of(browser, "#balanced").startswith("✓")
        assert "stage 1: group 1: slave 2 → 3" in text_of(browser, "#events")
        assert [e["message"] for e in browser.get_log("browser")] == []
    finally:
        server.close()
        browser.get("about:blank")


def test_several_gateways(browser: Any) -> None:
    clock = Clock()
    board = a_board(clock)
    for seconds in (0, 1):
        clock.now += seconds
        board.set_master(gateways_view(1000 + 500 * seconds), np.array([0, 0, 1, 1]))
    server = Server(board.snapshot, 0)
    try:
        browser.get_log("browser")
        browser.get(server.address)
        until(lambda: all_of(browser, "#card-gateways:not([hidden])"), "the gateways")
        cells = "return [...document.querySelectorAll('#gateways tr')].slice(1).map(r => [...r.cells].map(c => c.textContent))"
        assert browser.execute_script(cells) == [
            ["0", "50 %", "500", "2.0\u00a0KiB", "1.5 s", "1.5 s, waits for a split"],
            ["1", "50 %", "500", "2.0\u00a0KiB", "ended", "\u2013"],
        ]
        assert "at the gateways" in text_of(browser, "#figure-waiting .note")
        assert all_of(browser, "[id^=card-keys-]") == [], "keys are not sampled"
        assert [e["message"] for e in browser.get_log("browser")] == []
    finally:
        server.close()
        browser.get("about:blank")


def test_a_query_and_its_rows(browser: Any, tmp_path: Path) -> None:
    """The page of a query shows its rows as they come; another one is a link, or a name, away."""
    rows = ["key,ts,v"] + [f"{n % 7},{5 * n},<b>{n}</b>" for n in range(4000)]
    (tmp_path / "a.csv").write_text("\n".join(rows))
    a = {"path": str(tmp_path / "a.csv"), "time": "ts", "time_unit": "ms"}
    select = "SELECT key, v FROM a WHERE key = "
    queries = [{"name": f"of-{key}", "sql": f"{select}{key}"} for key in (1, 2)] + [{"name": "none", "sql": f"{select}99"}]
    config = {"inputs": {"a": a}, "queries": queries, "pace": "realtime", "sink": {"ids": False}}
    with Run(tmp_path, config, "--threads", 2) as run:
        address = run.address
        browser.get_log("browser")
        browser.get(f"{address}#query=of-2")
        until(lambda: text_of(browser, "#rows-name") == "query of-2", "the query")
        first = until(lambda: all_of(browser, "#rows tr:nth-child(2) td") and cells(browser), "rows")
        assert first[0] == ["2", first[0][1]]
        assert [row[0] for row in first] == ["2"] * len(first)
        numbers = [int(row[1].removeprefix("<b>").removesuffix("</b>")) for row in first]
        assert numbers == sorted(numbers, reverse=True), "the newest first, as text"
        until(lambda: cells(browser)[0] != first[0], "newer rows")
        assert "rows/s, digest" in text_of(browser, "#rows-note")
        until(lambda: len(all_of(browser, "#queries a")) == 2, "queries that have rows")
        browser.execute_script("[...document.querySelectorAll('#queries a')].find(a => a.textContent === 'of-1').click()")
        until(lambda: [row[0] for row in cells(browser)][:1] == ["1"], "rows of the other one")
        for name, said in ("none", "no rows yet"), ("other", ""):
            field = browser.find_element("id", "query-name")
            field.send_keys(name, "\n")
            until(lambda: text_of(browser, "#rows-name") == f"query {name}" and text_of(browser, "#rows") == said, name)  # noqa: B023
        until(lambda: text_of(browser, "#rows-about") == "This run has no such query.", "that there is none")
        assert [e["message"] for e in browser.get_log("browser")] == []
    browser.get("about:blank")


def cells(browser: Any) -> list[list[str]]:
    """Of the newest rows."""
    script = "return [...document.querySelectorAll('#rows tr')].slice(1).map(r => [...r.cells].map(c => c.textContent))"
    found: list[list[str]] = browser.execute_script(script)
    return found
