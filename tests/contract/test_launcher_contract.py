"""What every launcher promises: `start` returns at once, `alive` is the truth, `stop` may come twice and leaves nothing
of the instance running. Also what a start-up may end of an earlier gateway's, and what it must leave alone."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from core.service import Edges, InstanceLimits, LauncherSpec, PoolSpec, ServiceSpec, Slo
from pools.children import MARK, Child, Identity, Orphan
from pools.gpu_book import GpuBook
from pools.launcher import Launcher, Place, ProcessLauncher, StaticLauncher, place_of
from tests.fakes import until

ROOT = Path(__file__).resolve().parents[2]
POOL = PoolSpec("all", ("S", "M", "L"), 1, 2, 0, InstanceLimits(4))
SERVER = """
import http.server, subprocess, sys
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(sys.argv[2].encode())
subprocess.Popen([sys.executable, "-c", "import os, time; os.setpgid(0, 0); time.sleep(600)"])
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"


def spec(folder: Path, *argv: str, name: str = "contract") -> ServiceSpec:
    launcher = LauncherSpec("process", argv, env={"SLOTS": "{slots}", "STEP": "{step_tokens}"}, log_dir=str(folder))
    return ServiceSpec(name, "tiny", 4096, Slo(), Edges(), (POOL,), launcher)


def emulated_spec(folder: Path) -> ServiceSpec:
    kind = LauncherSpec("emulated", log_dir=str(folder))
    return replace(spec(folder), launcher=kind, profile="llama-3.1-8b")


