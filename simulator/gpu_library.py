"""Makes libnvidia-ml.so.1 out of fake_nvml.c, once per version of it. Owns the compiler's command and the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")
NAME = "libnvidia-ml.so.1"
FLAGS = ("-O2", "-Wall", "-shared", "-fPIC", f"-Wl,-soname,{NAME}")


class NoCompiler(RuntimeError):
    """There is no C compiler here, or it failed."""


def build(cache: Path = Path("build")) -> Path:
    """The folder that holds the library. Two processes may build at once: each puts a whole file in place."""
    source = SOURCE.read_bytes()
    folder = (cache / "fake-nvml" / hashlib.sha256(source).hexdigest()[:12]).absolute()
    if (folder / NAME).exists():
        return folder
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoCompiler("no C compiler (cc, gcc or clang)")
    folder.mkdir(parents=True, exist_ok=True)
    half = folder / f"{NAME}.{os.getpid()}"
    done = subprocess.run([compiler, *FLAGS, "-o", str(half), str(SOURCE)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoCompiler(f"{compiler} failed: {done.stderr.strip()}")
    half.replace(folder / NAME)
    return folder


def environment(library: Path, state: Path, base: Mapping[str, str]) -> dict[str, str]:
    """Of a process that is to see the GPUs of `state` through the library in the folder `library`."""
    search = [str(library), *filter(None, [base.get("LD_LIBRARY_PATH", "")])]
    return {**base, "LD_LIBRARY_PATH": ":".join(search), "FAKE_NVML_STATE": str(state.absolute())}
