"""The admin REST API under /admin: look at services, pools, instances and queues; drain, add, remove; change promises;
reload. Every change is one row of kind "admin" in the run log."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, FastAPI, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from core.errors import BadRequest, Conflict, NotFound
from core.instances import State
from core.service import ServiceSpec, Slo, order_problem
from gateway import admin_views as views
from gateway.admin_controller import make_controller_routes
from gateway.admin_energy import make_energy_routes
from gateway.admin_explain import make_explain_routes
from gateway.admin_models import (
    AddInstance,
    Changed,
    ErrorView,
    InstanceView,
    JobView,
    PoolChange,
    ServiceView,
    SloChange,
    StateView,
)
from gateway.admin_overrides import make_override_routes
from gateway.admin_slo import make_slo_routes
from gateway.admin_transitions import make_transition_routes
from gateway.config import Config
from gateway.jobs import Jobs
from gateway.service import Service
from gateway.wiring import Running, apply_config

Responses = dict[int | str, dict[str, Any]]
ERRORS: Responses = {
    400: {"model": ErrorView, "description": "Bad input"},
    401: {"model": ErrorView, "description": "No admin key, or a wrong one"},
    408: {"model": ErrorView, "description": "The body did not arrive in time"},
    413: {"model": ErrorView, "description": "The body is too large"},
}
MISSING: Responses = {404: {"model": ErrorView, "description": "No such thing"}}
CONFLICT: Responses = {409: {"model": ErrorView, "description": "Not possible in its state"}}
InstanceId = Annotated[str, Path(max_length=256)]


class Admin:
    """The handlers. `load` reads the configuration anew and raises BadRequest that tells every problem."""

    def __init__(self, running: Running, load: Callable[[], Config], environment: Mapping[str, str]) -> None:
        self._running = running
        self._load = load
        self._environment = environment
        self._jobs = Jobs()

    def authenticate(self, request: Request) -> None:
        headers = dict(request.headers.raw)
        keyring = self._running.admin_keyring
        request.state.who = keyring.identify(headers.get(b"authorization"), headers.get(b"x-api-key")).name

    async def state(self) -> StateView:
        """Everything at one instant."""
        return views.state_view(self._running)

    async def services(self) -> list[ServiceView]:
        """All services with their pools and instances."""
        return views.state_view(self._running).services

    async def instances(self) -> list[InstanceView]:
        """All instances of all services."""
        return [i for service in views.state_view(self._running).services for i in service.instances]

    async def queue(self) -> dict[str, dict[str, int]]:
        """Waiting requests by service and pool."""
        shown = views.state_view(self._running).services
        return {service.name: {pool.name: pool.queued for pool in service.pools} for service in shown}

    async def config(self) -> dict[str, Any]:
        """The configuration as it was last loaded; hashes of keys left out."""
        shown: dict[str, Any] = self._running.config.model_dump(mode="json")
        for group in ("keys", "admin_keys"):
            shown["auth"][group] = [{k: v for k, v in key.items() if k != "hash"} for key in shown["auth"][group]]
        return shown

    async def job(self, job_id: str) -> JobView:
        """How a job goes."""
        found = self._jobs.get(job_id)
        if found is None:
            raise NotFound(f"there is no job {job_id}", code="unknown_job")
        return views.job_view(found)

    async def add_instance(self, body: AddInstance, request: Request) -> JobView:
        """Adds an instance to a pool. The job is done when one more is ready."""
        service = self._service(body.service)
        fleet = service.fleet
        if fleet.pool(body.pool) is None:
            raise NotFound(f"{body.service} has no pool {body.pool}", code="unknown_pool")
        if body.url is None and not fleet.launcher.managed:
            raise Conflict("this service runs elsewhere: give the url of the instance to add", code="url_needed")
        if body.url is not None:
            check_url(body.url)
        self.audit(request, "add_instance", service=body.service, pool=body.pool, url=body.url)
        if body.url is not None:
            new_id = fleet.adopt(body.pool, body.url)
            return self._start("add", new_id, lambda: views.is_ready(service, new_id))
        goal = fleet.pin(body.pool, self._has(service, body.pool) + 1)
        return self._start("add", body.pool, lambda: views.ready_in(service, body.pool) >= goal)

    async def remove_instance(self, instance_id: InstanceId, request: Request) -> JobView:
        """Drains the instance, then ends it (or forgets it, if it runs elsewhere). Its pool wants one fewer."""
        service = self._owner(instance_id)
        instance = service.fleet.members[instance_id].instance
        self.audit(request, "remove_instance", instance=instance_id)
        held = instance.state is State.DRAINING and service.fleet.members[instance_id].resumable
        if not instance.adopted and (held or instance.state in (State.STARTING, State.READY)):
            service.fleet.pin(instance.pool, self._has(service, instance.pool) - 1)
        service.fleet.drain(instance_id, "removed by an operator")
        return self._start("remove", instance_id, lambda: instance_id not in service.fleet.members)

    async def drain(self, instance_id: InstanceId, request: Request, move: bool = False) -> JobView:
        """No new requests go there; it keeps running and can be resumed. With `move` the streams that can go on at
        another instance do. The job is done when nothing runs on it."""
        service = self._owner(instance_id)
        self.audit(request, "drain", instance=instance_id, move=move)
        service.fleet.drain(instance_id, "drained by an operator", resumable=True, move=move)
        return self._start("drain", instance_id, lambda: views.is_idle(service, instance_id))

    async def resume(self, instance_id: InstanceId, request: Request) -> JobView:
        """Takes a drain back. The job is done when the instance is ready again."""
        service = self._owner(instance_id)
        if not service.fleet.members[instance_id].resumable:
            raise Conflict(f"{instance_id} is not drained by an operator", code="not_drained")
        self.audit(request, "resume", instance=instance_id)
        service.fleet.resume(instance_id)
        return self._start("resume", instance_id, lambda: views.is_ready(service, instance_id))

    async def change_pool(self, service: str, pool: str, body: PoolChange, request: Request) -> Changed:
        """Changes which output sizes a pool serves first, or how many instances it has."""
        found = self._service(service)
        if found.fleet.pool(pool) is None:
            raise NotFound(f"{service} has no pool {pool}", code="unknown_pool")
        if body.instances is not None and not found.fleet.launcher.managed:
            raise Conflict("the instances of this service run elsewhere", code="not_managed")
        spec = _with_serves(found.spec, pool, tuple(body.serves)) if body.serves is not None else found.spec
        self.audit(request, "change_pool", service=service, pool=pool, **body.model_dump(exclude_none=True))
        if body.instances is not None:
            found.fleet.pin(pool, body.instances)
        if body.pinned is False:
            found.fleet.pinned.discard(pool)
        return self._respec(found, spec)

    async def change_slo(self, service: str, body: SloChange, request: Request) -> Changed:
        """Changes the objectives for requests that arrive from now on."""
        found = self._service(service)
        old = found.spec.slo
        ttft: dict[str, float] = {size: value / 1000 for size, value in (body.ttft_p99_ms or {}).items()}
        tbt_s = old.tbt_s if body.tbt_p99_ms is None else body.tbt_p99_ms / 1000
        self.audit(request, "change_slo", service=service, **body.model_dump(exclude_none=True))
        return self._respec(found, replace(found.spec, slo=Slo({**old.ttft_s, **ttft}, tbt_s)))

    async def reload(self, request: Request) -> Changed:
        """Reads the configuration file again and applies it whole, or not at all."""
        running = self._running
        changes = apply_config(running, self._load(), self._environment)
        self.audit(request, "reload", generation=running.generation, changes=changes)
        return Changed(generation=running.generation, changes=changes)

    def audit(self, request: Request, action: str, **fields: object) -> None:
        clock = self._running.clock
        row = {"kind": "admin", "t": clock.wall_s(), "who": request.state.who, "action": action, **fields}
        self._running.recorder.record(row)

    def _service(self, name: str) -> Service:
        service = self._running.gateway.services.get(name)
        if service is None:
            raise NotFound(f"there is no service {name}", code="unknown_service")
        return service

    def _owner(self, instance_id: str) -> Service:
        for service in self._running.gateway.services.values():
            if instance_id in service.fleet.members:
                return service
        raise NotFound(f"there is no instance {instance_id}", code="unknown_instance")

    def _respec(self, service: Service, spec: ServiceSpec) -> Changed:
        service.fleet.respec(spec, keep_wanted=True)
        self._running.generation += 1
        self._running.cluster.changed.set()
        return Changed(generation=self._running.generation, changes=[f"service {spec.name} changed"])

    def _has(self, service: Service, pool: str) -> int:
        """Instances that a pool should have now, before an operator says otherwise."""
        if self._running.config.controller.plan == "configured" or pool in service.fleet.pinned:
            return service.fleet.wanted.get(pool, 0)
        return views.live_in(service, pool)

    def _start(self, kind: str, target: str, finished: Callable[[], bool]) -> JobView:
        self._running.cluster.changed.set()
        return views.job_view(self._jobs.add(kind, target, self._running.clock.wall_s(), finished))


def make_admin(running: Running, load: Callable[[], Config], environment: Mapping[str, str]) -> APIRouter:
    """The routes with what each may answer, as the OpenAPI page shows them."""
    admin = Admin(running, load, environment)
    router = APIRouter(prefix="/admin", tags=["admin"], responses=ERRORS, dependencies=[Depends(admin.authenticate)])
    for path, read in (
        ("/state", admin.state),
        ("/services", admin.services),
        ("/instances", admin.instances),
        ("/queue", admin.queue),
        ("/config", admin.config),
    ):
        router.add_api_route(path, read, methods=["GET"])
    router.include_router(make_controller_routes(running, admin.audit))
    router.include_router(make_override_routes(running, admin.audit))
    router.include_router(make_slo_routes(running))
    router.include_router(make_explain_routes(running))
    router.include_router(make_transition_routes(running))
    router.include_router(make_energy_routes(running))
    router.add_api_route("/jobs/{job_id}", admin.job, methods=["GET"], responses=MISSING)
    one = "/instances/{instance_id}"
    for path, method, action, responses in (
        ("/instances", "POST", admin.add_instance, MISSING | CONFLICT),
        (one, "DELETE", admin.remove_instance, MISSING),
        (f"{one}/drain", "POST", admin.drain, MISSING),
        (f"{one}/resume", "POST", admin.resume, MISSING | CONFLICT),
    ):
        router.add_api_route(path, action, methods=[method], status_code=202, responses=responses)
    service = "/services/{service:path}"
    router.add_api_route(
        f"{service}/pools/{{pool}}", admin.change_pool, methods=["PATCH"], responses=MISSING | CONFLICT
    )
    router.add_api_route(f"{service}/slo", admin.change_slo, methods=["PATCH"], responses=MISSING)
    router.add_api_route("/reload", admin.reload, methods=["POST"], responses=CONFLICT)
    return router


def check_url(url: str) -> None:
    """Before anything is adopted: a host and a port that can be connected to."""
    try:
        parts = urlsplit(url)
        usable = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise BadRequest(f"url: {error}", param="url") from None
    if not usable:
        raise BadRequest("url must be http://HOST:PORT", param="url")


def _with_serves(spec: ServiceSpec, pool: str, serves: tuple[str, ...]) -> ServiceSpec:
    pools = tuple(replace(p, serves=serves) if p.name == pool else p for p in spec.pools)
    problem = order_problem([p.serves for p in pools])
    if problem is not None:
        raise BadRequest(problem[1], param="serves")
    return replace(spec, pools=pools)


def add_validation_errors(app: FastAPI) -> None:
    """FastAPI's own validation errors in the one shape that all errors have."""

    @app.exception_handler(RequestValidationError)
    async def told(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        message = f"{where}: {first['msg']}" if where else str(first["msg"])
        fields = {"message": message, "type": "invalid_request_error", "param": where or None, "code": "bad_request"}
        return JSONResponse({"error": fields}, 400)
