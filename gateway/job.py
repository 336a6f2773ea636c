"""What is known of one request while it lives, and its row in the run log when it has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Struct, field

from controller.planning import ServicePlan
from core.request import Ask, Outcome
from gateway.asked import asked_of
from gateway.auth import Identity
from gateway.client import Client
from gateway.dialect import Route
from gateway.parse import Parsed
from gateway.retry import Tries
from gateway.service import Service, Sized
from gateway.timing import Timing
from gateway.token_stream import Answer
from pools.queue import NONE
from pools.router import Weighed
from pools.stints import Bill, Ended, Stint
from predictor.features import NAMES


@dataclass(slots=True)
class Seam:
    """A stream lost its instance, as was noticed at `at_s`, for the reason `why`, and went on elsewhere. `ttft_s`: from
    the sending of its rest to the next text, which is a part of `pause_s`."""

    at_s: float
    instance: str
    why: str
    pause_s: float = 0.0
    ttft_s: float = 0.0

    def row(self, ended_t: float, ended_s: float) -> dict[str, object]:
        return {
            "t": round(ended_t - (ended_s - self.at_s), 4), "instance": self.instance, "why": self.why,
            "pause_s": round(self.pause_s, 6), "ttft_s": round(self.ttft_s, 6),
        }  # fmt: skip


class Job(Struct, eq=False):
    """What is known of a request so far; becomes its row."""

    request_id: str
    route: Route
    client: Client
    identity: Identity
    received_s: float
    service: Service | None = None
    parsed: Parsed | None = None
    sized: Sized | None = None
    timing: Timing | None = None
    instance: str = ""
    pool: str = ""
    attempts: int = 0
    status: int = 0
    error: str = ""
    usage: tuple[int, int] | None = None
    refused: Mapping[str, float] = NONE  # instances that failed it, and when; inf: for good
    blamed: bool = False  # an instance that answered it with a failure has been counted as failing
    keeps_ids: bool = False  # the instance was asked for the ids of its tokens, for the gateway's sake
    answer: Answer | None = None  # of a stream that could go on elsewhere
    body: bytes = b""  # as the instances get it
    tries: Tries = field(default_factory=Tries)
    sent_s: float | None = None  # when the attempt under way was sent
    lost: Seam | None = None  # what the client waits for its stream to go on from
    seams: list[Seam] = []
    gave_up: str = ""  # why it was not tried again
    ask: Ask | None = None
    weighed: Weighed | None = None  # what the instance of the last attempt was chosen from
    plan: ServicePlan | None = None  # in force when it arrived
    reserved: dict[str, float] = {}  # tokens and joules of its key's budget, until settled
    bill: Bill | None = None  # of its joules; none before it was sent anywhere
    stint: Stint | None = None  # of the attempt under way, or of the last one

    @property
    def progress(self) -> int:
        """Grows with every arrival of tokens that the client has got."""
        return self.answer.progress if self.answer is not None and self.client.started else 0

    def went_on(self, now_s: float) -> None:
        """Text has come; after a loss that ends the client's pause."""
        if self.lost is not None:
            self.lost.pause_s = now_s - self.lost.at_s
            self.lost.ttft_s = now_s - (self.sent_s or now_s)
            self.seams.append(self.lost)
            self.lost = None


def make_row(job: Job, outcome: Outcome, wall_s: float, now_s: float) -> dict[str, object]:
    """One request in the run log. No text of any prompt or answer."""
    timing, sized, parsed, spec = job.timing, job.sized, job.parsed, job.service.spec if job.service else None
    output_tokens = job.usage[1] if job.usage else 0
    stream = parsed.stream if parsed else False
    size_class = sized.name if sized and job.route.generates else None
    row: dict[str, object] = {
        "kind": "request", "t": wall_s, "id": job.request_id, "key": job.identity.name, "route": job.route.path,
        "service": spec.name if spec else None, "stream": stream, "class": size_class,
        "pool": job.pool or None, "instance": job.instance or None, "outcome": outcome.value, "status": job.status,
        "error": job.error or None, "attempts": job.attempts, "e2e_s": round(now_s - job.received_s, 6),
    }  # fmt: skip
    if sized is not None:
        p = sized.prediction
        row["predicted"] = {
            "p": [round(x, 4) for x in p.p],
            "q50": p.q50_tokens,
            "q90": p.q90_tokens,
            "q99": p.q99_tokens,
        }
        row |= _read(job, sized)
        row["input_tokens"] = job.usage[0] if job.usage else sized.input_tokens
        row["input_estimate"] = sized.input_tokens
        row["output_tokens"] = output_tokens if job.usage else None
    if job.gave_up:
        row["gave_up"] = job.gave_up
    if timing is not None:
        row["queue_s"] = round(timing.queue_s, 6)
        row["overhead_ms"] = round(timing.own_s * 1000, 3)
        row["ttft_s"] = round(timing.ttft_s, 6) if timing.ttft_s is not None and stream else None
        row["gaps"], row["gaps_late"] = timing.gaps, timing.gaps_late
        if job.seams:
            row["moves"], row["seam_s"] = len(job.seams), round(max(seam.pause_s for seam in job.seams), 6)
            row["seams"] = [seam.row(wall_s, now_s) for seam in job.seams]
        if job.route.generates and outcome not in (Outcome.CLIENT_GONE, Outcome.CLIENT_ERROR):
            kept = timing.attained(stream=stream, output_tokens=output_tokens, ended_s=now_s)
            row["attained"] = outcome is Outcome.COMPLETED and kept
    return row


def ended_of(row: dict[str, object]) -> Ended:
    """What the ledger keeps of the row of a request that was sent to an instance."""
    wall_s, tokens, output = row["t"], row.get("input_tokens"), row.get("output_tokens")
    assert isinstance(wall_s, float)
    return Ended(
        wall_s, str(row["pool"] or ""), str(row["outcome"]), tokens if isinstance(tokens, int) else 0,
        output if isinstance(output, int) else 0, row.get("attained") is True,
    )  # fmt: skip


def _read(job: Job, sized: Sized) -> dict[str, object]:
    """What training needs of a request: numbers, no text but where the operator keeps prompts."""
    parsed, service = job.parsed, job.service
    assert parsed is not None and service is not None
    row: dict[str, object] = {"template": parsed.template.hex(), "max_tokens": parsed.max_tokens, "n": parsed.sequences}
    features = sized.told.features
    if features is not None and job.route.generates:
        row["features"] = {
            name: int(1000.0 * x + 0.5) / 1000.0  # `round` takes twice as long, and there are a dozen
            for name, x in zip(NAMES, features.numbers, strict=True)
            if x
        }
        if service.spec.predictor.keep_prompts:
            row["prompt"] = asked_of(parsed).prompt.decode("utf-8", "replace")
    return row
