"""Child processes that may outlive this gateway, and how the next one recognises them. Owns /proc and signals.

Every child leads a session of its own and carries three words in its environment: which instance it is, which gateway
started it (process id and start time), and what it was started as. So nothing has to be written down: what runs is the
truth. A child is an orphan when the gateway that is named there is not alive any more, whoever its parent is now. It
belongs to the next gateway of the same home alone: two gateways of one host may have services of one name, and while
one of them is down the other must not end what it has left."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

HOME = "home"  # the key of `about` that says whose children these are, over restarts
MARK, OWNER, ABOUT = "JOULEGATE_INSTANCE", "JOULEGATE_GATEWAY", "JOULEGATE_ABOUT"
# vLLM names its processes with setproctitle, which writes the title over the environment unless it is told not to.
KEEP_ENVIRONMENT = {"SPT_NOENV": "1"}
log = structlog.get_logger("joulegate.children")
REAP_S = 0.5  # a killed process is gone at once, unless its kernel call hangs, as in a driver that is stuck


@dataclass(frozen=True, slots=True)
class Identity:
    """A process id alone may be given to another process later; with the start time (clock ticks since boot) it is one
    process."""

    pid: int
    started: int

    def __str__(self) -> str:
        return f"{self.pid}:{self.started}"


class Child:
    """One session leader: our own child, or adopted from an earlier gateway (`popen` None: init will reap it)."""

    def __init__(self, identity: Identity, popen: subprocess.Popen[bytes] | None = None, claim: int = -1) -> None:
        self.pid = identity.pid
        self._identity = identity
        self._popen = popen
        self._claim = claim

    def alive(self) -> bool:
        if self._popen is not None:
            return self._popen.poll() is None
        return identity_of(self.pid) == self._identity

    def terminate(self) -> None:
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self, kill: Callable[[int], None]) -> None:
        """`kill` ends a whole session. Where another process has the id now, nothing is left of this one."""
        now = identity_of(self.pid)
        if now is None or now == self._identity:
            kill(self.pid)

    def reap(self) -> None:
        """After a kill: waits a moment for the end."""
        if self._popen is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(REAP_S)
        elif self._claim >= 0:
            _claim_file(self._identity).unlink(missing_ok=True)
            os.close(self._claim)
            self._claim = -1


@dataclass(frozen=True, slots=True)
class Orphan:
    """A child of a gateway that is gone. `about`: what it was started as, {} when it does not say."""

    name: str
    child: Child
    about: Mapping[str, Any]


def start(name: str, argv: Sequence[str], environment: Mapping[str, str], about: Mapping[str, Any], log: Path) -> Child:
    """OSError when the program cannot be run. Its output is added to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    me = identity_of(os.getpid())
    marks = {MARK: name, OWNER: str(me), ABOUT: json.dumps(about)}
    with log.open("ab") as output:
        popen = subprocess.Popen(
            argv,
            env={**environment, **KEEP_ENVIRONMENT, **marks},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Child(identity_of(popen.pid) or Identity(popen.pid, 0), popen)


def unmarked(environment: Mapping[str, str]) -> dict[str, str]:
    """For a child's own children that lead sessions of their own."""
    return {name: value for name, value in environment.items() if name not in (MARK, OWNER, ABOUT)}


def orphans(prefix: str, home: str) -> list[Orphan]:
    """Children of this home whose name begins with `prefix` and whose gateway is gone, oldest first; they are the
    caller's from now on, and no other gateway gets them while it lives. What a dead leader has left
    (engine workers whose API server was killed) is ended here: nobody can reach it."""
    found: list[tuple[int, int, Orphan]] = []
    leaderless: set[int] = set()
    for pid in processes():
        words = _environment(pid)
        name = words.get(MARK, "")
        if not name.startswith(prefix) or _lives(words.get(OWNER, "")):
            continue
        about = _about(words.get(ABOUT, ""))
        if about.get(HOME) != home:
            log.info("another gateway has left this running; it is left alone", instance=name, pid=pid)
            continue
        with contextlib.suppress(ProcessLookupError):
            session, identity = os.getsid(pid), identity_of(pid)
            if session != pid and identity_of(session) is None:
                leaderless.add(session)
            elif session == pid and identity is not None and (claim := _claim(identity)) is not None:
                orphan = Orphan(name, Child(identity, claim=claim), about)
                found.append((identity.started, pid, orphan))
    for session in leaderless:
        kill_session(session)
    return [orphan for *_, orphan in sorted(found, key=lambda one: one[:2])]


def kill_session(session_id: int) -> None:
    """A session is more than a process group: engine workers may have moved to a group of their own."""
    for pid in processes():
        try:
            if os.getsid(pid) == session_id:
                os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def session_cpu_s(session_id: int) -> float:
    """User and system time of its processes, and of those that they have waited for."""
    ticks = 0
    for pid in processes():
        try:
            if os.getsid(pid) == session_id:
                ticks += sum(map(int, _stat(pid)[11:15]))
        except (OSError, ValueError):
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def processes() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def identity_of(pid: int) -> Identity | None:
    """None when there is no such process, or only its exit status is left."""
    try:
        fields = _stat(pid)
    except OSError:
        return None
    return None if fields[0] in "ZX" else Identity(pid, int(fields[19]))


def _stat(pid: int) -> list[str]:
    """The fields after the name, state first (proc(5))."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _claim(identity: Identity) -> int | None:
    """A lock that ends with this process; None when another one has it. The environment of a child that was taken over
    still names its first gateway."""
    file = os.open(_claim_file(identity), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file


def _claim_file(identity: Identity) -> Path:
    return Path(tempfile.gettempdir()) / f"joulegate-{os.getuid()}-{identity.pid}-{identity.started}.claim"


def _lives(owner: str) -> bool:
    """A child without this word is older than it, or not ours: it is left alone."""
    pid, _, started = owner.partition(":")
    if not pid.isdigit() or not started.isdigit():
        return True
    return identity_of(int(pid)) == Identity(int(pid), int(started))


def _environment(pid: int) -> dict[str, str]:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (word.decode(errors="replace").partition("=") for word in words if word.startswith(b"JOULEGATE_"))
    return {name: value for name, _, value in pairs}


def _about(text: str) -> dict[str, Any]:
    try:
        told = json.loads(text)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
