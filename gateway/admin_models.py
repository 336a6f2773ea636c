"""Bodies and answers of the admin API, as the OpenAPI page shows them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Millis = Annotated[float, Field(gt=0, le=86_400_000, description="milliseconds")]


Mode = Literal["shadow", "advise", "enforce"]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class InstanceView(BaseModel):
    id: str
    service: str
    pool: str
    url: str
    tp: int
    clock_mhz: int
    state: Literal["starting", "ready", "draining", "parked", "stopped", "failed"]
    reason: str
    since_s: float = Field(description="seconds in this state")
    requests: int
    sequences: int
    kv_tokens: int = Field(description="tokens of KV cache reserved by running requests, at the 90th percentile")
    breaker_open: bool
    adopted: bool = Field(description="runs elsewhere; its lifecycle is not the controller's")
    gpus: list[str] = Field(description="UUIDs, or indices where no node agent says which GPUs there are")
    knob: str = Field(description="why its clock cannot be set now; empty while it can")


class PoolView(BaseModel):
    name: str
    serves: list[str]
    wanted: int
    tp: int
    clock_mhz: int
    slots: int
    queued: int


class SloView(BaseModel):
    ttft_p99_ms: dict[str, float]
    tbt_p99_ms: float


class PredictorView(BaseModel):
    """What foretells the lengths of a service's answers, and how it does."""

    kind: Literal["model", "running"]
    model: str = Field(description="file, or shipped; empty: none")
    card: dict[str, str | int | float] = Field(description="what the model was trained on")
    answers: int = Field(description="of which the q90 was judged")
    q90_held: float | None = Field(description="share of them that stayed within it; the promise is 0.9")
    q90_offset: float = Field(description="doublings by which the q90 is moved now to hold its promise")
    templates: int = Field(description="applications whose own answers are known")
    keep_prompts: bool
    challenger: str = Field(description="file of a model that has to be better first; empty: none")
    challenger_answers: int = Field(description="of the present window of 500")
    challenger_windows: int = Field(description="windows in which it was not better")
    challenger_gain: float | None = Field(description="mean loss, in doublings, that it saves in this window")


class ServiceView(BaseModel):
    name: str
    model: str
    launcher: str
    context_tokens: int
    slo: SloView
    edges: dict[str, list[int]]
    queued: int
    bytes_per_token: float = Field(description="calibrated estimate of prompt bytes per token")
    predictor: PredictorView
    pools: list[PoolView]
    instances: list[InstanceView]


class StateView(BaseModel):
    generation: int
    mode: Mode
    in_flight: int
    closing: bool
    ticks: int
    controller_error: str
    services: list[ServiceView]


class JobView(BaseModel):
    id: str
    kind: str
    target: str
    state: Literal["running", "done"]
    started_t: float = Field(description="Unix time")


class Changed(BaseModel):
    generation: int
    changes: list[str]


class AddInstance(Strict):
    """`url` for a server that somebody else runs; without it the pool gets one more of its own."""

    service: str
    pool: str
    url: str | None = Field(default=None, pattern=r"^http://[A-Za-z0-9.\[\]:_-]+$", max_length=255)


class PoolChange(Strict):
    serves: list[Literal["S", "M", "L"]] | None = Field(default=None, min_length=1, max_length=3)
    instances: int | None = Field(default=None, ge=0, le=1024, description="holds against any plan, until let go")
    pinned: Literal[False] | None = Field(default=None, description="false: the plan may change it again")


class SloChange(Strict):
    ttft_p99_ms: dict[Literal["S", "M", "L"], Millis] | None = None
    tbt_p99_ms: Millis | None = None


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | int | None = None


class ErrorView(BaseModel):
    error: ErrorDetail
