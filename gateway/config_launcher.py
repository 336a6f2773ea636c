"""The section of a launcher in the configuration: how the instances of a service come to be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from gateway.config_section import Items, Problems, Seconds, Section

PLACEHOLDERS = ("port", "tp", "model", "slots", "step_tokens", "clock_mhz", "gpus", "stop_s")


class LauncherConfig(Section):
    kind: Literal["emulated", "process", "static"] = Field(
        description="emulated = joulegate's own engine, process = `argv`, static = servers at `urls` run by others."
    )
    argv: Items[str] = Field(default=(), description="Process only: the command. See below for {port} and others.")
    env: Mapping[str, str] = Field(default={}, description="Added to the environment; the same {...} as in `argv`.")
    start_timeout_s: Seconds = Field(default=120.0, description="Time an instance has to become healthy.")
    start_delay_s: float = Field(
        default=0.0,
        ge=0,
        le=86_400,
        description="Emulated only: time before an instance answers, as if it loaded weights.",
    )
    stop_timeout_s: Seconds = Field(default=10.0, description="Time between SIGTERM and SIGKILL.")
    log_dir: str = Field(default="build/logs", min_length=1, description="Folder for the output of the instances.")
    agent: str = Field(
        default="",
        description="Name of the node agent on this host: it sets the clocks, and instances get its GPUs by UUID.",
    )
    sleep_level: Literal[1, 2] = Field(
        default=1,
        description="How what is parked sleeps: 1 keeps weights in host memory, 2 reads them anew at the wake.",
    )
    weights: str = Field(
        default="",
        description="Process only: folder of the weights. They are read into the page cache while an instance starts.",
    )

    def check(self) -> Problems:
        if self.kind == "process" and not self.argv:
            yield ("argv",), "the process launcher needs a command here"
        if self.kind != "process" and self.weights:
            yield ("weights",), f"only the process launcher reads weights; kind is {self.kind}"
        if self.kind != "process" and self.argv:
            yield ("argv",), f"only the process launcher runs a command; kind is {self.kind}"
        texts = [*self.argv, *self.env.values()]
        if self.kind == "process" and self.argv and not any("{port}" in text for text in texts):
            yield ("argv",), "{port} appears nowhere; each instance needs a port of its own"
        for word in sorted({word for text in texts for word in re.findall(r"\{([a-z_]+)\}", text)} - {*PLACEHOLDERS}):
            yield ("argv",), f"{{{word}}} is not known; known: {' '.join(f'{{{p}}}' for p in PLACEHOLDERS)}"
