"""Which Python `make install` takes: deploy/choose_python.sh, asked with interpreters that answer what a test says."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy" / "choose_python.sh"
GOOD, OTHER_VERSION, SHARED, NO_HEADERS = 0, 1, 1, 3


def interpreter(folder: Path, name: str, weight: int | None) -> str:
    """A program that answers the probe with faults of `weight`; None: one that cannot be used."""
    path = folder / name
    path.write_text(
        "#!/bin/sh\n" + ("exit 1" if weight is None else f"echo '{weight}|/at a/{name}|/at a/{name} 3'") + "\n"
    )
    path.chmod(0o755)
    return str(path)


def choose(*candidates: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["/bin/sh", str(SCRIPT), *candidates], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("weights", "chosen"),
    [
        ([GOOD, GOOD], 0),
        ([SHARED, GOOD], 1),
        ([SHARED, None, GOOD, GOOD], 2),
        ([SHARED, NO_HEADERS], 0),
        ([SHARED, OTHER_VERSION], 0),
        ([None, NO_HEADERS], 1),
        ([NO_HEADERS, SHARED + OTHER_VERSION, SHARED], 2),
    ],
)
def test_least_faults_first_of_equals(tmp_path: Path, weights: list[int | None], chosen: int) -> None:
    names = [f"python{number}" for number in range(len(weights))]
    done = choose(
        *(interpreter(tmp_path, name, weight) for name, weight in zip(names, weights, strict=True)), "/not/there"
    )
    assert done.returncode == 0
    assert done.stdout == f"/at a/python{chosen}\n"
    assert f"Python: /at a/python{chosen} 3" in done.stderr


def test_none_that_can_be_used_is_an_error(tmp_path: Path) -> None:
    done = choose(interpreter(tmp_path, "python3", None))
    assert done.returncode == 1
    assert done.stdout == ""
    assert "PYTHON=" in done.stderr


def test_a_real_interpreter_answers_the_probe() -> None:
    pytest.importorskip("ensurepip")  # an environment may be of a Python that can make none itself
    done = choose(sys.executable)
    assert done.stdout == f"{sys.executable}\n"
    assert ".".join(map(str, sys.version_info[:3])) in done.stderr