def session(leader: int) -> list[int]:
    """Living processes of a session, zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if entry.name.isdigit() and int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def leader_of(instance_id: str, service: str = "contract") -> int:
    """The session leader of a child, found by the mark in its environment, which is there a moment after its start."""
    found: list[int] = []
    assert until(lambda: found.extend(leaders(f"{MARK}={service}/{instance_id}".encode())) or found), instance_id
    return found[0]


def leaders(mark: bytes) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        try:
            pid = int(entry.name)
            if os.getsid(pid) == pid and mark in (entry / "environ").read_bytes().split(b"\0"):
                yield pid
        except (OSError, ValueError):
            continue


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[ProcessLauncher]:
    launcher = ProcessLauncher(spec(tmp_path, "{python}", "-c", SERVER, "{port}", "{model}"), os.environ, GpuBook())
    yield launcher
    launcher.stop("a-1", force=True)


@pytest.fixture
def emulated(tmp_path: Path) -> Iterator[ProcessLauncher]:
    """Emulated engines, each on GPUs of its own."""
    launcher = ProcessLauncher(emulated_spec(tmp_path), os.environ, GpuBook())
    yield launcher
    launcher.stop("a-1", force=True)


@pytest.fixture(params=["static", "processes", "emulated"])
def launcher(request: pytest.FixtureRequest) -> Launcher:
    return StaticLauncher() if request.param == "static" else request.getfixturevalue(request.param)


@pytest.fixture(params=["processes", "emulated"])
def managed(request: pytest.FixtureRequest) -> ProcessLauncher:
    launcher: ProcessLauncher = request.getfixturevalue(request.param)
    return launcher


def healthy(place: Place) -> bool:
    try:
        return httpx.get(f"http://{place.host}:{place.port}/health").status_code == 200
    except httpx.TransportError:
        return False


# --- every launcher


def test_stop_of_what_was_never_started(launcher: Launcher) -> None:
    for force in (False, True, True):
        launcher.stop("never-1", force=force)
    assert launcher.cpu_s("never-1") is None


def test_start_alive_stop(launcher: Launcher) -> None:
    if not launcher.managed:
        with pytest.raises(RuntimeError):
            launcher.start("a-1", POOL)
        assert launcher.alive("a-1"), "whether it lives is the prober's question"
        return
    place = launcher.start("a-1", POOL)
    assert launcher.alive("a-1")
    assert until(lambda: healthy(place))
    used_s = launcher.cpu_s("a-1")
    assert used_s is not None and used_s > 0
    launcher.stop("a-1", force=False)
    launcher.stop("a-1", force=False)
    assert until(lambda: not launcher.alive("a-1"))
    assert launcher.cpu_s("a-1") is None
    launcher.stop("a-1", force=True)
    launcher.stop("a-1", force=True)
    assert not launcher.alive("a-1")


# --- processes


def test_alive_is_the_truth_when_a_child_dies(managed: ProcessLauncher) -> None:
    place = managed.start("a-1", POOL)
    assert until(lambda: healthy(place))
    os.kill(leader_of("a-1"), signal.SIGKILL)
    assert until(lambda: not managed.alive("a-1"))
    assert not managed.alive("b-1")


def test_a_whole_session_goes_with_its_server(processes: ProcessLauncher) -> None:
    """The grandchild moves to a process group of its own, as engine workers do."""
    place = processes.start("a-1", POOL)
    assert until(lambda: healthy(place))
    leader = leader_of("a-1")
    assert until(lambda: len(session(leader)) == 2)
    processes.stop("a-1", force=False)
    assert until(lambda: not processes.alive("a-1"))
    assert len(session(leader)) == 1, "the grandchild outlives its parent"
    processes.stop("a-1", force=True)
    assert until(lambda: not session(leader))


def test_a_child_that_ignores_sigterm(tmp_path: Path) -> None:
    deaf = ProcessLauncher(spec(tmp_path, sys.executable, "-c", DEAF, "{port}"), os.environ, GpuBook())
    deaf.start("a-1", POOL)
    assert until(lambda: "deaf" in (tmp_path / "a-1.log").read_text())
    deaf.stop("a-1", force=False)
    assert deaf.alive("a-1")
    deaf.stop("a-1", force=True)
    assert not deaf.alive("a-1")


def test_a_missing_program_is_an_os_error_and_leaves_nothing(tmp_path: Path) -> None:
    gpus = GpuBook()
    missing = ProcessLauncher(spec(tmp_path, "/none/such", "{port}", "{gpus}"), os.environ, gpus)
    with pytest.raises(OSError):
        missing.start("a-1", POOL)
    assert not missing.alive("a-1")
    missing.stop("a-1", force=True)
    assert gpus.take("b-1", 2) == ("0", "1"), "the GPUs of a failed start are free again"


def test_words_and_environment_are_filled_in(processes: ProcessLauncher, tmp_path: Path) -> None:
    place = processes.start("a-1", POOL)
    assert until(lambda: healthy(place))
    assert httpx.get(f"http://{place.host}:{place.port}/").text == "tiny"
    environ = Path(f"/proc/{leader_of('a-1')}/environ").read_bytes().split(b"\0")
    assert b"SLOTS=4" in environ and b"STEP=2048" in environ


def test_gpus_come_back_when_an_instance_ends(tmp_path: Path) -> None:
    gpus = GpuBook()
    argv = (sys.executable, "-c", "import time; time.sleep(600)", "{port}", "{gpus}")
    launcher = ProcessLauncher(spec(tmp_path, *argv), os.environ, gpus)
    try:
        launcher.start("a-1", POOL)
        launcher.start("b-1", POOL)
        assert gpus.take("seen", 2) == ("4", "5")
        launcher.stop("a-1", force=True)
        assert gpus.take("next", 2) == ("0", "1")
    finally:
        launcher.stop("a-1", force=True)
        launcher.stop("b-1", force=True)


def test_a_child_that_cannot_be_killed_holds_its_gpus_and_nobody_up(tmp_path: Path) -> None:
    """As one does whose driver call hangs: no signal reaches it until the call returns."""
    gpus = GpuBook()
    argv = (sys.executable, "-c", "import time; time.sleep(600)", "{port}", "{gpus}")
    stuck: list[int] = []
    launcher = ProcessLauncher(spec(tmp_path, *argv), os.environ, gpus, kill=stuck.append)
    launcher.start("a-1", POOL)
    launcher.stop("a-1", force=True)
    launcher.stop("a-1", force=True)
    assert launcher.alive("a-1")
    assert gpus.take("b-1", 2) == ("2", "3")
    os.kill(stuck[0], signal.SIGKILL)
    assert until(lambda: not launcher.alive("a-1"))
    launcher.stop("a-1", force=True)
    assert gpus.take("c-1", 2) == ("0", "1")


def test_place_of_a_url() -> None:
    assert place_of("http://10.0.0.1:8000") == Place("10.0.0.1", 8000)
    assert place_of("http://[::1]:9") == Place("::1", 9)
    assert place_of("http://host/") == Place("host", 80)


# --- what an earlier gateway left behind

WORKER = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); time.sleep(600)"
STARTER = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.contract.test_launcher_contract import POOL, spec
from pools.gpu_book import GpuBook
from pools.launcher import ProcessLauncher
folder, name = Path(sys.argv[2]), sys.argv[3]
argv = (sys.executable, "-c", "import time; time.sleep(600)", "{port}")
launcher = ProcessLauncher(spec(folder, *argv, name=name), os.environ, GpuBook())
for instance_id in sys.argv[4:]:
    launcher.start(instance_id, POOL)
print("started", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with two children, as a gateway has. Ends all."""
    ids = ("a-1", "b-2")
    argv = [sys.executable, "-c", STARTER, str(ROOT), str(tmp_path), tmp_path.name, *ids]
    made = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None and made.stdout.readline() == "started\n"
    children = [leader_of(instance_id, tmp_path.name) for instance_id in ids]
    yield made
    made.kill()
    made.wait()
    made.stdout.close()
    for child in children:
        for pid in session(child):
            os.kill(pid, signal.SIGKILL)


