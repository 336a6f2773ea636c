"""A short chaos run: all faults, a fixed seed, every answer checked (tests/chaos; the long ones are run by hand)."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_short_run(tmp_path: Path) -> None:
    out = tmp_path / "chaos.json"
    argv = [
        sys.executable,
        "-m",
        "tests.chaos.run",
        "--duration",
        "20",
        "--seed",
        "1",
        "--clients",
        "6",
        "--out",
        str(out),
    ]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert out.exists(), done.stderr[-3000:]
    said = json.loads(out.read_text())
    bad = {kind: said[kind] for kind in ("lost", "truncated", "duplicated", "malformed")}
    assert not any(bad.values()), said["examples"]
    assert not any(said["leaked"].values()), said["leaked"]
    assert not said["not_as_ordered"]
    assert said["correct"] > 20 and sum(said["faults"].values()) >= 3
    assert done.returncode == 0, done.stderr[-3000:]
