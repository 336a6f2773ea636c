"""The agent's page for Prometheus: what each GPU's counters and gauges say at the scrape."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.hardware import Reading
from agent.node import Node
from pools.gpu import GpuError


async def page(node: Node) -> str:
    """A GPU that cannot be read has no row but `joulegate_agent_clock_knob`, which says that its knob is off."""
    readings: list[Reading] = []
    for uuid in node.hardware.devices:
        try:
            readings += await node.read([uuid])
        except GpuError:
            continue
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Rows(_families(node, readings)))
    return generate_latest(registry).decode()


class _Rows(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def _families(node: Node, readings: list[Reading]) -> list[Metric]:
    joules = CounterMetricFamily("joulegate_agent_energy_joules", "Energy since the driver was loaded.", labels=["gpu"])
    watts = GaugeMetricFamily("joulegate_agent_watts", "Power now, and a mean over a second.", labels=["gpu", "kind"])
    clock = GaugeMetricFamily("joulegate_agent_clock_mhz", "SM clock now.", labels=["gpu"])
    celsius = GaugeMetricFamily("joulegate_agent_temperature_celsius", "GPU temperature.", labels=["gpu"])
    locked = GaugeMetricFamily("joulegate_agent_set_clock_mhz", "Highest clock allowed; 0 = default.", labels=["gpu"])
    knob = GaugeMetricFamily("joulegate_agent_clock_knob", "1 = the clock can be set.", labels=["gpu", "why"])
    for reading in readings:
        gpu = [reading.uuid]
        joules.add_metric(gpu, reading.energy_j)
        clock.add_metric(gpu, reading.clock_mhz)
        celsius.add_metric(gpu, reading.temperature_c)
        for kind, value in (("instant", reading.watts.instant_w), ("average", reading.watts.average_w)):
            if value is not None:
                watts.add_metric([*gpu, kind], value)
    for uuid in node.hardware.devices:
        error = node.hardware.off.get(uuid)
        locked.add_metric([uuid], node.hardware.applied.get(uuid, 0))
        knob.add_metric([uuid, error.code if error else ""], 0 if error else 1)
    return [joules, watts, clock, celsius, locked, knob]
