"""The node agent as a process on emulated GPUs: set, confirm, fence, expire, refuse, and every way to die."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from bench.agent_rig import ROOT, UUIDS, Agent, Holder, Process, kill_id, until
from core.clock import SystemClock
from pools.agent_client import AgentClient, AgentClocks
from pools.clocks import ClockRefused, GpuGroup
from simulator.gpu_state import GpuState
from tests.e2e.process import run_command
from tests.gpus import library

FIRST, REST = UUIDS[:4], UUIDS[4:]
LEASE_S = 2.0
FLAGS = ("--lease", str(LEASE_S))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library()  # skips where no compiler is
    return tmp_path_factory.mktemp("agent")


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[Agent]:
    made = Agent(folder, *FLAGS)
    yield made
    made.end()


@pytest.fixture
def agent(shared: Agent) -> Iterator[Agent]:
    """One that is as new after each test."""
    yield shared
    shared.state.put(
        UUIDS, load=0.0, read_error=0, write_error=0, deaf=0, bin_mhz=0, throttle_mhz=0, delay_s=0.0, call_s=0.0
    )
    for lease in shared.http.get("/v1/gpus").json()["leases"]:
        shared.http.delete(f"/v1/leases/{lease['epoch']}")
    assert until(lambda: shared.http.get("/readiness").status_code == 200) is not None


@pytest.fixture
def own(tmp_path: Path, folder: Path) -> Iterator[Agent]:
    """One that a test may kill."""
    made = Agent(tmp_path, *FLAGS)
    yield made
    made.end()


def lease(agent: Agent, uuids: list[str], holder: str = "test", **more: object) -> int:
    answer = agent.http.post("/v1/leases", json={"holder": holder, "uuids": uuids, **more})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["epoch"])


def put(agent: Agent, epoch: int, uuids: list[str], mhz: int) -> httpx.Response:
    agent.http.post(f"/v1/leases/{epoch}/renew")
    return agent.http.post(f"/v1/leases/{epoch}/clock", json={"uuids": uuids, "mhz": mhz})


def code(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["code"])


def test_a_tp8_group_under_load_is_set_and_confirmed(agent: Agent) -> None:
    agent.state.put(UUIDS, load=1.0, delay_s=0.01)
    done = put(agent, lease(agent, UUIDS), UUIDS, 1001)
    assert done.status_code == 200, done.text
    assert (done.json()["mhz"], done.json()["changed"]) == (990, True)
    assert [(gpu["clock_mhz"], gpu["state"]) for gpu in done.json()["gpus"]] == [(990, "at")] * 8
    assert agent.locks() == [990] * 8


def test_a_clock_that_is_set_is_not_written_again(agent: Agent) -> None:
    epoch = lease(agent, FIRST)
    put(agent, epoch, FIRST, 1200)
    before = [gpu.writes for gpu in agent.state.gpus()]
    assert put(agent, epoch, FIRST, 1200).json()["changed"] is False
    assert [gpu.writes for gpu in agent.state.gpus()] == before


def test_an_idle_and_a_hot_gpu_are_no_failure(agent: Agent) -> None:
    agent.state.put(FIRST[:1], load=1.0, throttle_mhz=600, throttle_reasons=0x40)
    done = put(agent, lease(agent, FIRST), FIRST, 1200).json()
    assert [gpu["state"] for gpu in done["gpus"]] == ["throttled", "idle", "idle", "idle"]
    assert done["gpus"][0]["reasons"] == ["hw_thermal"]


@pytest.mark.parametrize("fault", [{"deaf": 1}, {"bin_mhz": 240}])
def test_a_member_above_its_clock_is_refused_and_the_group_undone(agent: Agent, fault: dict[str, int]) -> None:
    agent.state.put(FIRST, load=1.0)
    agent.state.put(FIRST[2:3], **fault)
    refused = put(agent, lease(agent, FIRST), FIRST, 990)
    assert (refused.status_code, code(refused)) == (503, "gpu_clock_not_obeyed")
    assert agent.at_default([*FIRST[:2], FIRST[3]])
    told = agent.http.get("/readiness")
    assert (told.status_code, list(told.json()["off"])) == (503, [FIRST[2]])
    agent.state.put(FIRST, bin_mhz=0, deaf=0)
    agent.state.reload_driver()  # what does not obey is trusted again after a new driver only
    assert until(lambda: agent.http.get("/readiness").status_code == 200) is not None


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ({"write_error": 4}, "gpu_not_permitted"),
        ({"write_error": 3}, "gpu_not_supported"),
        ({"read_error": 15}, "gpu_lost"),
    ],
)
def test_a_refusal_turns_the_knob_off_and_the_others_work(agent: Agent, fault: dict[str, int], error: str) -> None:
    epoch = lease(agent, UUIDS)
    agent.state.put(FIRST[1:2], **fault)
    refused = put(agent, epoch, FIRST, 990)
    assert (refused.status_code, code(refused)) == (503, error)
    assert agent.at_default(FIRST)
    assert agent.http.get("/readiness").json()["off"][FIRST[1]]["code"] == error
    assert agent.http.post(f"/v1/leases/{epoch}/renew").json()["off"][FIRST[1]]["code"] == error
    assert put(agent, epoch, REST, 990).status_code == 200
    agent.state.put(FIRST[1:2], read_error=0, write_error=0)
    assert until(lambda: agent.http.get("/readiness").status_code == 200) is not None


def test_a_reloaded_driver_is_opened_again(agent: Agent) -> None:
    epoch = lease(agent, FIRST)
    put(agent, epoch, FIRST, 990)
    agent.state.reload_driver()
    refused = put(agent, epoch, FIRST, 1200)
    assert code(refused) == "gpu_driver_reloaded"
    assert until(lambda: put(agent, epoch, FIRST, 990).status_code == 200) is not None
    assert agent.locks(FIRST) == [990] * 4


def test_one_writer_and_a_fence(agent: Agent) -> None:
    first = lease(agent, FIRST, "one")
    second = agent.http.post("/v1/leases", json={"holder": "two", "uuids": FIRST[2:]})
    assert (second.status_code, code(second)) == (409, "lease_held")
    assert second.json()["error"]["retry_after_s"] > 0
    assert code(put(agent, first, REST, 990)) == "lease_lost"  # not of this lease
    put(agent, first, FIRST, 990)
    agent.http.delete(f"/v1/leases/{first}")
    assert agent.at_default()
    later = lease(agent, FIRST, "two")
    assert later > first
    assert code(put(agent, first, FIRST, 600)) == "lease_lost"
    assert agent.at_default()


def test_without_renewal_clocks_go_to_default(agent: Agent) -> None:
    epoch = lease(agent, FIRST, lease_s=0.4)
    assert put(agent, epoch, FIRST, 990).status_code == 200
    assert until(lambda: agent.at_default(FIRST)) is not None
    assert code(agent.http.post(f"/v1/leases/{epoch}/renew")) == "lease_lost"


def test_readings_tell_instant_and_average_apart(agent: Agent) -> None:
    agent.state.put(FIRST, load=1.0, given_w=432.0)
    rows = agent.http.get("/v1/readings", params={"uuids": FIRST[0]}).json()["gpus"]
    assert rows[0]["instant_w"] == 432.0 and rows[0]["average_w"] <= 432.0
    assert len(agent.http.get("/v1/readings").json()["gpus"]) == 8
    assert agent.http.get("/v1/readings?uuids=nobody").status_code == 404
    metrics = agent.http.get("/metrics").text
    assert f'joulegate_agent_watts{{gpu="{FIRST[0]}",kind="instant"}} 432.0' in metrics
    agent.state.put(FIRST, given_w=-1.0)


@pytest.mark.parametrize(
    "body", [{}, {"uuids": [], "mhz": 990}, {"uuids": FIRST, "mhz": "x"}, {"uuids": FIRST, "mhz": 1}]
)
def test_bad_bodies_are_told(agent: Agent, body: dict[str, object]) -> None:
    answer = agent.http.post(f"/v1/leases/{lease(agent, FIRST)}/clock", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_the_socket_is_for_owner_and_group(agent: Agent, folder: Path) -> None:
    assert stat.S_IMODE((folder / "agent.sock").stat().st_mode) == 0o660


def test_a_second_agent_on_the_socket_is_refused(agent: Agent) -> None:
    second = run_command("agent", "--listen", agent.address, "--emulate", "h100:8", "--nvml-state", agent.state.path)
    assert (second.returncode, "another agent" in second.stderr) == (1, True)


# --- the client of the control plane


def test_the_clocks_of_an_agent(agent: Agent) -> None:
    group = GpuGroup(tuple(FIRST))

    async def story() -> None:
        clocks = AgentClocks(AgentClient(agent.address), SystemClock(), "test", FIRST, LEASE_S)
        assert clocks.off(group) == "no_lease_yet"
        with pytest.raises(ClockRefused):
            await clocks.set_clock(group, 990)
        renewing = asyncio.create_task(clocks.run())
        await clocks.leased.wait()
        done = await clocks.set_clock(group, 1001)
        assert (done.mhz, done.changed, clocks.off(group)) == (990, True, None)
        assert [state for _, state in done.states] == ["idle"] * 4
        before = await clocks.read(group)
        while before.watts > 4 * 70.001:  # the average still remembers what a test before drew
            await SystemClock().sleep(0.05)
            before = await clocks.read(group)
        assert before.clock_mhz == 345 and before.watts == pytest.approx(4 * 70, rel=1e-4)
        await SystemClock().sleep(LEASE_S)  # longer than the lease: its own task has renewed it
        assert agent.locks(FIRST) == [990] * 4
        assert (await clocks.read(group)).joules > before.joules
        await clocks.reset(group)
        assert agent.at_default(FIRST)
        agent.state.put(FIRST[:1], write_error=4)
        with pytest.raises(ClockRefused) as refused:
            await clocks.set_clock(group, 990)
        assert refused.value.code == "gpu_not_permitted"
        while clocks.off(group) is None:
            await SystemClock().sleep(0.01)
        assert clocks.off(group) == "gpu_not_permitted"
        renewing.cancel()
        await clocks.close()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_an_agent_that_is_not_there_is_said(tmp_path: Path) -> None:
    async def story() -> None:
        with pytest.raises(ClockRefused) as refused:
            await AgentClient(f"unix:{tmp_path}/none.sock").inventory()
        assert refused.value.code == "agent_unreachable"

    asyncio.run(story())


# --- dying


def held(agent: Agent, folder: Path, name: str = "gateway", uuids: list[str] = FIRST) -> Holder:
    holder = Holder(agent, folder, name, LEASE_S, 990, uuids)
    assert until(lambda: agent.locks(uuids) == [990] * len(uuids)) is not None, holder.log.read_text()
    return holder


def test_kill_9_of_the_client_then_of_the_agent(own: Agent, tmp_path: Path) -> None:
    holder, other = held(own, tmp_path), held(own, tmp_path, "other", REST)
    holder.end()
    assert until(lambda: own.at_default(FIRST)) is not None
    assert own.locks(REST) == [990] * 4  # whose lease lives
    again = held(own, tmp_path, "again")
    own.send(signal.SIGKILL)
    assert until(own.at_default) is not None
    for one in (other, again):
        one.end()


def test_sigterm_undoes_and_ends_cleanly(own: Agent, tmp_path: Path) -> None:
    holder, watchdog = held(own, tmp_path), own.watchdog
    own.send(signal.SIGTERM)
    assert own.child.wait(20) == 0
    assert own.at_default()
    assert until(lambda: not Path(f"/proc/{watchdog}").exists()) is not None
    assert not (tmp_path / "agent.sock").exists()
    holder.end()


def test_a_hung_agent_a_killed_watchdog_and_kill_9_of_agent_and_client(own: Agent, tmp_path: Path) -> None:
    holder, first = held(own, tmp_path), own.watchdog
    own.send(signal.SIGSTOP)
    assert until(own.at_default) is not None
    own.send(signal.SIGCONT)
    assert until(lambda: own.locks(FIRST) == [990] * 4) is not None  # leased and set anew
    kill_id(first)
    assert until(lambda: "the watchdog ended" in own.log.read_text()) is not None
    assert until(lambda: own.http.get("/readiness").status_code == 200) is not None
    assert own.watchdog != first
    assert own.locks(FIRST) == [990] * 4
    holder.end()
    own.send(signal.SIGKILL)
    assert until(own.at_default) is not None


def test_an_agent_killed_with_its_watchdog_is_undone_by_the_next_start(own: Agent, tmp_path: Path) -> None:
    holder, watchdog = held(own, tmp_path), own.watchdog
    own.send(signal.SIGSTOP)  # so that it starts no other
    kill_id(watchdog)
    own.end()
    holder.end()
    assert own.locks(FIRST) == [990] * 4
    done = run_command("agent", "--reset", "--emulate", "h100:8", "--nvml-state", own.state.path)
    assert (done.returncode, own.at_default()) == (0, True), done.stderr


def test_without_a_compiler_the_same_holds_and_is_said(tmp_path: Path) -> None:
    env = {**os.environ, "PATH": "/nonexistent", "PYTHONPATH": str(ROOT)}
    flags = ["--listen", f"unix:{tmp_path}/s", "--emulate", "h100:2", "--nvml-state", str(tmp_path / "gpus")]
    agent = Process([str(ROOT / "joulegate.py"), "agent", *flags], tmp_path / "log", env, tmp_path)
    try:
        assert until(lambda: "listening" in agent.log.read_text()) is not None
        assert "emulated GPUs without a library" in agent.log.read_text()
        state = GpuState(tmp_path / "gpus", SystemClock())
        transport = httpx.HTTPTransport(uds=f"{tmp_path}/s")
        with httpx.Client(transport=transport, base_url="http://agent") as http:
            epoch = http.post("/v1/leases", json={"holder": "test", "uuids": UUIDS[:2]}).json()["epoch"]
            assert http.post(f"/v1/leases/{epoch}/clock", json={"uuids": UUIDS[:2], "mhz": 990}).status_code == 200
        assert [gpu.locked_max_mhz for gpu in state.gpus()] == [990, 990]
        agent.send(signal.SIGKILL)
        assert until(lambda: not any(gpu.locked_max_mhz for gpu in state.gpus())) is not None
    finally:
        agent.end()


# --- the door


def test_over_tcp_a_token_is_needed_and_tls_is_spoken(folder: Path, tmp_path: Path) -> None:
    cert, key, token = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "token"
    token.write_text("open-sesame\n")
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*request, *names], check=True, capture_output=True)
    flags = ["--listen", "127.0.0.1:0", "--token-file", token, "--tls-cert", cert, "--tls-key", key]
    where = ["--emulate", "h100:2", "--nvml-state", tmp_path / "gpus"]
    with (tmp_path / "log").open("wb") as log:
        argv = [*map(str, ["joulegate.py", "agent", *flags, *where])]
        child = subprocess.Popen([sys.executable, *argv], cwd=ROOT, stdout=log, stderr=log)
    try:
        assert until(lambda: "https://" in (tmp_path / "log").read_text()) is not None
        url = (tmp_path / "log").read_text().partition('"address": "')[2].partition('"')[0]

        async def ask(secret: str | None) -> int:
            client = AgentClient(url, secret, str(cert))
            try:
                return len((await client.inventory()).gpus)
            finally:
                await client.close()

        assert asyncio.run(ask("open-sesame")) == 2
        for wrong in (None, "open", "open-sesame2"):
            with pytest.raises(ClockRefused) as refused:
                asyncio.run(ask(wrong))
            assert refused.value.code == "invalid_token"
    finally:
        child.terminate()
        child.wait(20)
