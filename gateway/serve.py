"""The life of one request, from bytes in to one row in the run log. Five steps: identify, parse, size up, admit, relay.

What fails at one instance is tried at another: as a whole before the first byte, from where it broke off after it. What
cannot be continued becomes one error event."""

from __future__ import annotations

import asyncio
import os
from itertools import count
from math import inf

import structlog
from msgspec import structs

from core.clock import Clock
from core.errors import (
    BadRequest,
    Forbidden,
    JoulegateError,
    NotFound,
    Overloaded,
    Unavailable,
)
from core.instances import State
from core.recorder import Recorder
from core.request import Ask, Outcome
from gateway.asked import HINT_HEADER
from gateway.attempt import LEAVING, AttemptFailed, died
from gateway.auth import Identity, Keyring, RateLimiter
from gateway.budgets import Budgets, tokens_spent
from gateway.client import Client, Headers
from gateway.config import Limits
from gateway.dialect import Dialect, Route, error_body, error_event
from gateway.explain import NO_PLAN, Recent
from gateway.job import Job, Seam, ended_of, make_row
from gateway.lag import LoopLag
from gateway.ledger import Ledger
from gateway.metrics import Metrics
from gateway.parse import NOTHING, Parsed, ask_for_ids, ask_for_usage, parse, rename, splice
from gateway.relay import Relay
from gateway.resume import alive_of, why_it_stays
from gateway.service import Service, Sized, crown, header_seconds, learn, make_ask, rest_of, size_up
from gateway.timing import Timing
from pools.load_counts import PLACES

log = structlog.get_logger("joulegate")
NOT_YET_KNOWN = Identity("unknown")


