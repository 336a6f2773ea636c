"""A node agent that a gateway has started for itself: the next gateway of the same folder has it, and nobody else's."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pools.children import MARK
from pools.emulated_agent import EmulatedAgent
from tests.contract.test_launcher_contract import ROOT, leaders, session
from tests.fakes import until

STARTER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pools.emulated_agent import EmulatedAgent
EmulatedAgent(sys.argv[3], "h100:2", sys.argv[2], None, os.environ).keep()
print("started", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="jg-") as name:  # the path of a socket has to be short
        yield Path(name)


def agents(name: str) -> list[int]:
    return list(leaders(f"{MARK}=joulegate-agent/{name}".encode()))


def test_an_agent_goes_to_the_next_gateway_of_its_folder(folder: Path) -> None:
    name = folder.name
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(ROOT), str(folder), name],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert starter.stdout is not None and starter.stdout.readline() == "started\n"
    assert until(lambda: len(agents(name)) == 1)
    (pid,) = agents(name)
    starter.kill()
    starter.wait()
    starter.stdout.close()
    mine = EmulatedAgent(name, "h100:2", str(folder), None, os.environ)
    other = EmulatedAgent(name, "h100:4", str(folder / "other"), None, os.environ)
    try:
        other.keep()
        assert until(lambda: len(agents(name)) == 2), "another folder's gateway starts its own"
        assert pid in agents(name), "and ends nobody's"
        mine.keep()
        assert mine.alive and len(agents(name)) == 2, "taken over, not started twice"
        mine.terminate()
        assert until(lambda: pid not in agents(name)), "it was this one"
    finally:
        for one in (mine, other):
            one.kill()
    assert until(lambda: not session(pid) and not agents(name))