def taking_over(folder: Path, name: str, *argv: str, address: str = "", gpus: GpuBook | None = None) -> ProcessLauncher:
    argv = argv or (sys.executable, "-c", "import time; time.sleep(600)", "{port}")
    return ProcessLauncher(spec(folder, *argv, name=name), os.environ, gpus or GpuBook(), address=address)


def test_only_orphans_of_this_service_are_taken_over(parent: subprocess.Popen[str], tmp_path: Path) -> None:
    mine = taking_over(tmp_path, tmp_path.name)
    child = leader_of("a-1", tmp_path.name)
    assert mine.take_over() == ([], []), "its gateway lives"
    parent.kill()
    parent.wait()
    assert taking_over(tmp_path, "other").take_over() == ([], [])
    assert session(child) == [child]
    found, ended = mine.take_over()
    assert ([(one.instance_id, one.pool) for one in found], ended) == ([("a-1", POOL), ("b-2", POOL)], [])
    assert len({one.place.port for one in found}) == 2 and mine.alive("a-1") and mine.alive("b-2")
    assert mine.take_over() == ([], []), "they are ours now"
    assert taking_over(tmp_path, tmp_path.name).take_over() == ([], []), "and nobody else's"
    mine.stop("a-1", force=False)
    assert until(lambda: not mine.alive("a-1"))
    for instance_id in ("a-1", "b-2"):
        mine.stop(instance_id, force=True)
    assert not session(child)


def test_two_gateways_with_services_of_one_name_leave_each_other_alone(
    parent: subprocess.Popen[str], tmp_path: Path
) -> None:
    """One is down for a moment; the other one starts meanwhile, with an engine of another make even."""
    children = [leader_of(instance_id, tmp_path.name) for instance_id in ("a-1", "b-2")]
    parent.kill()
    parent.wait()
    for folder, address in ((tmp_path / "elsewhere", ""), (tmp_path, "127.0.0.1:8081")):
        for argv in ((), ("another-engine", "{port}")):
            assert taking_over(folder, tmp_path.name, *argv, address=address).take_over() == ([], [])
    assert [session(child) for child in children] == [[child] for child in children]
    found, _ = taking_over(tmp_path, tmp_path.name).take_over()
    assert [one.instance_id for one in found] == ["a-1", "b-2"]


