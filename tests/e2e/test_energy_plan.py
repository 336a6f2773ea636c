"""The controller in enforce mode on real child processes: it plans from what arrives, instances and clocks follow, an
operator's word holds against it, and no answer is lost meanwhile."""

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.process import Gateway, write_config
from tests.fakes import until

MODEL = "m"
POOLS = [
    {"name": name, "serves": [size], "instances": 1, "tp": 2, "clock_mhz": 1980, "slots": 64, "kv_tokens": 100_000}
    for name, size in (("short", "S"), ("medium", "M"), ("long", "L"))
]


class Callers:
    """Four clients that ask one short question after the other until told to stop."""

    def __init__(self, url: str) -> None:
        self.failed: list[str] = []
        self.done = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(url,)) for _ in range(4)]
        for thread in self._threads:
            thread.start()

    def _ask(self, url: str) -> None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello " * 40}], "max_tokens": 8}
        with httpx.Client(timeout=30) as client:
            while not self._stop.is_set():
                answer = client.post(f"{url}/v1/chat/completions", json=body)
                if answer.status_code != 200:
                    self.failed.append(f"{answer.status_code} {answer.text[:200]}")
                self.done += 1

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("plan")
    launcher = {"kind": "emulated", "start_timeout_s": 60, "log_dir": str(folder)}
    service = {"model": "m", "profile": "llama-3.1-8b", "pools": POOLS, "launcher": launcher, "context_tokens": 8192}
    controller = {"interval_s": 0.2, "plan": "energy", "plan_interval_s": 2.0, "gpus": 8}
    made = Gateway(write_config(folder, {MODEL: service}, controller=controller))
    try:
        assert until(lambda: made.logged("ready"), 60), made.log()
        yield made
    finally:
        made.kill_all()


def plan(gateway: Gateway) -> dict:
    shown = httpx.get(f"{gateway.url}/admin/plan").json()
    return next((s for s in shown["services"] if s["service"] == MODEL), {"plan": None}) | {"mode": shown["mode"]}


