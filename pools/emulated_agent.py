"""A node agent on emulated GPUs as a child of the gateway, so that one command runs the whole chain. Owns its process.

It is `joulegate agent --emulate`, unchanged. One that an earlier gateway has left running is taken over: the GPUs that
its engines run on live in its file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from pools.children import HOME, Child, kill_session, orphans, start

STOP_S = 5.0


class EmulatedAgent:
    """`folder` takes its socket, its GPUs and its log. `keep` may be called as often as one likes."""

    def __init__(
        self, name: str, emulate: str, folder: str, lease_s: float | None, environment: Mapping[str, str]
    ) -> None:
        self.address = f"unix:{folder}/agent.sock"
        self._name = f"joulegate-agent/{name}"
        self._folder = Path(folder)
        self._home = str(self._folder.resolve())
        self._environment = dict(environment)
        self._argv = [
            sys.executable, "-m", "joulegate", "agent", "--emulate", emulate, "--listen", self.address,
            "--nvml-state", f"{folder}/{emulate.replace(':', '-')}.gpus",
        ]  # fmt: skip
        if lease_s is not None:
            self._argv += ["--lease", f"{lease_s:g}"]
        self._child: Child | None = None

    def keep(self) -> None:
        """Starts it, or starts it anew. OSError when that is not possible."""
        if self._child is not None and self._child.alive():
            return
        first, self._child = self._child is None, None
        for orphan in orphans(self._name, self._home) if first else ():
            if self._child is None and orphan.about.get("argv") == self._argv:
                self._child = orphan.child
            else:
                orphan.child.kill(kill_session)
                orphan.child.reap()
        if self._child is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            log = self._folder / "agent.log"
            about = {"argv": self._argv, HOME: self._home}
            self._child = start(self._name, self._argv, self._environment, about, log)

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.alive()

    def terminate(self) -> None:
        if self._child is not None:
            self._child.terminate()

    def kill(self) -> None:
        """Its watchdog, in the same session, ends when it has undone what was set; after a SIGTERM that is done."""
        if self._child is not None:
            self._child.kill(kill_session)
            self._child.reap()
