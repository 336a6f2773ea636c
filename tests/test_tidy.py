"""The style as a test: limits on size, calls that have one owner, no globals, no side effects of an import."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("core", "profiles", "predictor", "pools", "controller", "simulator", "gateway", "agent", "commands")
FILES = sorted([ROOT / "joulegate.py", *(f for p in PACKAGES for f in (ROOT / p).rglob("*.py"))])
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 70
OWNERS = {  # what may be called only in the named file
    "time": {"core/clock.py"},
    "pynvml": {"pools/nvml.py"},
    "ortools": {"controller/solver.py"},
}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("path", FILES, ids=name)
def test_files_and_functions_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_FILE_LINES, f"{name(path)}: split it by what it owns"
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= MAX_FUNCTION_LINES, f"{name(path)}:{node.lineno} {node.name} has {lines} lines"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_time_and_hardware_have_one_owner(path: Path) -> None:
    for module in imported(tree(path)):
        allowed = OWNERS.get(module)
        assert allowed is None or name(path) in allowed, f"{name(path)} imports {module}: only {allowed} may"
    if name(path) != "core/clock.py":
        calls = [n for n in ast.walk(tree(path)) if isinstance(n, ast.Call) and ast.unparse(n.func) == "asyncio.sleep"]
        assert not calls, f"{name(path)}:{calls[0].lineno}: sleep through a Clock"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_no_global_statements_and_a_docstring_each(path: Path) -> None:
    module = tree(path)
    assert not [n for n in ast.walk(module) if isinstance(n, ast.Global)], f"{name(path)}: pass the value instead"
    if path.name == "__init__.py":
        assert not module.body, f"{name(path)} must stay empty"
    else:
        assert ast.get_docstring(module), f"{name(path)}: say what it owns and what it refuses to do"


def test_imports_start_nothing() -> None:
    modules = [
        name(f).removesuffix(".py").replace("/", ".") for f in FILES if f.name not in ("__init__.py", "__main__.py")
    ]
    code = (
        "import threading, os, sys, importlib\n"
        f"before = set(os.listdir('/proc/self/fd'))\nfor m in {modules!r}: importlib.import_module(m)\n"
        "left = [os.readlink(f'/proc/self/fd/{n}') for n in set(os.listdir('/proc/self/fd')) - before "
        "if os.path.exists(f'/proc/self/fd/{n}')]\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "assert not [l for l in left if l.startswith('socket:')], left\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
