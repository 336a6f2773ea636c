"""The dashboard as a person meets it: it loads, lives, acts after a second word, and says what is wrong."""

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.auth import hash_key
from tests.browser.conftest import LIVE, PHONE, Tab
from tests.browser.many import Many
from tests.e2e.conftest import Start
from tests.e2e.process import Gateway, pool, service, write_config
from tests.fakes import Stage, until

MODEL = "llama-3.1-70b"
KEY = "a key for the page"
POOLS = [
    {"name": name, "serves": [size], "instances": 1, "tp": 4, "clock_mhz": 1980, "slots": 64, "kv_tokens": 100_000}
    for name, size in (("short", "S"), ("medium", "M"), ("long", "L"))
]
Open = Callable[..., Tab]
LOST = [
    "ERR_CONNECTION_REFUSED",
    "ERR_INCOMPLETE_CHUNKED",
    "ERR_EMPTY_RESPONSE",
    "network error",
    "ERR_CONNECTION_RESET",
]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Three emulated engines under a controller that plans every few seconds."""
    folder: Path = tmp_path_factory.mktemp("emulated")
    launcher = {"kind": "emulated", "start_timeout_s": 60, "log_dir": str(folder)}
    one = {"model": "m", "profile": MODEL, "pools": POOLS, "launcher": launcher, "context_tokens": 8192}
    controller = {"interval_s": 0.5, "plan": "energy", "plan_interval_s": 4.0, "gpus": 24}
    made = Gateway(write_config(folder, {MODEL: one}, controller=controller))
    try:
        assert until(lambda: made.logged("ready"), 60), made.log()
        yield made
        assert not made.faults()
    finally:
        made.kill_all()


@pytest.fixture
def callers(emulated: Gateway) -> Iterator[None]:
    """Somebody asks all the time."""
    stop = threading.Event()

    def ask() -> None:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "hello " * 40}],
            "max_tokens": 20,
            "stream": True,
        }
        with httpx.Client(timeout=30) as client:
            while not stop.is_set():
                client.post(f"{emulated.url}/v1/chat/completions", json=body)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()


def text(page: Any, selector: str) -> str:
    return page.locator(selector).inner_text()


def wait_text(page: Any, selector: str, pattern: str) -> None:
    page.wait_for_function(
        "([s, p]) => new RegExp(p, 'is').test(document.querySelector(s)?.innerText ?? '')", arg=[selector, pattern]
    )


def plan_mode(gateway: Gateway) -> str:
    return httpx.get(f"{gateway.url}/admin/controller", headers=gateway.headers).json()["mode"]


def test_it_lives_and_every_energy_figure_has_a_tag(emulated: Gateway, tab: Open, callers: None) -> None:
    page = tab().open(emulated.url)
    assert page.locator("h1").inner_text() == "joulegate"
    wait_text(page, "#tile-power", r"\d.* k?W")
    wait_text(page, "#tile-token", r"\d.* J")
    wait_text(page, "#tile-kept", r"\d+.*%")
    page.wait_for_selector("#frontiers figure")
    for place in ("#tile-power .tag", "#tile-token .tag", "#power-tag", "#frontier-tag"):
        assert text(page, place) in ("measured", "attributed", "modelled"), place
    watts = page.locator("table.pools td[data-label=Power]")
    assert watts.count() == 3
    assert all(re.search(r"\d+.* k?W (measured|attributed|modelled)", cell) for cell in watts.all_inner_texts())
    before = text(page, "#about")
    page.wait_for_function("(old) => document.getElementById('about').innerText !== old", arg=before)
    assert page.locator("#frontiers figure").count() == 9


def test_headings_names_and_landmarks_hold_for_those_who_do_not_see(emulated: Gateway, tab: Open) -> None:
    page = tab().open(emulated.url)
    levels = page.eval_on_selector_all(
        "main h2, main h3", "(all) => all.filter(e => e.checkVisibility()).map(e => +e.tagName[1])"
    )
    assert levels and levels[0] == 2 and all(b - a <= 1 for a, b in zip(levels, levels[1:], strict=False))
    nameless = page.evaluate("""() => [...document.querySelectorAll('button, input, select, canvas, svg[role=img]')]
        .filter(e => e.checkVisibility() && !(e.ariaLabel || e.getAttribute('aria-label') || e.textContent.trim()
            || e.labels?.[0]?.textContent.trim())).map(e => e.outerHTML.slice(0, 80))""")
    assert nameless == []
    assert page.locator("main").count() == page.locator("h1").count() == 1
    unlabelled = page.eval_on_selector_all(
        "main section", "(all) => all.filter(e => !document.getElementById(e.getAttribute('aria-labelledby'))).length"
    )
    assert unlabelled == 0


def test_the_keyboard_reaches_and_reads_everything(emulated: Gateway, tab: Open, callers: None) -> None:
    page = tab().open(emulated.url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    order = []
    for _ in range(12):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert [name for name in order if name in ("mode", "key")] == ["mode", "key"]
    assert "CANVAS" in order[order.index("key") :]
    page.wait_for_timeout(2500)
    page.locator("#power-chart canvas").focus()
    page.keyboard.press("ArrowLeft")
    wait_text(page, "#power-chart output", r"\d\d:\d\d:\d\d: Decode .*W, Prefill .*Idle")
    page.locator("#power-chart summary").press("Enter")
    page.wait_for_selector("#power-chart table tbody tr")
    assert page.locator("#power-chart thead th").all_inner_texts()[:3] == ["Time", "Decode", "Prefill"]


def test_an_event_tells_its_reason(emulated: Gateway, tab: Open, callers: None) -> None:
    page = tab().open(emulated.url)
    page.wait_for_selector(".mark[data-kind=plan], .mark[data-kind=instance]")
    mark = page.locator(".mark").first
    mark.focus()
    page.keyboard.press("Enter")
    assert page.locator("dialog[open] .event").count() >= 1
    page.locator("dialog summary").first.click()
    assert '"service"' in page.locator("dialog pre").first.inner_text()
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    page.locator("#event-list button").first.click()
    assert text(page, "dialog h2") == "Event"
    page.locator("dialog [aria-label=Close]").click()
    shown = page.locator("#event-list li").count()
    page.evaluate("document.querySelectorAll('#kinds input:checked').forEach((box) => box.click())")
    assert shown > 0 and page.locator("#event-list li").count() == 0 and page.locator(".mark").count() == 0


def test_the_mode_changes_after_a_second_word_only(emulated: Gateway, tab: Open) -> None:
    page = tab().open(emulated.url)
    page.locator("#mode").click()
    assert "nothing changes" in text(page, "dialog .effect")
    page.locator("dialog input[value=shadow]").check()
    assert "Clocks stay as they are now." in text(page, "dialog .effect")
    page.locator("dialog button", has_text="Cancel").click()
    assert plan_mode(emulated) == "enforce"
    page.locator("#mode").click()
    page.locator("dialog input[value=shadow]").check()
    page.locator("dialog button.primary").click()
    wait_text(page, "#mode", "shadow")
    assert plan_mode(emulated) == "shadow"
    assert "The mode is shadow now." in page.locator("#said").text_content()
    page.locator("#mode").click()
    page.locator("dialog input[value=enforce]").check()
    assert re.search("next tick", text(page, "dialog .effect"))
    page.locator("dialog button.primary").click()
    wait_text(page, "#mode", "enforce")
    assert emulated.rows("admin")[-1]["action"] == "change_mode"


def test_an_order_says_what_it_changes_and_is_lifted(emulated: Gateway, tab: Open) -> None:
    page = tab().open(emulated.url)
    row = page.locator("table.pools tbody tr", has_text="short")
    live = int(re.findall(r"(\d+) ready", row.inner_text())[0])
    row.locator("button").click()
    page.locator("dialog input[name=instances]").fill(str(live + 1))
    effect = text(page, "dialog .effect")
    assert "1 instance will be started" in effect and re.search(r"add \d+ W \(modelled\)", effect)
    page.locator("dialog input[name=instances]").fill("0")
    assert "will drain" in text(page, "dialog .effect") or live == 0
    page.locator("dialog select[name=kind]").select_option("floor")
    assert "stays as it is" in text(page, "dialog .effect")
    page.locator("dialog input[name=reason]").fill("a launch")
    page.locator("dialog button.primary").click()
    wait_text(page, ".orders", r"short: at least 0 instances .* left by anonymous: a launch")
    (held,) = httpx.get(f"{emulated.url}/admin/overrides").json()
    assert (held["kind"], held["instances"]) == ("floor", 0) and 3500 < held["left_s"] <= 3600
    page.locator(".orders button").click()
    page.locator("dialog button.primary").click()
    page.wait_for_function("() => document.querySelector('.orders').hidden")
    assert httpx.get(f"{emulated.url}/admin/overrides").json() == []


def test_a_pin_without_an_end_holds_until_let_go(emulated: Gateway, tab: Open) -> None:
    page = tab().open(emulated.url)
    row = page.locator("table.pools tbody tr", has_text="long")
    live = int(re.findall(r"(\d+) ready", row.inner_text())[0])
    row.locator("button").click()
    page.locator("dialog select[name=span]").select_option("0")
    page.locator("dialog input[name=instances]").fill(str(live))
    page.locator("dialog button.primary").click()
    wait_text(page, "table.pools", f"pinned at {live}")
    row.locator("button").click()
    page.locator("dialog button", has_text="Let the plan have it").click()
    page.locator("dialog button.primary").click()
    page.wait_for_function("() => !document.querySelector('table.pools').innerText.includes('pinned')")


def test_a_plan_is_asked_for_looked_at_and_applied(emulated: Gateway, tab: Open, callers: None) -> None:
    page = tab().open(emulated.url)
    wait_text(page, "#plan-note", "plan in force was made")
    page.locator("button", has_text="Ask for a plan").click()
    wait_text(page, "dialog", r"It expects [\d.]+ k?W.*modelled.*What changes")
    page.locator("dialog button.primary").click()
    wait_text(page, "#said", "is followed from the next tick on")
    assert until(lambda: any(row["action"] == "apply_plan" for row in emulated.rows("admin")), 5)


def test_an_instance_is_drained_and_resumed(start: Start, stage: Stage, tab: Open) -> None:
    gateway = start({"tiny": service(pool(stage.backends))})
    page = tab().open(gateway.url)
    tile = page.locator(".instances button").first
    name = tile.locator(".id").inner_text()
    tile.click()
    page.locator("dialog button", has_text=re.compile("^Drain…$")).click()
    assert "No new requests" in text(page, "dialog")
    page.locator("dialog form button.primary").click()
    page.wait_for_selector(".instances [data-state=draining]")
    assert {i["id"]: i["state"] for i in gateway.instances().values()}[name] == "draining"
    tile.click()
    page.locator("dialog button", has_text="Resume…").click()
    page.locator("dialog form button.primary").click()
    page.wait_for_function("() => !document.querySelector('.instances [data-state=draining]')")


def test_a_refusal_is_shown_as_the_gateway_says_it(emulated: Gateway, tab: Open) -> None:
    one = tab()
    one.allowed = ["409", "ERR_FAILED"]
    page = one.open(emulated.url)
    told = {"error": {"message": "not possible now: reasons", "type": "conflict", "code": "no"}}
    page.route("**/admin/controller", lambda route: route.fulfill(status=409, json=told))
    page.locator("#mode").click()
    page.locator("dialog input[value=advise]").check()
    page.locator("dialog button.primary").click()
    wait_text(page, "dialog [role=alert]", "not possible now: reasons")
    page.unroute("**/admin/controller")
    page.route("**/admin/controller", lambda route: route.abort())
    page.locator("dialog button.primary").click()
    wait_text(page, "dialog [role=alert]", "cannot be reached")
    assert plan_mode(emulated) == "enforce"


def test_a_request_is_explained(emulated: Gateway, tab: Open) -> None:
    one = tab()
    one.allowed = ["404"]
    page = one.open(emulated.url)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "stream": True}
    named = {"x-request-id": "who-am-i"}
    answer = httpx.post(f"{emulated.url}/v1/chat/completions", json=body, headers=named, timeout=30)
    assert answer.status_code == 200
    page.locator("#requests").scroll_into_view_if_needed()
    page.locator("#which label", has_text="Newest").click()
    page.locator("#request-table button", has_text="who-am-i").first.click()
    wait_text(page, "dialog", "Why it went where it went.*took it.*How it went.*kept|missed")
    page.locator("dialog [aria-label=Close]").click()
    page.locator("#lookup-id").fill("no-such-request")
    page.locator("#lookup-id").press("Enter")
    wait_text(page, "dialog .problem", "nothing is known of request no-such-request")


def test_without_explanations_the_row_itself_is_told(emulated: Gateway, tab: Open, callers: None) -> None:
    one = tab()
    one.allowed = ["404"]
    page = one.open(emulated.url)
    told = {"error": {"message": "there is no route", "type": "x", "code": "unknown_route"}}
    page.route("**/admin/explain/*", lambda route: route.fulfill(status=404, json=told))
    page.locator("#requests").scroll_into_view_if_needed()
    page.locator("#which label", has_text="Newest").click()
    page.locator("#request-table button.link").first.click()
    wait_text(page, "dialog", "How it went.*Served.*This gateway keeps no explanations")


def test_a_key_is_asked_for_and_kept_in_the_tab(start: Start, stage: Stage, tab: Open) -> None:
    auth = {"admin_keys": [{"name": "root", "hash": hash_key(KEY.encode())}]}
    gateway = start({"tiny": service(pool(stage.backends))}, auth=auth, admin_key=KEY)
    one = tab()
    one.allowed = ["401"]
    page = one.open(gateway.url, live=False)
    wait_text(page, "#alerts", "asks for an admin key")
    page.locator("#key").click()
    page.locator("dialog input[type=password]").fill("wrong")
    page.locator("dialog button.primary").click()
    wait_text(page, "#alerts", "asks for an admin key")
    page.locator("#key").click()
    page.locator("dialog input[type=password]").fill(KEY)
    page.locator("dialog button.primary").click()
    page.wait_for_selector(LIVE)
    assert text(page, "#alerts") == ""
    page.reload()
    page.wait_for_selector(LIVE)
    assert KEY not in page.content()


def test_a_gateway_that_dies_and_returns_is_told(start: Start, stage: Stage, tab: Open, tmp_path: Path) -> None:
    gateway = start({"tiny": service(pool(stage.backends))})
    one = tab()
    one.allowed = LOST
    page = one.open(gateway.url)
    gateway.stop()
    wait_text(page, "#alerts", "No live figures since")
    assert page.evaluate("document.body.classList.contains('stale')")
    again = Gateway(write_config(tmp_path, {"tiny": service(pool(stage.backends))}, listen={"port": gateway.port}))
    try:
        page.wait_for_selector(LIVE)
        wait_text(page, "#alerts", "^$")
    finally:
        again.stop()


def test_nothing_known_is_said_and_not_shown_as_nothing(start: Start, stage: Stage, tab: Open) -> None:
    gateway = start({"tiny": service(pool(stage.backends))})
    page = tab().open(gateway.url)
    assert text(page, "#tile-power b") == "–"
    wait_text(page, "#power-chart .empty", "names no engine model")
    wait_text(page, "#kept-chart .empty", "No request was judged")
    wait_text(page, "#frontier-note", "names no profile")
    assert "configured" in text(page, "#plan-note")
    assert page.locator("#power-tag").is_hidden()


def test_a_service_without_a_ready_instance_is_told(start: Start, tab: Open) -> None:
    urls = ["http://127.0.0.1:9"]
    dead = {"name": "all", "serves": ["S", "M", "L"], "slots": 8, "urls": urls}
    gateway = start({"tiny": service(dead)}, ready=False)
    page = tab().open(gateway.url)
    wait_text(page, "#alerts", "No instance of tiny is ready")
    page.wait_for_selector(".instances [data-state=failed]")
    wait_text(page, "#event-list", "all-1 failed.*/health failed")


def test_it_fits_a_phone(emulated: Gateway, tab: Open) -> None:
    page = tab(viewport=PHONE, color_scheme="dark").open(emulated.url)
    page.wait_for_selector("table.pools tbody tr")
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    page.locator("#mode").click()
    assert page.evaluate("document.querySelector('dialog').getBoundingClientRect().right <= innerWidth")


@pytest.fixture(scope="module")
def many() -> Iterator[Many]:
    made = Many(100)
    yield made
    made.close()


def test_a_hundred_instances_are_kept_and_not_made_anew(start: Start, many: Many, tab: Open) -> None:
    pools = [{"name": name, "serves": list(serves), "slots": 64, "tp": 4, "urls": urls} for name, serves, urls in
             (("short", "S", many.urls[:40]), ("long", "ML", many.urls[40:]))]  # fmt: skip
    gateway = start({"m": service(*pools, profile="llama-3.1-70b", context_tokens=8192)})
    page = tab().open(gateway.url)
    page.wait_for_function("() => document.querySelectorAll('.instances [data-state=ready]').length === 100")
    page.evaluate("""() => {
        window.marked = [...document.querySelectorAll('.instances li')];
        window.made = 0;
        new MutationObserver((seen) => { for (const one of seen) window.made += one.addedNodes.length; })
            .observe(document.querySelector('#pool-tables'), { subtree: true, childList: true });
        window.long = [];
        new PerformanceObserver((list) => window.long.push(...list.getEntries().map((e) => e.duration)))
            .observe({ type: 'longtask', buffered: false });
    }""")
    page.wait_for_timeout(4000)
    assert page.evaluate("window.marked.every((one) => one.isConnected)")
    assert page.evaluate("window.made") < 50, "figures are written into what is there"
    print("long tasks, ms:", page.evaluate("window.long"))
