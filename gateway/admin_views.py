"""Live state as the admin API shows it: copies, never the objects themselves."""

from __future__ import annotations

from core.instances import State
from gateway.admin_models import InstanceView, JobView, PoolView, PredictorView, ServiceView, SloView, StateView
from gateway.jobs import Job
from gateway.service import Service
from gateway.wiring import Running
from pools.fleet import Fleet, Member


def state_view(running: Running) -> StateView:
    gateway, now_s = running.gateway, running.clock.now_s()
    return StateView(
        generation=running.generation,
        mode=running.mode.name,
        in_flight=gateway.in_flight,
        closing=gateway.closing,
        ticks=running.controller.state.ticks,
        controller_error=running.controller.last_error,
        services=[_service_view(service, now_s) for service in gateway.services.values()],
    )


def _service_view(service: Service, now_s: float) -> ServiceView:
    spec, router, fleet = service.spec, service.admission.router, service.fleet
    return ServiceView(
        name=spec.name,
        model=spec.model,
        launcher=spec.launcher.kind,
        context_tokens=spec.context_tokens,
        slo=SloView(ttft_p99_ms={k: v * 1000 for k, v in spec.slo.ttft_s.items()}, tbt_p99_ms=spec.slo.tbt_s * 1000),
        edges={"input": list(spec.edges.input), "output": list(spec.edges.output)},
        queued=router.queued(),
        bytes_per_token=round(service.estimate.bytes_per_token, 3),
        predictor=_predictor_view(service),
        pools=[
            PoolView(name=p.name, serves=list(p.serves), wanted=fleet.wanted.get(p.name, 0), tp=p.tp,
                     clock_mhz=p.clock_mhz, slots=p.limits.slots, queued=router.queued(index))
            for index, p in enumerate(spec.pools)
        ],
        instances=[_instance_view(fleet, member, now_s) for member in fleet.members.values()],
    )  # fmt: skip


def _predictor_view(service: Service) -> PredictorView:
    promised, blend, challenger = service.spec.predictor, service.predictor, service.challenger
    judged, score = blend.calibration.judged, challenger.score if challenger else None
    return PredictorView(
        kind="running" if blend.model is None else "model",
        model=service.model_name,
        card=blend.model.body.card if blend.model else {},
        answers=judged,
        q90_held=round(1 - blend.calibration.missed / judged, 4) if judged else None,
        q90_offset=round(blend.calibration.offset, 3),
        templates=blend.templates,
        keep_prompts=promised.keep_prompts,
        challenger=challenger.name if challenger else "",
        challenger_answers=score.answers if score else 0,
        challenger_windows=challenger.windows if challenger else 0,
        challenger_gain=round(score.total / score.answers, 4) if score and score.answers else None,
    )


def _instance_view(fleet: Fleet, member: Member, now_s: float) -> InstanceView:
    instance = member.instance
    return InstanceView(
        id=instance.id,
        service=fleet.spec.name,
        pool=instance.pool,
        url=instance.url,
        tp=instance.tp,
        clock_mhz=instance.clock_mhz,
        state=instance.state.value,
        reason=instance.reason,
        since_s=round(now_s - instance.since_s, 3),
        requests=instance.requests,
        sequences=instance.sequences,
        kv_tokens=instance.kv_tokens,
        breaker_open=instance.breaker.opened,
        adopted=instance.adopted,
        gpus=list(instance.gpus),
        knob=member.knob_refused or ("" if fleet.knobs.clock else "none"),
    )


def job_view(job: Job) -> JobView:
    return JobView(id=job.id, kind=job.kind, target=job.target, state=job.state, started_t=job.started_t)


def is_ready(service: Service, instance_id: str) -> bool:
    member = service.fleet.members.get(instance_id)
    return member is not None and member.instance.state is State.READY


def is_idle(service: Service, instance_id: str) -> bool:
    member = service.fleet.members.get(instance_id)
    return member is None or member.instance.requests == 0


def live_in(service: Service, pool: str) -> int:
    live = (State.STARTING, State.READY, State.PARKED)
    instances = (member.instance for member in service.fleet.members.values())
    return sum(1 for instance in instances if instance.pool == pool and instance.state in live)


def ready_in(service: Service, pool: str) -> int:
    instances = (member.instance for member in service.fleet.members.values())
    return sum(1 for instance in instances if instance.pool == pool and instance.state is State.READY)
