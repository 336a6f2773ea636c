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


def live(gateway: Gateway) -> list[dict]:
    return [i for i in gateway.instances().values() if i["state"] in ("starting", "ready")]


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
            assert until(lambda: sum(i["pool"] == "short" for i in live(gateway)) == 2, 40), live(gateway)
            before = plan(gateway)["plan"]["age_s"]
            assert until(lambda: plan(gateway)["plan"]["age_s"] < before, 20), "another plan came"
            assert sum(i["pool"] == "short" for i in live(gateway)) == 2, "and left the pinned pool alone"
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
