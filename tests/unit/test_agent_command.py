"""The flags of `joulegate agent`: bad ones end with 2 and say why."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from core.clock import SystemClock
from joulegate import app
from simulator.gpu_state import GpuState


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--listen", "127.0.0.1:0"], "a token is required"),
        (["--listen", "nowhere"], "unix:PATH or HOST:PORT"),
        (["--lease", "0.1"], "1 to 60 s"),
        (["--tls-cert", "x"], "go together"),
        (["--token-file", "/nonexistent"], "No such file"),
        (["--emulate", "voodoo:3"], "h100"),
        (["--emulate", "h100:x"], "--emulate h100:x"),
    ],
)
def test_bad_flags_end_with_2(tmp_path: Path, flags: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["agent", "--nvml-state", str(tmp_path / "gpus"), *flags])
    assert (done.exit_code, says in done.stderr) == (2, True), done.stderr


def test_a_state_file_of_other_gpus_or_of_something_else_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "gpus"
    GpuState.of_kind(other, SystemClock(), "a100", 2)
    for content, says in ((None, "holds other GPUs"), (b"x" * 5000, "holds no emulated GPUs")):
        if content is not None:
            other.write_bytes(content)
        done = CliRunner().invoke(app, ["agent", "--nvml-state", str(other), "--emulate", "h100:2"])
        assert (done.exit_code, says in done.stderr) == (2, True), done.stderr
