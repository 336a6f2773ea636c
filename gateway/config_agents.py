"""The section of a node agent in the configuration."""

from __future__ import annotations

import re

from pydantic import Field

from gateway.config_section import VARIABLE, Items, Name, Problems, Section


class AgentConfig(Section):
    url: str = Field(default="", description="unix:PATH, http://HOST:PORT or https://HOST:PORT of `joulegate agent`.")
    token_env: str = Field(default="", pattern=VARIABLE, description="Environment variable that holds its token.")
    ca: str = Field(default="", description="PEM file of who signed an https agent. Empty = the system's.")
    lease_s: float | None = Field(
        default=None, ge=1, le=60, description="Seconds without renewal until default clocks. null = the agent's own."
    )
    islands: Items[Items[Name]] = Field(
        default=(),
        description="UUIDs of the GPUs that instances may use, in groups that NVLink joins; no instance straddles two. "
        "Empty = all of the agent's, `controller.node_gpus` at a time.",
    )
    emulate: str = Field(
        default="",
        pattern=r"^((h100|h200|a100):[1-9][0-9]?)?$",
        description="Instead of a url: an agent of the gateway's own on emulated GPUs, for example h100:16.",
    )
    folder: str = Field(
        default="build/agent", min_length=1, max_length=90, description="Socket, GPUs and log of such an agent."
    )

    def check(self) -> Problems:
        if bool(self.url) == bool(self.emulate):
            yield ("url",), "an agent has a url or emulates GPUs, one of the two"
        if self.url and not re.match(r"unix:.|https?://[^/]+$", self.url):
            yield ("url",), "must be unix:PATH, http://HOST:PORT or https://HOST:PORT"
        uuids = [uuid for island in self.islands for uuid in island]
        if len(set(uuids)) < len(uuids):
            yield ("islands",), "names a GPU twice"
