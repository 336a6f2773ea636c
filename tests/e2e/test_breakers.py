"""What opens the breaker of an instance and what closes it again."""

from contextlib import closing

import pytest

from tests import fakes
from tests.e2e.process import LIMITS, Gateway, connect, pool, service
from tests.fakes import Stage, sample, status, until

BROKEN = status(500, b'{"error":{"message":"broken","type":"InternalServerError"}}')


@pytest.fixture(scope="module")
def gateway(stage: Stage, start) -> Gateway:
    """One instance with one slot behind a quick breaker."""
    return start(
        {"tiny": service(pool(stage.backends[:1], slots=1))},
        limits=LIMITS,
        breaker={"failures": 2, "backoff_s": 0.3, "backoff_max_s": 0.3},
    )


@pytest.fixture(autouse=True)
def _settled(settled: None) -> None:
    return


def opened(gateway: Gateway) -> bool:
    return any(i["breaker_open"] for i in gateway.instances().values())


def test_4xx_never_opens_the_breaker(gateway: Gateway, stage: Stage) -> None:
    stage.play(status(400, sample("error_temperature")))
    assert [gateway.post().status_code for _ in range(5)] == [400] * 5
    assert not opened(gateway)


def test_a_client_that_leaves_never_opens_the_breaker(gateway: Gateway, stage: Stage) -> None:
    stage.play(fakes.drip)
    for number in range(3):
        with closing(connect(gateway, False)):
            assert until(lambda n=number: len(stage.requests) == n + 1)
        assert until(gateway.idle)
    assert not opened(gateway)


def assert_opens(gateway: Gateway, stage: Stage) -> None:
    stage.play(BROKEN)
    assert [gateway.post().status_code for _ in range(2)] == [502, 502]
    assert opened(gateway)


def test_5xx_opens_the_breaker_and_a_later_success_closes_it(gateway: Gateway, stage: Stage) -> None:
    assert_opens(gateway, stage)
    stage.play(fakes.good)
    said = gateway.post()  # waits for the end of the pause and is the trial
    assert said.content == sample("chat")
    assert not opened(gateway)
    assert len(stage.requests) == 3


def test_only_one_request_tries_a_half_open_instance(gateway: Gateway, stage: Stage) -> None:
    assert_opens(gateway, stage)
    stage.play(fakes.drip)
    with closing(connect(gateway, False)), closing(connect(gateway, False)):
        assert until(lambda: len(stage.requests) == 3)
        assert gateway.state()["services"][0]["queued"] == 1
        stage.open_gate()
        assert until(lambda: len(stage.requests) == 4)
        assert until(gateway.idle)
    assert not opened(gateway)


def test_a_trial_that_answers_ends_the_pause_before_it_ends(gateway: Gateway, stage: Stage) -> None:
    assert_opens(gateway, stage)
    stage.play(fakes.drip)
    with closing(connect(gateway, True)) as client:
        assert client.recv(100)
        assert not opened(gateway), "a stream may last for minutes"


@pytest.fixture(scope="module")
def wide(stage: Stage, start) -> Gateway:
    """Three instances, each behind a breaker that one failure opens for good."""
    breaker = {"failures": 1, "backoff_s": 600, "backoff_max_s": 600}
    return start({"tiny": service(pool(stage.backends))}, limits={**LIMITS, "max_wait_s": 0.3}, breaker=breaker)


def test_a_request_that_fails_everywhere_opens_one_breaker(wide: Gateway, stage: Stage) -> None:
    stage.play(BROKEN)
    assert wide.post().status_code == 502
    assert len(stage.requests) == 3
    assert [i["breaker_open"] for i in wide.instances().values()].count(True) == 1
    stage.play(fakes.refuse)
    assert wide.post().status_code == 503, "two hang up, and the third takes nothing while it waits"
    assert wide.post().status_code == 503
    assert all(i["breaker_open"] for i in wide.instances().values()), "who breaks off is ill whatever was asked"