def test_what_is_ended_at_a_start_keeps_its_gpus_until_it_has_ended(tmp_path: Path) -> None:
    argv = (sys.executable, "-c", "import time; time.sleep(600)", "{port}", "{gpus}")
    starter = STARTER.replace('"{port}")', '"{port}", "{gpus}")')
    made = subprocess.Popen(
        [sys.executable, "-c", starter, str(ROOT), str(tmp_path), tmp_path.name, "a-1"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert made.stdout is not None and made.stdout.readline() == "started\n"
    leader = leader_of("a-1", tmp_path.name)
    made.kill()
    made.wait()
    made.stdout.close()
    gpus, stuck = GpuBook(), list[int]()
    service = replace(spec(tmp_path, *argv, name=tmp_path.name), model="another")
    launcher = ProcessLauncher(service, os.environ, gpus, kill=stuck.append)
    assert launcher.take_over() == ([], ["a-1"]) and stuck == [leader]
    assert gpus.take("b-1", 2) == ("2", "3"), "a kill that hangs in the driver"
    os.kill(leader, signal.SIGKILL)
    assert until(lambda: not session(leader))
    launcher.stop("never-1", force=True)
    assert gpus.take("c-1", 2) == ("0", "1")


def test_an_orphan_of_another_make_is_ended(parent: subprocess.Popen[str], tmp_path: Path) -> None:
    child = leader_of("a-1", tmp_path.name)
    parent.kill()
    parent.wait()
    _, ended = taking_over(tmp_path, tmp_path.name, "another-engine", "{port}").take_over()
    assert ended == ["a-1", "b-2"]
    assert until(lambda: not session(child))


def test_an_agent_that_does_not_answer_is_no_reason_to_end_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Emulated engines run on the GPUs of an agent's file; whether it is the same one is not known while it is dead."""
    emulated = emulated_spec(tmp_path)
    told: list[Mapping[str, object]] = []

    def spawn(name: str, argv: object, environment: object, about: Mapping[str, object], log: object) -> Child:
        told.append(about)
        return Child(Identity(os.getpid(), 0))

    def launcher(file: str) -> ProcessLauncher:
        return ProcessLauncher(emulated, {}, GpuBook((("GPU-1", "GPU-2"),)), lambda pid: None, lambda: file, spawn)

    launcher("/gpus").start("a-1", POOL)
    for file, taken in (("/gpus", ["a-1"]), ("", ["a-1"]), ("/others", [])):
        orphan = Orphan("contract/a-1", Child(Identity(1 << 30, 1)), json.loads(json.dumps(told[0])))
        monkeypatch.setattr("pools.launcher.orphans", lambda prefix, home, orphan=orphan: [orphan])
        found, ended = launcher(file).take_over()
        assert [one.instance_id for one in found] == taken and ended == ([] if taken else ["a-1"])


def test_workers_whose_server_is_gone_are_ended(tmp_path: Path) -> None:
    """As EngineCore is left when an API server and then the gateway are killed: nobody can reach it."""
    made = subprocess.Popen(
        [sys.executable, "-c", STARTER.replace("import time; time.sleep(600)", WORKER), str(ROOT), str(tmp_path),
         tmp_path.name, "a-1"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert made.stdout is not None and made.stdout.readline() == "started\n"
    leader = leader_of("a-1", tmp_path.name)
    assert until(lambda: len(session(leader)) == 2)
    os.kill(leader, signal.SIGKILL)
    made.kill()
    made.wait()
    made.stdout.close()
    assert len(session(leader)) == 1, "the worker outlives both"
    assert taking_over(tmp_path, tmp_path.name).take_over() == ([], [])
    assert until(lambda: not session(leader))