class Gateway:
    """Serves the hot routes. Owns nothing but the number of requests in flight."""

    def __init__(
        self,
        services: dict[str, Service],
        keyring: Keyring,
        limiter: RateLimiter,
        limits: Limits,
        clock: Clock,
        recorder: Recorder,
        metrics: Metrics,
        lag: LoopLag,
        ledger: Ledger,
    ) -> None:
        self.services = services
        self.keyring = keyring
        self.limiter = limiter
        self.relay = Relay(limits, clock, metrics, ledger)
        self.ledger = ledger
        self.budgets = Budgets(clock, self._foretold_j)
        self.clock = clock
        self.recorder = recorder
        self.metrics = metrics
        self.lag = lag
        self.recent = Recent()
        self.plan_of = NO_PLAN  # of a service, in force now
        self.in_flight = 0
        self.closing = False
        self._prefix = os.urandom(6).hex()
        self._numbers = count(1)

    @property
    def limits(self) -> Limits:
        return self.relay.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self.relay.limits = limits

    def new_id(self) -> str:
        return f"{self._prefix}{next(self._numbers):08x}"

    async def serve(self, client: Client, route: Route) -> None:
        """Answers one request, whatever happens; never raises but for the end of the process."""
        job = Job(client.request_id(self.new_id()), route, client, NOT_YET_KNOWN, self.clock.now_s())
        self.in_flight += 1
        self.recent.running[job.request_id] = job
        try:
            outcome = await self._to_the_end(job)
        finally:
            self.in_flight -= 1
        self._record(job, outcome)

    async def _to_the_end(self, job: Job) -> Outcome:
        client = job.client
        try:
            return await self._answer(job)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            if client.gone:
                return Outcome.CLIENT_GONE
            # The server cancels what outlives the drain limit: its client is told, and not left with a silent cut.
            return self._tell(job, Unavailable("the gateway is shutting down", code="shutting_down"))
        except JoulegateError as error:
            return self._tell(job, error)
        except Exception as error:  # a fault of our own must still end this answer properly, and harm no other
            self.metrics.faults.add(type(error).__name__)
            log.exception("a fault of the gateway's own", request=job.request_id)
            job.error = f"{type(error).__name__}: {error}"
            return self._tell(job, JoulegateError("the gateway failed to answer this request"))

    def _tell(self, job: Job, error: JoulegateError) -> Outcome:
        job.error = job.error or error.code
        client, dialect = job.client, job.route.dialect
        if client.started:
            client.end(error_event(dialect, error))
            return Outcome.CUT
        job.status = error.status
        client.reply(error.status, error_headers(job.request_id, error), error_body(dialect, error))
        if error.status < 500 and error.status != 429:
            return Outcome.CLIENT_ERROR
        shed = not job.refused and (error.status == 429 or error.code == "queue_timeout")  # no instance had it
        return Outcome.SHED if shed else Outcome.FAILED

    async def _answer(self, job: Job) -> Outcome:
        client, limits = job.client, self.limits
        job.identity = self.keyring.identify(client.header(b"authorization"), client.header(b"x-api-key"))
        if self.closing:
            raise Unavailable("the gateway is shutting down", code="shutting_down", retry_after_s=5.0)
        if self.in_flight > limits.max_streams:
            raise Overloaded("too many requests at once", code="too_many_streams", retry_after_s=1.0)
        if self.lag.sustained_s > limits.max_loop_lag_s:
            raise Overloaded("the gateway cannot keep up", code="gateway_overloaded", retry_after_s=2.0)
        self.limiter.take(job.identity, self.clock.now_s())
        body = await client.body(limits.max_body_bytes, limits.body_timeout_s)
        job.received_s = self.clock.now_s()
        job.parsed = parsed = parse(body, f"{job.identity.name}\0{job.route.path}".encode())
        parsed_s = self.clock.now_s()
        if job.route.dialect is Dialect.RESPONSES:
            refuse_state(parsed)
        job.service = service = self._service(parsed, job.identity, job.route)
        job.sized = sized = await size_up(
            service, parsed, job.identity.name, client.header(HINT_HEADER), job.received_s
        )
        spec = service.spec
        ttft_s = header_seconds(client.header(b"x-slo-ttft-ms"), "x-slo-ttft-ms", spec.slo.ttft_s[sized.input_size])
        tbt_s = header_seconds(client.header(b"x-slo-tpot-ms"), "x-slo-tpot-ms", spec.slo.tbt_s)
        job.timing = timing = Timing(job.received_s, ttft_s, tbt_s)
        timing.parse_s = parsed_s - job.received_s
        self.budgets.reserve(job)
        ask = make_ask(spec, sized, parsed, job.request_id, job.received_s, ttft_s, tbt_s, job.identity)
        if job.route.generates:
            service.counts.asked(PLACES[sized.name], sized.input_tokens)
        else:
            ask = structs.replace(ask, input_tokens=0, sequences=0, kv_tokens=0, q50_tokens=0)
        job.ask, job.plan = ask, self.plan_of(spec.name)
        body = self._edit(job, ask, body)
        timing.predict_s = self.clock.now_s() - parsed_s
        return await self._attempts(job, service, ask, body)

    def _service(self, parsed: Parsed, identity: Identity, route: Route) -> Service:
        name = parsed.fields.model
        if name is None and len(self.services) == 1:
            name = next(iter(self.services))
        if name is None:
            raise BadRequest("you must provide a model parameter", param="model", code="missing_model")
        service = self.services.get(name) or next((s for s in self.services.values() if s.spec.model == name), None)
        if service is None:
            known = ", ".join(sorted(self.services))
            raise NotFound(
                f"The model `{name}` does not exist. Known models: {known}.", param="model", code="model_not_found"
            )
        if identity.services is not None and service.spec.name not in identity.services:
            raise Forbidden(f"this key may not use the model `{name}`", param="model", code="model_not_allowed")
        return service

    def _edit(self, job: Job, ask: Ask, body: bytes) -> bytes:
        """The few things an instance must be told differently from what the client said."""
        parsed, service = job.parsed, job.service
        assert parsed is not None and service is not None
        spec = service.spec
        if parsed.stream and job.route.usage_on_request:
            if not parsed.wants_usage:
                body = ask_for_usage(body, parsed.fields)
            if spec.migration and parsed.sequences == 1 and job.client.header(b"x-joulegate-migrate") != b"off":
                asked = ask_for_ids(body, parsed.fields)
                job.keeps_ids, body = asked is not body, asked
        if spec.engine_priority and job.route.usage_on_request:
            body = splice(body, b'"priority":%d' % int(ask.deadline_s * 1000))
        if parsed.fields.model is not None and parsed.fields.model != spec.model:
            body = rename(body, spec.model)
        return body

    async def _attempts(self, job: Job, service: Service, ask: Ask, body: bytes) -> Outcome:
        job.body = body
        service.budget.arrived()
        wait_s: float | None = None
        while True:
            job.attempts += 1
            waited_from_s = self.clock.now_s()
            before = job.progress
            try:
                async with service.admission.admit(ask, job.refused, wait_s) as slot:
                    assert job.timing is not None
                    job.timing.queue_s += self.clock.now_s() - waited_from_s
                    job.weighed = slot.weighed
                    return await self.relay.attempt(job, service, slot, body)
            except AttemptFailed as failure:
                wait_s = await self._weigh(job, service, failure, max(0, job.progress - before))
            except Unavailable:
                job.gave_up = "nobody_back" if job.refused else ""
                raise
            if job.client.started:
                assert job.answer is not None
                prompt, output = len(job.answer.prompt), len(job.answer.ids)
                assert job.sized is not None
                ask = rest_of(service, job.sized, ask, prompt, output, self.clock.now_s())

    async def _weigh(self, job: Job, service: Service, failure: AttemptFailed, arrivals: int) -> float | None:
        """Returns how long the request may wait for another try, None: as any other; raises what its client is told if
        there is none."""
        now_s = self.clock.now_s()
        if job.client.started:
            reason = why_it_stays(job)
            if reason:
                failure.error.message += f"; the stream cannot go on elsewhere: {reason}"
                raise failure.error from None
            job.lost = job.lost or Seam(now_s, job.instance, failure.kind)
        leaves = failure.kind in LEAVING
        failed_s = now_s if failure.vanished or leaves else inf
        job.refused = {**({} if arrivals else job.refused), job.instance: failed_s}
        self.metrics.moved(service.spec.name, failure.kind, started=job.client.started)
        if leaves:
            return None
        after_s = now_s - (job.sent_s or now_s)
        job.tries.failed(
            job.instance, now_s, died=died(failure) and job.sent_s is not None, after_s=after_s, arrivals=arrivals
        )
        if job.tries.poison:
            job.tries.acquit(await alive_of(service.fleet, job.tries.deaths))
        others = self._others(service, job, failure)
        hope = others or any(at_s < inf and i in service.fleet.members for i, at_s in job.refused.items())
        job.gave_up = self._gives_up(job, service, failure, now_s, hope=hope)
        if job.gave_up:
            raise failure.error from None
        return None if others else min(self.limits.comeback_s, service.admission.max_wait_s)

    def _gives_up(self, job: Job, service: Service, failure: AttemptFailed, now_s: float, *, hope: bool) -> str:
        """Why the request is not tried again; empty if it is. `hope`: some instance may take it yet."""
        if failure.final:
            return "final"
        if job.tries.poison:
            return "poison"
        within_s = service.admission.max_wait_s
        if job.tries.spent(now_s, self.limits.retries, within_s, vanished=failure.vanished):
            return "in_vain"
        if not hope:
            return "nobody_left"
        return "" if service.budget.take(now_s, service.slots, self.limits.retries_per_s) else "retry_budget"

    def _others(self, service: Service, job: Job, failure: AttemptFailed) -> bool:
        """Whether another instance exists, or the controller replaces the one that vanished."""
        alive = (State.READY, State.STARTING)
        if any(m.instance.state in alive for i, m in service.fleet.members.items() if i not in job.refused):
            return True
        return failure.vanished and service.fleet.launcher.managed

    def _foretold_j(self, job: Job) -> float:
        """Joules that a request is likely to cost."""
        service, sized, parsed = job.service, job.sized, job.parsed
        if service is None or sized is None or parsed is None:
            return 0.0
        output = parsed.sequences * sized.prediction.q50_tokens
        return self.ledger.foretell(service.fleet, sized.input_tokens, output)

    def _record(self, job: Job, outcome: Outcome) -> None:
        row = make_row(job, outcome, self.clock.wall_s(), self.clock.now_s())
        service, parsed = job.service, job.parsed
        if service is not None and parsed is not None and job.usage is not None and outcome is Outcome.COMPLETED:
            answers = job.route.usage_on_request or job.route.dialect is not Dialect.OPENAI
            if answers and job.route.generates and job.sized is not None:
                self._learn(job, service, job.sized, parsed, job.usage[1])
            if parsed.exact_tokens is None and not parsed.extra_tokens > 500:
                service.estimate.learn(parsed.prompt_bytes, job.usage[0] - parsed.extra_tokens)
        if service is not None and job.sized is not None and "attained" in row:
            place = PLACES[job.sized.name]
            if outcome is Outcome.COMPLETED:
                service.counts.completed(place, job.usage[1] if job.usage else 0, bool(row["attained"]))
            else:
                service.counts.missed(place)
        if job.reserved:
            self.budgets.settle(job, "tokens", tokens_spent(job))
        if job.bill is None:
            self.budgets.settle(job, "joules", 0.0)
        else:
            if job.reserved:  # what it cost is known when its last counters are read
                job.bill.on_settled = lambda bill: self.budgets.settle(job, "joules", bill.joules)
            self.ledger.finished(job.bill, ended_of(row))
        self.metrics.finished(row, job.timing)
        self.recorder.record(row)
        self.recent.end(job, row)

    def _learn(self, job: Job, service: Service, sized: Sized, parsed: Parsed, output_tokens: int) -> None:
        if learn(service, sized, parsed, output_tokens, job.identity.name, job.client.header(HINT_HEADER)):
            self.recorder.record({**crown(service), "t": self.clock.wall_s()})


def refuse_state(parsed: Parsed) -> None:
    """Responses are served stateless: no instance could be told which other one holds an earlier answer."""
    for name in ("previous_response_id", "conversation"):
        if getattr(parsed.fields, name) not in (NOTHING, None):
            raise BadRequest(f"{name} is not supported here: send the whole input", param=name, code="stateless")
    if parsed.fields.background:
        raise BadRequest("background is not supported here", param="background", code="stateless")


def error_headers(request_id: str, error: JoulegateError) -> Headers:
    headers: Headers = [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode())]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, round(error.retry_after_s))))
    if error.status == 408:
        headers.append((b"connection", b"close"))  # what is left of the body is not worth reading
    return headers
