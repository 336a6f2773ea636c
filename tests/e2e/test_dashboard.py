"""/dashboard over HTTP: what is served, to whom, and what the streams say. What it looks like: tests/browser."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.auth import hash_key
from tests import fakes
from tests.e2e.conftest import Start
from tests.e2e.process import CHAT, ROOT, Gateway, pool, service
from tests.fakes import Stage, until

KEY = "the dashboard's admin key"
PAGE = ROOT / "gateway" / "page"
MOST_BYTES = 150_000


@pytest.fixture(scope="module")
def gateway(start: Start, stage: Stage) -> Gateway:
    auth = {"admin_keys": [{"name": "root", "hash": hash_key(KEY.encode())}]}
    pools = [pool(stage.backends[:2], "short", "SM"), pool(stage.backends[2:], "long", "L")]
    return start({"tiny": service(*pools)}, auth=auth, admin_key=KEY)


@pytest.fixture
def admin(gateway: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{gateway.url}/admin/dashboard", headers=gateway.headers, timeout=10) as made:
        yield made


def frames(gateway: Gateway, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    with httpx.stream("GET", f"{gateway.url}/admin/dashboard/stream", headers=gateway.headers, timeout=10) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line[6:]))
            if len(found) == count:
                return found
    raise AssertionError("the stream ended")


def test_the_page_and_its_files_are_served_under_a_strict_policy(gateway: Gateway) -> None:
    names = ["", *(f"/{path.name}" for path in PAGE.iterdir())]
    total = 0
    for name in names:
        answer = httpx.get(f"{gateway.url}/dashboard{name}")
        policy = answer.headers["content-security-policy"]
        assert answer.status_code == 200, name
        assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
        assert "frame-ancestors 'none'" in policy and answer.headers["x-content-type-options"] == "nosniff"
        total += len(answer.content) if name != "/index.html" else 0
        again = httpx.get(f"{gateway.url}/dashboard{name}", headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert total <= MOST_BYTES


def test_nothing_on_the_page_comes_from_another_host() -> None:
    for path in PAGE.iterdir():
        found = set(re.findall(r"https?://[^\s\"'`)]+", path.read_text()))
        assert found <= {"http://www.w3.org/2000/svg"}, path.name
        assert "innerHTML" not in path.read_text()


def test_what_the_page_names_is_there() -> None:
    page = (PAGE / "index.html").read_text()
    named = set(re.findall(r'"/dashboard/([a-z.]+)"', page))
    for path in PAGE.glob("*.js"):
        named |= set(re.findall(r'from "\./([a-z.]+)"', path.read_text()))
    assert named == {path.name for path in PAGE.iterdir()} - {"index.html"}


def test_other_names_and_methods_are_refused(gateway: Gateway) -> None:
    for name in ("/nothing.js", "/../config.py", "/%2e%2e/config.py"):
        answer = httpx.get(f"{gateway.url}/dashboard{name}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_route")
    assert httpx.post(f"{gateway.url}/dashboard").status_code == 405


def test_figures_need_the_admin_key(gateway: Gateway) -> None:
    for name in ("now", "stream", "history", "requests", "frontier?service=tiny"):
        for headers in ({}, {"authorization": "Bearer wrong"}):
            answer = httpx.get(f"{gateway.url}/admin/dashboard/{name}", headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


def test_all_viewers_get_the_same_frame_each_second(gateway: Gateway) -> None:
    first, second, third = frames(gateway, 3)
    assert first["t"] <= second["t"] < third["t"]
    (shown,) = second["services"]
    assert shown["name"] == "tiny" and len(shown["row"]) == len(second["columns"])
    assert [p["name"] for p in shown["pools"]] == ["short", "long"]
    assert len(shown["instances"]) == 3 and len(shown["instances"][0]) == len(shown["instance_columns"])
    assert shown["row"][0] is None, "no engine model: watts are not known, which is not 0"
    assert shown["plan"]["plan"] is None


def test_requests_are_counted_judged_and_listed(gateway: Gateway, admin: httpx.Client, stage: Stage) -> None:
    stage.reset()
    good = gateway.post(max_tokens=5)
    stage.play(fakes.refuse)
    bad = httpx.post(f"{gateway.url}/v1/chat/completions", json=CHAT, headers={"x-request-id": "broken"}, timeout=30)
    stage.reset()
    assert (good.status_code, bad.status_code) == (200, 502)

    def listed() -> bool:
        told = admin.get("/requests").json()
        ids = [row["id"] for row in told["recent"]]
        return good.headers["x-request-id"] in ids and [row["id"] for row in told["missed"]] == ["broken"]

    assert until(listed, 5)
    (shown,) = admin.get("/now").json()["services"]
    assert 0 < shown["attainment"] < 1
    told = admin.get("/history", params={"window_s": 60}).json()
    place = told["columns"].index("judged") + 1
    assert until(lambda: sum(row[place] for row in admin.get("/history").json()["services"]["tiny"]) >= 2, 5)


def test_what_an_operator_does_is_an_event(gateway: Gateway, admin: httpx.Client) -> None:
    change = {"mode": "shadow"}
    httpx.patch(f"{gateway.url}/admin/controller", json=change, headers=gateway.headers).raise_for_status()
    told = [event for event in admin.get("/history").json()["events"] if event["kind"] == "operator"]
    assert told[-1]["title"] == "root: change mode" and "mode shadow" in told[-1]["why"]
    assert admin.get("/now").json()["mode"] == "shadow"


def test_a_death_is_an_event_with_its_reason(gateway: Gateway, admin: httpx.Client, stage: Stage) -> None:
    stage.backends[2].down()

    def dead() -> bool:
        return any(e["kind"] == "death" and "/health" in e["why"] for e in admin.get("/history").json()["events"])

    assert until(dead, 5)


def test_frontiers_say_what_is_missing(admin: httpx.Client) -> None:
    assert "names no profile" in admin.get("/frontier", params={"service": "tiny"}).json()["why"]
    assert admin.get("/frontier", params={"service": "other"}).json()["error"]["code"] == "unknown_service"
    assert admin.get("/history", params={"window_s": -1}).status_code == 400


def test_open_viewers_do_not_hold_up_the_end(start: Start, stage: Stage) -> None:
    gateway = start({"tiny": service(pool(stage.backends[:1]))})
    with httpx.stream("GET", f"{gateway.url}/admin/dashboard/stream", timeout=10) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        gateway.process.terminate()
        rest = list(lines)
    assert rest[-3:-1] == ["event: end", "data: {}"]
    assert gateway.process.wait(5) == 0
