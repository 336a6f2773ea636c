"""More than is carried: who is shed is told so, and was never started."""

import threading
from pathlib import Path

import httpx

from tests.e2e.process import LIMITS, Gateway
from tests.fakes import until

SLOTS = 2
BODY = {"model": "tiny", "prompt": "Tell me of the movie", "max_tokens": 3000, "ignore_eos": True, "stream": True}


def test_who_is_late_is_shed_and_was_never_started(start, tmp_path: Path) -> None:
    slo = {"ttft_p99_ms": {"S": 100, "M": 100, "L": 100}, "tbt_p99_ms": 1000}
    pool = {"name": "all", "serves": ["S", "M", "L"], "instances": 1, "slots": SLOTS, "tp": 1, "clock_mhz": 1980}
    launcher = {"kind": "emulated", "start_timeout_s": 60, "log_dir": str(tmp_path)}
    tree = {"model": "tiny", "slo": slo, "pools": [pool], "context_tokens": 4096, "launcher": launcher}
    gateway: Gateway = start(
        {"tiny": tree | {"profile": "llama-3.1-8b"}},
        limits={**LIMITS, "max_wait_s": 60.0},
        controller={"interval_s": 0.2, "plan": "energy", "gpus": 1},
    )
    url = f"{gateway.url}/v1/completions"
    assert until(lambda: gateway.logged("ready"), 60), gateway.log()
    (engine_url,) = gateway.instances()

    def engine() -> dict[str, int]:
        return httpx.get(f"{engine_url}/emulated/state").json()

    with httpx.Client(timeout=60) as client:
        running = [client.send(client.build_request("POST", url, json=BODY), stream=True) for _ in range(SLOTS)]
        assert until(lambda: engine()["running"] == SLOTS)
        before = engine()["prompt_tokens"]
        answers: list[httpx.Response] = []
        waiting = [
            threading.Thread(target=lambda: answers.append(httpx.post(url, json=BODY, timeout=60))) for _ in "abcd"
        ]
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join()
        for answer in running:
            answer.close()
    assert [answer.status_code for answer in answers] == [429] * len(waiting)
    assert {answer.json()["error"]["code"] for answer in answers} == {"shed_late"}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers)
    assert engine()["prompt_tokens"] == before, "none was started"
    rows = [gateway.row(answer.headers["x-request-id"]) for answer in answers]
    assert {(row["outcome"], row["instance"], row["attempts"]) for row in rows} == {("shed", None, 1)}
    assert until(gateway.idle)