class Ages:
    """Asks for the plan's age again and again: it falls when there is another plan, and never otherwise."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._last_s = 0.0

    def fell(self) -> bool:
        before_s, self._last_s = self._last_s, plan(self._gateway)["plan"]["age_s"]
        return self._last_s < before_s


def live(gateway: Gateway) -> list[dict]:
    return [i for i in gateway.instances().values() if i["state"] in ("starting", "ready")]


def of_pool(gateway: Gateway, name: str) -> list[dict]:
    return [i for i in live(gateway) if i["pool"] == name]


def as_planned(gateway: Gateway) -> bool:
    shown = plan(gateway)["plan"]
    if shown is None:
        return False
    wanted = sum(target["instances"] for target in shown["targets"])
    return all(i["state"] == "ready" for i in live(gateway)) and len(live(gateway)) == wanted


def test_the_plan_comes_true_and_operators_have_the_last_word(gateway: Gateway) -> None:
    callers = Callers(gateway.url)
    try:
        assert until(lambda: plan(gateway)["plan"] is not None, 40), gateway.log()
        shown = plan(gateway)["plan"]
        assert shown["quality"] == "modelled" and shown["expected_w"] > 0
        assert sum(target["instances"] * target["tp"] for target in shown["targets"]) <= 8

        with httpx.Client(base_url=f"{gateway.url}/admin", timeout=10) as admin:
            pinned = admin.patch(f"/services/{MODEL}/pools/short", json={"instances": 2})
            assert pinned.status_code == 200
            assert until(lambda: [i["tp"] for i in of_pool(gateway, "short")] == [2, 2], 60), live(gateway)
            pinned_ids = {i["id"] for i in of_pool(gateway, "short")}
            ages = Ages(gateway)
            assert until(ages.fell, 20), "another plan came"
            assert {i["id"] for i in of_pool(gateway, "short")} == pinned_ids, "and left the pinned pool alone"
            assert admin.patch(f"/services/{MODEL}/pools/short", json={"pinned": False}).status_code == 200
            assert admin.patch("/controller", json={"mode": "shadow"}).json()["mode"] == "shadow"
            assert plan(gateway)["mode"] == "shadow"
            assert admin.patch("/controller", json={"mode": "reckless"}).status_code == 400
            assert admin.patch("/controller", json={"mode": "enforce"}).status_code == 200
        assert until(lambda: any(i["clock_mhz"] < 1980 for i in live(gateway)), 40), "a small load needs no full clock"
    finally:
        callers.end()
    assert callers.done > 20 and not callers.failed
    assert httpx.get(f"{gateway.url}/admin/controller").json()["last_error"] == ""


@pytest.fixture
def admin(gateway: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{gateway.url}/admin", timeout=20) as made:
        yield made


def test_overrides_hold_until_they_are_lifted_or_over(gateway: Gateway, admin: httpx.Client) -> None:
    assert admin.get("/overrides").json() == []
    pin = admin.post(
        "/overrides", json={"kind": "pin", "service": MODEL, "pool": "long", "instances": 2, "clock_mhz": 1200}
    )
    assert pin.status_code == 201 and pin.json()["left_s"] > 3500
    assert [one["id"] for one in admin.get("/overrides").json()] == [pin.json()["id"]]
    longs = lambda: of_pool(gateway, "long")  # noqa: E731
    assert until(lambda: [(i["state"], i["clock_mhz"]) for i in longs()] == [("ready", 1200)] * 2, 15), [
        (i["id"], i["tp"], i["state"], i["clock_mhz"]) for i in live(gateway)
    ]
    assert admin.delete(f"/overrides/{pin.json()['id']}").status_code == 200
    assert admin.get("/overrides").json() == []
    brief = {"kind": "floor", "service": MODEL, "pool": "long", "instances": 3, "expires_s": 0.5}
    assert admin.post("/overrides", json=brief).status_code == 201
    assert until(lambda: admin.get("/overrides").json() == [], 5)
    assert until(lambda: any(row.get("note") == "override_over" for row in gateway.rows("controller")))


def test_an_instance_is_drained_for_a_while(gateway: Gateway, admin: httpx.Client) -> None:
    assert until(lambda: live(gateway), 20)
    one = live(gateway)[0]["id"]
    states = lambda: {i["id"]: i["state"] for i in gateway.instances().values()}  # noqa: E731
    assert admin.post("/overrides", json={"kind": "drain", "instance": one, "expires_s": 2}).status_code == 201
    assert until(lambda: states().get(one) == "draining", 5), states()
    assert until(lambda: states().get(one) != "draining", 10), "and serves again, or was given back"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"kind": "pin", "service": MODEL, "pool": "long"}, 400, "instances"),
        ({"kind": "floor", "service": MODEL, "pool": "long"}, 400, "instances"),
        ({"kind": "floor", "pool": "long", "instances": 1}, 400, "service"),
        ({"kind": "pin", "service": MODEL, "pool": "long", "clock_mhz": 1234}, 400, "clock_mhz"),
        ({"kind": "pause", "pool": "long"}, 400, "pool"),
        ({"kind": "drain"}, 400, "instance"),
        ({"kind": "pause", "expires_s": 0}, 400, "expires_s"),
        ({"kind": "reign"}, 400, "kind"),
        ({"kind": "pin", "service": "x", "pool": "long", "instances": 1}, 404, None),
        ({"kind": "pin", "service": MODEL, "pool": "x", "instances": 1}, 404, None),
        ({"kind": "drain", "instance": "x"}, 404, None),
    ],
)
def test_overrides_that_make_no_sense_are_refused(
    body: dict, status: int, param: str | None, admin: httpx.Client
) -> None:
    answer = admin.post("/overrides", json=body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["param"] == param and error["message"] and error["type"]


def test_a_plan_is_proposed_looked_at_and_applied(gateway: Gateway, admin: httpx.Client) -> None:
    assert until(lambda: plan(gateway)["plan"] is not None, 40)
    shown = admin.get("/plan").json()
    assert shown["history"] and shown["history"][0]["by"] == "controller" and shown["history"][0]["reason"]
    assert shown["services"][0]["in_force"] is not None and shown["services"][0]["next"]["due_in_s"] is not None
    made = admin.post("/plan/propose", json={"load": 3, "gpus": 8})
    assert made.status_code == 201, made.text
    assert made.json()["plans"][MODEL]["planned_rps"] > 0 and made.json()["expected_w"] > 0
    assert admin.patch("/controller", json={"mode": "advise"}).status_code == 200
    applied = admin.post("/plan/apply", json={"id": made.json()["id"]})
    assert applied.status_code == 200, applied.text
    counts = lambda shown: [(t["pool"], t["tp"], t["instances"]) for t in shown["targets"]]  # noqa: E731
    wanted = counts(made.json()["plans"][MODEL])
    assert until(lambda: counts(admin.get("/plan").json()["services"][0]["in_force"]) == wanted, 10)
    assert admin.post("/plan/apply", json={"id": "plan-none"}).status_code == 404
    assert admin.patch("/controller", json={"mode": "shadow"}).status_code == 200
    assert admin.post("/plan/apply", json={"id": made.json()["id"]}).json()["error"]["code"] == "shadow_mode"
    assert admin.patch("/controller", json={"mode": "enforce"}).status_code == 200
    assert admin.post("/plan/propose", json={"services": ["x"]}).status_code == 404


def test_a_request_is_explained(gateway: Gateway, admin: httpx.Client) -> None:
    assert until(lambda: any(i["state"] == "ready" for i in live(gateway)), 40)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello " * 30}], "max_tokens": 4}
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers={"x-request-id": "why-me"}, timeout=30)
    assert answer.status_code == 200
    told = admin.get("/explain/why-me").json()
    assert told["state"] == "ended" and told["outcome"]["status"] == 200
    assert told["features"]["input_tokens"] > 20 and told["prediction"]["class"] == told["outcome"]["class"]
    chosen = [one for one in told["considered"] if one["chosen"]]
    assert [one["instance"] for one in chosen] == [told["instance"]] and chosen[0]["ttft_s"] >= 0
    assert told["plan"]["quality"] == "modelled" and len(told["told"]) == 4
    assert "hello" not in admin.get("/explain/why-me").text
    missing = admin.get("/explain/nobody")
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "unknown_request"


def test_promises_and_pools_are_shown(gateway: Gateway, admin: httpx.Client) -> None:
    callers = Callers(gateway.url)
    try:
        assert until(lambda: callers.done > 20, 40)
    finally:
        callers.end()
    (slo,) = admin.get("/slo").json()
    assert slo["service"] == MODEL and slo["promised"] == 0.99 and slo["total"]["judged"] > 20
    assert slo["classes"].keys() == {a + b for a in "SML" for b in "SML"}
    assert {pool["name"] for pool in admin.get("/pools").json()} == {"short", "medium", "long"}


def test_the_run_log_is_decided_the_same_again(gateway: Gateway) -> None:
    from controller.redecide import redecide

    assert until(lambda: len(gateway.rows("decision")) > 50)
    found = redecide(gateway.rows("decision"), plans=False)
    assert found.differences == [] and found.ticks > 50 and found.skipped == 0 and not found.unreadable


def test_after_a_kill_the_next_gateway_goes_on_with_the_instances_and_the_plan(gateway: Gateway) -> None:
    assert until(lambda: live(gateway) and gateway.all_ready(), 60), live(gateway)
    kept = gateway.config.parent / "checkpoint.json"
    pause = httpx.post(f"{gateway.url}/admin/overrides", json={"kind": "pause", "reason": "kill"}).json()
    assert until(lambda: kept.exists() and pause["id"] in kept.read_text(), 10)
    before = {i["id"]: i["url"] for i in live(gateway)}
    targets = plan(gateway)["plan"]["targets"]
    gateway.kill()
    second = Gateway(gateway.config)
    try:
        assert until(lambda: plan(second)["plan"] is not None, 10)
        assert [(t["pool"], t["tp"], t["instances"]) for t in plan(second)["plan"]["targets"]] == [
            (t["pool"], t["tp"], t["instances"]) for t in targets
        ]
        ready = lambda: {i["id"]: i["url"] for i in live(second) if i["state"] == "ready"}  # noqa: E731
        assert until(lambda: before.items() <= ready().items(), 30), "none is lost"
        taken = lambda: {row["instance"] for row in second.rows("instance_taken_over")}  # noqa: E731
        assert until(lambda: taken() >= before.keys(), 10), "the log is written a moment later"
        assert len(live(second)) == len({i["url"] for i in live(second)})
        answer = httpx.post(f"{second.url}/v1/completions", json={"model": MODEL, "prompt": "a", "max_tokens": 2})
        assert answer.status_code == 200
    finally:
        second.stop()
