"""Finds out what serves at a URL and makes it a target: the emulated engine, or vLLM with the energy meter there is.

Owns the choice of the meter (the engine's own, a GPU's counter, CPU-seconds of a process) and refuses what cannot be
measured: no meter, a sped-up clock, a clock that nothing here may set.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from core.clock import Clock
from core.errors import UpstreamFailed
from pools.connection import Wires
from pools.gpu import Device, NoGpu
from pools.launcher import place_of
from pools.measure import About, ClockKnob
from pools.measure_http import EmulatedKnob, HttpTarget, Instance, Server
from pools.measure_thermal import Thermal
from pools.meters import CpuSecondsMeter, EmulatedMeter, EnergyMeter, NvmlMeter
from pools.nvml import NvmlGpu

CONNECT_S = 5.0


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """What the operator says of the server at `url`. `gpu` names the card of an emulated one."""

    url: str
    model: str = ""
    tp: int = 1
    gpu: str = ""
    pid: int = 0
    uuids: tuple[str, ...] = ()


@asynccontextmanager
async def open_target(options: LiveOptions, clock: Clock) -> AsyncIterator[tuple[HttpTarget, Instance]]:
    """ValueError or a JoulegateError when the server cannot be measured."""
    place = place_of(options.url)
    wires = Wires(place.host, place.port, CONNECT_S)
    try:
        server = Server(wires)
        if await server.is_emulated():
            target, instance = await _emulated(options, wires, server, clock)
            try:
                yield target, instance
            finally:
                await target.configure(instance.tp, instance.clock_mhz)  # the clock it was found with
        elif options.pid:
            meter = CpuSecondsMeter(options.pid, clock)
            about = await _about(options, server, options.gpu or "cpu", meter, "vllm")
            yield _target(options, wires, about, meter, clock)
        else:
            with NvmlGpu() as gpu:
                devices = _chosen(gpu.devices(), options)
                uuids = [device.uuid for device in devices]
                nvml = NvmlMeter(gpu, uuids, clock)
                about = await _about(options, server, devices[0].name, nvml, "vllm", devices[0].driver)
                yield _target(options, wires, about, nvml, clock, Thermal(gpu, uuids))
    finally:
        wires.close()


async def _emulated(options: LiveOptions, wires: Wires, server: Server, clock: Clock) -> tuple[HttpTarget, Instance]:
    state = await server.emulated_state()
    if state["speed"] != 1:
        raise ValueError(f"the emulated engine runs at {state['speed']:g} times real time; start it with --speed 1")
    meter = EmulatedMeter(server.emulated_state)
    about = await _about(options, server, options.gpu or "emulated", meter, "emulated-vllm")
    instance = Instance(about.model, int(state["tp"]), int(state["clock_mhz"]))
    return HttpTarget(wires, instance, about, meter, clock, knob=EmulatedKnob(server)), instance


def _target(
    options: LiveOptions, wires: Wires, about: About, meter: EnergyMeter, clock: Clock, thermal: Thermal | None = None
) -> tuple[HttpTarget, Instance]:
    # Clocks of a real GPU are the node agent's to set, and a measurement asks it for none: they stay what they are.
    knob: ClockKnob | None = None
    instance = Instance(about.model, options.tp, 0)
    return HttpTarget(wires, instance, about, meter, clock, knob=knob, thermal=thermal), instance


async def _about(
    options: LiveOptions, server: Server, gpu: str, meter: EnergyMeter, engine: str, driver: str = ""
) -> About:
    models = [str(one["id"]) for one in (await server.json(b"/v1/models"))["data"]]
    model = options.model or models[0]
    if model not in models:
        raise ValueError(f"the server at {options.url} serves {', '.join(models)}, not {model}")
    status, body = await server.call(b"GET", b"/version")
    if status != 200:
        raise UpstreamFailed(f"/version answered {status}")
    return About(
        gpu=gpu,
        model=model,
        engine=engine,
        engine_version=str(json.loads(body)["version"]),
        energy_counter=meter.counter,
        origin="emulated" if engine == "emulated-vllm" else "measured",
        driver=driver,
    )


def _chosen(devices: Sequence[Device], options: LiveOptions) -> list[Device]:
    """The GPUs of the instance: those named, or all there are if they are as many as its TP."""
    if options.uuids:
        missing = set(options.uuids) - {device.uuid for device in devices}
        if missing:
            raise NoGpu(f"no GPU here has the UUID {', '.join(sorted(missing))}")
        return [device for device in devices if device.uuid in options.uuids]
    if len(devices) == options.tp:
        return list(devices)
    raise ValueError(f"{len(devices)} GPUs here and TP{options.tp}: name those of the instance with --gpu-uuids")
