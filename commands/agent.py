"""`joulegate agent`: the node agent, on real GPUs or on emulated ones. Owns its flags, and what emulation sets up."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from commands.output import fail

if TYPE_CHECKING:
    from agent.run import AgentOptions
    from pools.gpu import GpuControl

EMULATING = "FAKE_NVML_STATE"
LIBRARY = "NVML's stand-in (libnvidia-ml.so.1 made by the C compiler here)"
IN_PROCESS = "in the agent's own process (no C compiler here)"


def agent(
    listen: Annotated[
        str, typer.Option(envvar="JOULEGATE_AGENT_LISTEN", help="unix:PATH or HOST:PORT.")
    ] = "unix:/run/joulegate/agent.sock",
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token clients must send; or JOULEGATE_AGENT_TOKEN itself.")
    ] = None,
    tls_cert: Annotated[str | None, typer.Option(help="PEM certificate for HOST:PORT.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="Its key.")] = None,
    gpus: Annotated[
        str, typer.Option(envvar="JOULEGATE_AGENT_GPUS", help="UUIDs of the GPUs to own, with commas; default: all.")
    ] = "",
    lease: Annotated[
        float, typer.Option(envvar="JOULEGATE_AGENT_LEASE_S", help="Seconds without renewal until default clocks.")
    ] = 5.0,
    power_limit_w: Annotated[
        float | None, typer.Option(help="Power limit of every GPU, set at the start and left in place.")
    ] = None,
    emulate: Annotated[str | None, typer.Option(help="Emulated GPUs instead, for example h100:8.")] = None,
    nvml_state: Annotated[Path, typer.Option(help="File of the emulated GPUs.")] = Path("build/gpus"),
    reset: Annotated[bool, typer.Option("--reset", help="Only put all GPUs to default clocks, then end.")] = False,
) -> None:
    """Run the node agent: the one program that sets GPU clocks. Every clock is undone when its lease is not renewed,
    when the agent ends, and when it is killed. API, privileges and faults: docs/agent.md.
    """
    emulated = emulate is not None and _emulate(emulate, nvml_state)
    from agent.run import AgentOptions

    options = AgentOptions(
        listen=listen,
        token=_token(token_file),
        tls_cert=tls_cert,
        tls_key=tls_key,
        gpus=tuple(uuid for uuid in gpus.split(",") if uuid),
        lease_s=lease,
        power_limit_w=power_limit_w,
        emulation=LIBRARY if EMULATING in os.environ else IN_PROCESS if emulate is not None else "",
        state_file=os.environ.get(EMULATING) or ("" if emulate is None else str(nvml_state.absolute())),
    )
    problems = "\n".join(options.problems())
    if problems and not reset:
        fail(problems, 2)
    if emulate is not None and not emulated:
        _run_without_library(options, nvml_state, reset)
    else:
        _run_on_nvml(options, reset)


def _token(path: Path | None) -> str | None:
    if path is None:
        return os.environ.get("JOULEGATE_AGENT_TOKEN") or None
    try:
        return path.read_text().strip() or fail(f"{path} is empty: a token is needed", 2)
    except OSError as error:
        fail(f"{path}: {error.strerror}", 2)


def _emulate(wanted: str, state: Path) -> bool:
    """Starts this command anew with the library in its path, as a loader reads that only at the start. True in the
    process that has it; False where no compiler can make it."""
    from core.clock import SystemClock
    from simulator.gpu_library import NoCompiler, build, environment
    from simulator.gpu_state import GpuState, uuids_of

    if os.environ.get(EMULATING) == str(state.absolute()):
        return True
    kind, _, count = wanted.partition(":")
    try:
        if not state.exists():
            GpuState.of_kind(state, SystemClock(), kind, int(count or 1))
        if [gpu.uuid for gpu in GpuState(state, SystemClock()).gpus()] != uuids_of(kind, int(count or 1)):
            raise ValueError(f"{state} holds other GPUs: remove it, or name another with --nvml-state")
        library = build()
    except (ValueError, OSError) as error:
        fail(f"--emulate {wanted}: {error}", 2)
    except NoCompiler as error:
        print(f"emulated GPUs without a library: {error}", file=sys.stderr)  # noqa: T201
        return False
    _start_anew(environment(library, state, os.environ))


def _start_anew(environment: dict[str, str]) -> NoReturn:
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _run_on_nvml(options: AgentOptions, reset: bool) -> None:
    from agent.run import watchdog_argv
    from pools.gpu import GpuError
    from pools.nvml import NvmlGpu

    try:
        with NvmlGpu() as gpu:
            _run(options, gpu, watchdog_argv(options.lease_s), reset)
    except GpuError as error:
        fail(f"no GPUs to own: {error}", 1)


def _run_without_library(options: AgentOptions, state: Path, reset: bool) -> None:
    from core.clock import SystemClock
    from simulator.fake_gpu import FakeGpu
    from simulator.gpu_state import GpuState

    watchdog = [sys.executable, "-m", "commands.fake_watchdog", str(0.8 * options.lease_s), str(state)]
    with FakeGpu(GpuState(state, SystemClock())) as gpu:
        _run(options, gpu, watchdog, reset)


def _run(options: AgentOptions, gpu: GpuControl, watchdog: list[str], reset: bool) -> None:
    import uvloop

    from agent.run import CannotListen, run_agent
    from gateway.logs import set_up_logs
    from pools.gpu import NoGpu

    if reset:
        _reset(gpu, options.gpus)
        return
    set_up_logs(sys.stderr)
    try:
        uvloop.run(run_agent(options, gpu, watchdog))
    except CannotListen as error:
        fail(str(error), 1)
    except (NoGpu, ValueError, OSError) as error:
        fail(str(error), 2)


def _reset(gpu: GpuControl, only: tuple[str, ...]) -> None:
    """Every GPU is tried; exit status 1 when one refuses."""
    from pools.gpu import GpuError

    failed = []
    for device in gpu.devices():
        try:
            if not only or device.uuid in only:
                gpu.unlock_clock(device.uuid)
        except GpuError as error:
            failed.append(f"{device.uuid}: {error}")
    if failed:
        fail("\n".join(failed), 1)
