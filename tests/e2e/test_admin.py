"""The admin API of a running gateway: what it shows, what it changes, who may, and that it keeps its own OpenAPI page.

Each test leaves the gateway as it found it: the same instances, ready."""

import hashlib
import shutil
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests import fakes
from tests.e2e.process import CHAT, Gateway, pool, service
from tests.fakes import Stage, sample, until

ROOT_KEY, CLIENT_KEY = "key-of-root", "key-of-ann"
AUTH = {
    "keys": [{"name": "ann", "hash": "sha256:" + hashlib.sha256(CLIENT_KEY.encode()).hexdigest()}],
    "admin_keys": [{"name": "root", "hash": "sha256:" + hashlib.sha256(ROOT_KEY.encode()).hexdigest()}],
}
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def gateway(stage: Stage, start) -> Gateway:
    """A pool for short answers with one instance, one for the rest with another; the third backend is spare."""
    first, second, _ = stage.backends
    pools = [pool([first], "short", "S"), pool([second], "long", "ML")]
    return start({"tiny": service(*pools)}, auth=AUTH, admin_key=ROOT_KEY, limits={"body_timeout_s": 0.5})


@pytest.fixture(autouse=True)
def _settled(settled: None) -> None:
    return


@pytest.fixture
def admin(gateway: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{gateway.url}/admin", headers=gateway.headers, timeout=10) as made:
        yield made


def ask(gateway: Gateway, **fields: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {CLIENT_KEY}"}
    return httpx.post(f"{gateway.url}/v1/chat/completions", json={**CHAT, **fields}, headers=headers)


def id_in(gateway: Gateway, pool_name: str) -> str:
    return next(i["id"] for i in gateway.instances().values() if i["pool"] == pool_name)


def done(admin: httpx.Client, job: httpx.Response) -> bool:
    assert job.status_code == 202, job.text
    return until(lambda: admin.get(f"/jobs/{job.json()['id']}").json()["state"] == "done")


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_state_shows_everything_at_one_instant(gateway: Gateway, admin: httpx.Client, stage: Stage) -> None:
    stage.play(fakes.drip)
    headers = {"authorization": f"Bearer {CLIENT_KEY}"}
    with httpx.stream("POST", f"{gateway.url}/v1/chat/completions", json={**CHAT, "stream": True}, headers=headers):
        state = admin.get("/state").json()
    assert state["in_flight"] == 1 and state["controller_error"] == "" and not state["closing"]
    (shown,) = state["services"]
    assert [p["name"] for p in shown["pools"]] == ["short", "long"]
    held = [(i["requests"], i["sequences"]) for i in shown["instances"]]
    assert sorted(held) == [(0, 0), (1, 1)]
    assert admin.get("/queue").json() == {"tiny": {"short": 0, "long": 0}}
    assert [i["id"] for i in admin.get("/instances").json()] == [i["id"] for i in shown["instances"]]
    assert "sha256" not in admin.get("/config").text


def test_admin_keys_and_client_keys_are_apart(gateway: Gateway) -> None:
    for headers in ({}, {"authorization": f"Bearer {CLIENT_KEY}"}, {"x-api-key": "wrong"}):
        for method, path in (("GET", "/state"), ("POST", "/reload"), ("GET", "/jobs/x"), ("DELETE", "/instances/x")):
            said = httpx.request(method, f"{gateway.url}/admin{path}", headers=headers)
            assert code(said) == (401, "invalid_api_key"), path
    root = {"x-api-key": ROOT_KEY}
    assert httpx.get(f"{gateway.url}/admin/state", headers=root).status_code == 200
    assert httpx.post(f"{gateway.url}/v1/chat/completions", json=CHAT, headers=root).status_code == 401


def test_drain_lets_what_runs_end_and_resume_takes_it_back(gateway: Gateway, admin: httpx.Client, stage: Stage) -> None:
    short, long = id_in(gateway, "short"), id_in(gateway, "long")
    stage.play(fakes.drip)
    headers = {"authorization": f"Bearer {CLIENT_KEY}"}
    url = f"{gateway.url}/v1/chat/completions"
    with httpx.stream("POST", url, json={**CHAT, "stream": True}, headers=headers) as answer:
        busy = answer.headers["x-joulegate-instance"]
        job = admin.post(f"/instances/{busy}/drain")
        assert admin.get(f"/jobs/{job.json()['id']}").json()["state"] == "running"
        assert gateway.instances()[url_of(gateway, busy)]["state"] == "draining"
        stage.open_gate()
        assert answer.read().endswith(b"data: [DONE]\n\n")
    assert done(admin, job)
    other = long if busy == short else short
    assert {ask(gateway).headers["x-joulegate-instance"] for _ in range(5)} == {other}
    assert code(admin.post(f"/instances/{other}/resume")) == (409, "not_drained")
    assert done(admin, admin.post(f"/instances/{busy}/resume"))
    assert until(gateway.all_ready)


def url_of(gateway: Gateway, instance_id: str) -> str:
    return next(url for url, i in gateway.instances().items() if i["id"] == instance_id)


def test_add_and_remove_an_instance(gateway: Gateway, admin: httpx.Client, stage: Stage) -> None:
    spare = stage.backends[2].url
    job = admin.post("/instances", json={"service": "tiny", "pool": "short", "url": spare})
    assert done(admin, job)
    new = gateway.instances()[spare]
    assert (new["state"], new["adopted"]) == ("ready", True)
    others = [i["id"] for i in gateway.instances().values() if i["url"] != spare]
    assert all(done(admin, admin.post(f"/instances/{i}/drain")) for i in others)
    assert ask(gateway).headers["x-joulegate-instance"] == new["id"]
    assert all(done(admin, admin.post(f"/instances/{i}/resume")) for i in others)
    assert done(admin, admin.delete(f"/instances/{new['id']}"))
    assert spare not in gateway.instances()
    assert code(admin.delete(f"/instances/{new['id']}")) == (404, "unknown_instance")


def test_a_dead_instance_can_be_removed(gateway: Gateway, admin: httpx.Client, stage: Stage) -> None:
    spare = stage.backends[2]
    assert done(admin, admin.post("/instances", json={"service": "tiny", "pool": "short", "url": spare.url}))
    spare.down()
    assert until(lambda: gateway.instances()[spare.url]["state"] == "failed")
    assert done(admin, admin.delete(f"/instances/{gateway.instances()[spare.url]['id']}"))
    spare.up()
    assert spare.url not in gateway.instances()


def test_a_drained_instance_stays_drained_when_it_dies_and_comes_back(
    gateway: Gateway, admin: httpx.Client, stage: Stage
) -> None:
    first = stage.backends[0]
    instance = gateway.instances()[first.url]["id"]
    first.down()
    assert until(lambda: gateway.instances()[first.url]["state"] == "failed")
    assert done(admin, admin.post(f"/instances/{instance}/drain"))
    first.up()
    ticks = gateway.state()["ticks"]
    assert until(lambda: gateway.state()["ticks"] > ticks + 5)
    assert gateway.instances()[first.url]["state"] == "draining"
    assert done(admin, admin.post(f"/instances/{instance}/resume"))


@pytest.mark.parametrize(
    "url",
    ["ftp://x", "http://127.0.0.1:99999", "http://127.0.0.1:0", "http://[", "http://a:b", "http://:8000", "http://",
     "http://127.0.0.1:8000/v1"],
)  # fmt: skip
def test_add_refuses_what_is_no_url(url: str, gateway: Gateway, admin: httpx.Client) -> None:
    before = gateway.instances()
    said = admin.post("/instances", json={"service": "tiny", "pool": "short", "url": url})
    assert said.status_code == 400
    assert set(gateway.instances()) == set(before)


def test_refusals(admin: httpx.Client) -> None:
    add = {"service": "tiny", "pool": "short"}
    assert code(admin.post("/instances", json=add)) == (409, "url_needed")
    assert code(admin.post("/instances", json={**add, "pool": "x"})) == (404, "unknown_pool")
    assert code(admin.post("/instances", json={**add, "service": "x"})) == (404, "unknown_service")
    assert code(admin.post("/instances", json={**add, "urll": "x"})) == (400, "bad_request")
    assert code(admin.post("/instances", content=b"{")) == (400, "bad_request")
    assert code(admin.post("/instances/none-1/drain")) == (404, "unknown_instance")
    assert code(admin.get("/jobs/none")) == (404, "unknown_job")
    assert code(admin.patch("/services/tiny/pools/short", json={"instances": 2})) == (409, "not_managed")
    assert code(admin.patch("/services/tiny/pools/x", json={})) == (404, "unknown_pool")
    assert code(admin.patch("/services/tiny/pools/short", json={"serves": ["XL"]})) == (400, "bad_request")
    assert code(admin.patch("/services/tiny/slo", json={"tbt_p99_ms": -1})) == (400, "bad_request")


def test_change_what_a_pool_serves(gateway: Gateway, admin: httpx.Client) -> None:
    before = gateway.state()["generation"]
    changed = admin.patch("/services/tiny/pools/long", json={"serves": ["S", "M", "L"]}).json()
    assert changed["generation"] == before + 1
    assert gateway.state()["services"][0]["pools"][1]["serves"] == ["S", "M", "L"]
    assert ask(gateway).status_code == 200
    assert admin.patch("/services/tiny/pools/long", json={"serves": ["M", "L"]}).status_code == 200


def test_change_the_slo(gateway: Gateway, admin: httpx.Client) -> None:
    old = gateway.state()["services"][0]["slo"]
    assert ask(gateway).status_code == 200
    assert admin.patch("/services/tiny/slo", json={"ttft_p99_ms": {"S": 0.001}, "tbt_p99_ms": 0.001}).status_code == 200
    slo = gateway.state()["services"][0]["slo"]
    assert slo["ttft_p99_ms"]["S"] == pytest.approx(0.001)
    assert slo["ttft_p99_ms"]["L"] == old["ttft_p99_ms"]["L"]
    assert gateway.row(ask(gateway).headers["x-request-id"])["attained"] is False
    assert admin.patch("/services/tiny/slo", json=old).status_code == 200
    assert gateway.row(ask(gateway).headers["x-request-id"])["attained"] is True


def test_reload(gateway: Gateway, admin: httpx.Client, stage: Stage) -> None:
    kept = gateway.config.with_suffix(".kept")
    shutil.copy(gateway.config, kept)
    text = kept.read_text()
    first, second, third = (b.url for b in stage.backends)
    generation = gateway.state()["generation"]
    try:
        gateway.config.write_text(text.replace(f"    - {second}", f"    - {second}\n      - {third}"))
        said = admin.post("/reload")
        assert said.status_code == 200 and said.json()["generation"] == generation + 1, said.text
        assert until(lambda: third in gateway.instances() and gateway.all_ready())
        stage.backends[2].down()
        assert until(lambda: gateway.instances()[third]["state"] == "failed")
    finally:
        shutil.copy(kept, gateway.config)
    assert admin.post("/reload").status_code == 200
    assert until(lambda: set(gateway.instances()) == {first, second}), "a dead server leaves with its URL"
    stage.backends[2].up()
    assert gateway.all_ready()


@pytest.mark.parametrize(
    ("old", "new", "status", "said"),
    [
        ("port: 0", "port: 9999", 409, "listen"),
        ("model: tiny", "model: huge", 409, "services.tiny: model"),
        ("services:", "servicez:", 400, "servicez"),
        ("services:", "services: [", 400, "gateway.yaml"),
        ("interval_s: 0.1", "interval_s: soon", 400, "interval_s"),
        ("body_timeout_s: 0.5", "connect_timeout_s: 0.5", 409, "limits.connect_timeout_s"),
    ],
)
def test_a_reload_with_an_error_changes_nothing(
    old: str, new: str, status: int, said: str, gateway: Gateway, admin: httpx.Client
) -> None:
    text = gateway.config.read_text()
    before = gateway.state()
    try:
        gateway.config.write_text(text.replace(old, new))
        answer = admin.post("/reload")
    finally:
        gateway.config.write_text(text)
    assert answer.status_code == status
    assert said in answer.json()["error"]["message"]
    after = gateway.state()
    assert after["generation"] == before["generation"]
    assert [(i["id"], i["state"]) for i in after["services"][0]["instances"]] == [
        (i["id"], i["state"]) for i in before["services"][0]["instances"]
    ]
    assert ask(gateway).content == sample("chat")


def test_every_change_is_in_the_run_log(gateway: Gateway, admin: httpx.Client) -> None:
    short = id_in(gateway, "short")
    before = len(gateway.rows("admin")) if gateway.run_log.exists() else 0
    assert done(admin, admin.post(f"/instances/{short}/drain"))
    assert done(admin, admin.post(f"/instances/{short}/resume"))
    admin.patch("/services/tiny/slo", json={})
    admin.post("/instances/none-1/drain")
    assert until(lambda: len(gateway.rows("admin")) >= before + 3)
    rows = gateway.rows("admin")[-3:]
    assert [(row["who"], row["action"]) for row in rows] == [
        ("root", "drain"), ("root", "resume"), ("root", "change_slo")
    ]  # fmt: skip
    assert rows[0]["instance"] == short


def test_what_is_not_a_slash_in_an_id_is_no_trap(admin: httpx.Client) -> None:
    for odd in ("%00", "..%2f..", "%ff", "a" * 257, "%E2%80%AE"):
        assert admin.delete(f"/instances/{odd}").status_code in (400, 404), odd


# --- bodies


def say(gateway: Gateway, head: str, body: bytes = b"", key: str = ROOT_KEY) -> bytes:
    """Sends a request whose body never ends, and reads the answer's first line and what comes with it."""
    with closing(socket.create_connection(("127.0.0.1", gateway.port), 10)) as made:
        made.sendall(f"{head} HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\n".encode())
        made.sendall(b"content-type: application/json\r\ncontent-length: 60000\r\n\r\n" + body)
        said = made.recv(10_000)
        while b'"code"' not in said:
            said += made.recv(10_000)
        return said


def test_the_key_is_asked_for_before_the_body(gateway: Gateway) -> None:
    for head in ("POST /admin/instances", "PATCH /admin/services/tiny/slo", "POST /admin/reload", "GET /admin/state"):
        said = say(gateway, head, key=CLIENT_KEY)
        assert said.startswith(b"HTTP/1.1 401 ") and b'"code":"invalid_api_key"' in said, head


@pytest.mark.parametrize("head", ["POST /admin/instances", "POST /admin/reload", "GET /health", "GET /v1/models/tiny"])
def test_a_body_that_never_ends(head: str, gateway: Gateway) -> None:
    said = say(gateway, head, b"{")
    assert said.startswith(b"HTTP/1.1 408 ") and b'"code":"body_timeout"' in said


def test_a_body_that_is_too_large(gateway: Gateway, admin: httpx.Client) -> None:
    body = b'{"x":"' + b"y" * 70_000 + b'"}'
    for content in (body, iter([body[:35_000], body[35_000:]])):  # the second has no content-length
        assert code(admin.post("/instances", content=content)) == (413, "body_too_large")
    assert code(httpx.request("GET", f"{gateway.url}/metrics", content=body)) == (413, "body_too_large")


# --- the OpenAPI page


def test_the_page_loads_nothing_from_elsewhere(gateway: Gateway) -> None:
    page = httpx.get(f"{gateway.url}/docs")
    assert page.status_code == 200 and "/openapi.json" in page.text
    assert "//" not in page.text
    assert "default-src 'self'" in page.headers["content-security-policy"]


@pytest.fixture(scope="module")
def api_schema(stage: Stage, start) -> Any:
    """Of a gateway of its own, which the generated calls may spoil."""
    fresh = start({"tiny": service(pool(stage.backends))})
    schema = schemathesis.openapi.from_dict(httpx.get(f"{fresh.url}/openapi.json").json())
    schema.config.update(base_url=fresh.url)
    return schema


def test_the_admin_api_keeps_its_openapi_page(api_schema: Any) -> None:
    ending = api_schema.exclude(path="/admin/events")  # a stream of events is over when its client says so
    operations = [found.ok() for found in ending.get_all_operations()]
    assert len(operations) >= 13
    for operation in operations:

        @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(case=operation.as_strategy())
        def answers_as_promised(case: Any) -> None:
            case.call_and_validate(checks=CHECKS, timeout=10)

        answers_as_promised()
