"""What starting, stopping, parking, waking and re-sharding has cost, as operators see it: /admin/transitions. Owns the
view alone."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from gateway.wiring import Running


class TransitionView(BaseModel):
    service: str
    kind: Literal["start", "stop", "park", "wake", "reshard"]
    tp: int
    from_tp: int = Field(description="of a re-shard: the TP that went; else 0")
    count: int = Field(description="how many the means are over: the newest 20 at most")
    seconds: float
    joules: float | None = Field(description="null: neither counted nor modelled")
    quality: Literal["measured", "modelled"]
    cpu_s: float | None = Field(description="processor seconds of the instance's processes; null: not known")


def make_transition_routes(running: Running) -> APIRouter:
    router = APIRouter()

    async def transitions() -> list[TransitionView]:
        """Means of what was recorded here; the next plan takes them as its switching costs."""
        return [
            TransitionView.model_validate({
                "service": one.kind.service, "kind": one.kind.kind, "tp": one.kind.tp, "from_tp": one.kind.from_tp,
                "count": one.count, "seconds": round(one.seconds, 3), "quality": one.quality,
                "joules": None if one.joules is None else round(one.joules, 1),
                "cpu_s": None if one.cpu_s is None else round(one.cpu_s, 2),
            })
            for one in running.shared.transitions.costs()
        ]  # fmt: skip

    router.add_api_route("/transitions", transitions, methods=["GET"])
    return router
