"""A gateway that is killed by -9: the next one knows what operators ordered and what was learnt."""

import json

import httpx

from tests.e2e.conftest import Start
from tests.e2e.process import CHAT, Gateway, pool, service
from tests.fakes import Stage, until


def test_what_operators_ordered_outlives_a_kill(stage: Stage, start: Start) -> None:
    first = start({"tiny": service(pool(stage.backends[:1]))})
    assert httpx.post(f"{first.url}/v1/chat/completions", json=CHAT).status_code == 200
    body = {"kind": "pause", "service": "tiny", "reason": "a launch"}
    ordered = httpx.post(f"{first.url}/admin/overrides", json=body).json()
    kept = first.config.parent / "checkpoint.json"
    assert until(lambda: kept.exists() and ordered["id"] in kept.read_text(), 10)
    first.kill()
    second = Gateway(first.config).wait_ready()
    try:
        assert second.logged("the controller goes on from its checkpoint")
        (shown,) = httpx.get(f"{second.url}/admin/overrides").json()
        assert shown["id"] == ordered["id"] and shown["reason"] == "a launch" and shown["until_t"] == ordered["until_t"]
        assert httpx.delete(f"{second.url}/admin/overrides/{ordered['id']}").status_code == 200
    finally:
        second.stop()
    assert json.loads(kept.read_text())["state"]["overrides"] == [], "and what is over at the end is over"


def test_what_was_learnt_of_lengths_outlives_a_restart_and_a_damaged_file_does_not_stop_one(
    stage: Stage, start: Start
) -> None:
    first = start({"tiny": service(pool(stage.backends[:1]))})
    for _ in range(3):
        assert httpx.post(f"{first.url}/v1/chat/completions", json=CHAT).status_code == 200
    first.stop()
    kept = first.config.parent / "checkpoint.lengths.json"
    (learnt,) = json.loads(kept.read_text())["body"]
    assert learnt["service"] == "tiny" and learnt["state"]["answers"] == 3 and len(learnt["templates"]) == 1
    second = Gateway(first.config).wait_ready()
    try:
        (told,) = second.logged("the predictors go on from what they learnt")
        assert told["services"] == ["tiny"]
        assert httpx.post(f"{second.url}/v1/chat/completions", json=CHAT).status_code == 200
    finally:
        second.stop()
    assert json.loads(kept.read_text())["body"][0]["state"]["answers"] == 4
    kept.write_text(kept.read_text().replace('"answers":4', '"answers":5', 1))
    third = Gateway(first.config).wait_ready()
    try:
        (told,) = third.logged("what was learnt of lengths is of no use")
        assert "checksum" in told["error"]
        assert httpx.post(f"{third.url}/v1/chat/completions", json=CHAT).status_code == 200
    finally:
        third.stop()
