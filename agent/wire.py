"""The bodies of the agent's API, and how its values become them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from agent.hardware import Reading
from agent.lease import Lease
from agent.node import Confirmed
from core.errors import JoulegateError
from pools.gpu import GpuError

RENEWALS = 5  # in a lease's time: two lost ones in a row are no harm


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


Uuids = Annotated[list[str], Field(min_length=1, max_length=64)]


class Acquire(Body):
    holder: str = Field(min_length=1, max_length=128, description="Who asks; appears in refusals and logs.")
    uuids: Uuids
    lease_s: float | None = Field(default=None, description="At most the agent's own; null = the agent's own.")


class SetClock(Body):
    uuids: Uuids
    mhz: int = Field(gt=0, le=10_000, description="Highest clock; the next lower one of the GPU's table is set.")


class Reset(Body):
    uuids: Uuids


def lease_row(lease: Lease, off: Mapping[str, GpuError]) -> dict[str, Any]:
    return {
        "epoch": lease.epoch,
        "holder": lease.holder,
        "uuids": sorted(lease.uuids),
        "lease_s": lease.lease_s,
        "renew_s": min(1.0, lease.lease_s / RENEWALS),
        "off": off_rows(off),
    }


def off_rows(off: Mapping[str, GpuError]) -> dict[str, Any]:
    return {uuid: {"code": error.code, "message": error.message} for uuid, error in off.items()}


def confirmed_row(done: Confirmed) -> dict[str, Any]:
    members = [{"uuid": m.uuid, "clock_mhz": m.clock_mhz, "state": m.state, "reasons": m.reasons} for m in done.members]
    return {"mhz": done.mhz, "changed": done.changed, "gpus": members}


def reading_row(reading: Reading) -> dict[str, Any]:
    return {
        "uuid": reading.uuid,
        "energy_j": reading.energy_j,
        "instant_w": reading.watts.instant_w,
        "average_w": reading.watts.average_w,
        "temperature_c": reading.temperature_c,
        "clock_mhz": reading.clock_mhz,
        "reasons": reading.reasons,
    }


def error_row(error: JoulegateError) -> dict[str, Any]:
    row = {"type": error.type, "code": error.code, "message": error.message, "param": error.param}
    return {"error": row | ({"retry_after_s": error.retry_after_s} if error.retry_after_s is not None else {})}
