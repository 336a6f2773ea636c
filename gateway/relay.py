"""One attempt at one instance: send the request, judge the answer's head, hand the answer on.

What the instance did wrong is an `AttemptFailed`; whether another one may try, or may continue what the client has got
of a stream so far, is the caller's business."""

from __future__ import annotations

import msgspec

from core.clock import Clock
from core.errors import UpstreamFailed, UpstreamTimeout
from core.request import Outcome
from gateway.attempt import UNBEGUN, AttemptFailed, Leave, broken_off
from gateway.client import NOT_RETURNED, Headers
from gateway.config import Limits
from gateway.dialect import reshape, upstream_message
from gateway.job import Job
from gateway.joined_stream import StreamEnded
from gateway.ledger import Ledger
from gateway.metrics import Metrics
from gateway.pipe import Pipe
from gateway.resume import engine_headers, prepare
from gateway.service import Service
from gateway.sse import Energy, EventStream, energy_comment, find_cached, find_usage
from gateway.stay import Stay
from gateway.token_stream import Answer, TokenStream
from pools.connection import Exchange, Head
from pools.fleet import Member
from pools.instance import Slot
from pools.stints import Bill

ANSWER_LIMIT_BYTES = 256 * 1024 * 1024  # of a non-streaming answer, which is held whole until it is complete
ERROR_LIMIT_BYTES = 1024 * 1024
ABORTED = (b'"finish_reason":"abort"', b'"stop_reason":"abort"')


class Relay:
    """Stateless but for the limits; told of every overrun are the metrics."""

    def __init__(self, limits: Limits, clock: Clock, metrics: Metrics, ledger: Ledger) -> None:
        self.limits = limits
        self.ledger = ledger
        self.clock = clock
        self.metrics = metrics

    async def attempt(self, job: Job, service: Service, slot: Slot, body: bytes) -> Outcome:
        """Tells the instance's breaker how it went. Errors that are the client's own count neither way."""
        instance = slot.instance
        job.instance, job.pool, job.sent_s = instance.id, instance.pool, None
        try:
            outcome = await self._exchange(job, service, slot, body)
        except AttemptFailed as failure:
            if failure.ill:
                self._blame(job, slot, answered=failure.answered)
            raise
        except (UpstreamFailed, UpstreamTimeout) as error:
            lost = broken_off(error)
            self._blame(job, slot, answered=lost.answered)
            raise lost from None
        except Leave as leave:
            if leave.kind == UNBEGUN:
                slot.instance.rests(self.clock.now_s())
            raise AttemptFailed(UpstreamFailed("the stream had to leave"), kind=leave.kind, ill=False) from None
        finally:
            if job.stint is not None and not job.stint.end_s:
                job.stint.end_s = self.clock.now_s()
        if outcome is Outcome.COMPLETED:
            slot.succeeded()
        return outcome

    def _begins(self, job: Job, service: Service, slot: Slot, now_s: float) -> None:
        """From here on the instance spends joules on the request."""
        if not job.route.generates:
            return
        if job.bill is None:
            size_class = job.sized.name if job.sized is not None and not job.route.embeds else "none"
            job.bill = Bill(job.request_id, job.identity.name, service.spec.name, size_class)
        ask, instance = slot.ask, slot.instance
        stint = self.ledger.begin(job.bill, service.fleet, instance, ask.input_tokens, ask.sequences, now_s)
        job.stint = stint
        if job.parsed is not None and not job.parsed.stream and instance.model is not None:
            # A whole answer shows no first token: it comes when the model says that the prompt is done.
            stint.first_s = now_s + instance.model.prefill_s(instance.tp, instance.clock_mhz, ask.input_tokens)

    def _blame(self, job: Job, slot: Slot, *, answered: bool) -> None:
        """A request that every instance answers with a failure is likely to be at fault itself: it counts against the
        first of them only. An instance that cannot be reached or breaks off counts each time."""
        if answered and job.blamed:
            return
        job.blamed = job.blamed or answered
        slot.failed(self.clock.now_s())

    async def _exchange(self, job: Job, service: Service, slot: Slot, body: bytes) -> Outcome:
        member = service.fleet.members.get(slot.instance.id)
        if member is None:  # it was ended between the grant of the slot and now
            raise AttemptFailed(UpstreamFailed("the instance has gone"), ill=False, vanished=True)
        timing, parsed = job.timing, job.parsed
        assert timing is not None and parsed is not None
        if job.client.started:
            return await self._continue(job, service, slot, member)
        timing.own_s = self.clock.now_s() - job.received_s - timing.queue_s
        path = job.route.path.encode() + (b"?" + job.client.query if job.client.query else b"")
        sent_s = self.clock.now_s()
        async with await member.wires.send(b"POST", path, engine_headers(job, service), body) as exchange:
            now_s = job.sent_s = self.clock.now_s()
            timing.connect_s += now_s - sent_s
            self._begins(job, service, slot, now_s)
            begin_by_s = now_s + self.limits.first_byte_timeout_s
            if parsed.stream:
                no_stream = await self._stream(job, service, slot, exchange, begin_by_s)
                if no_stream is None:
                    return Outcome.COMPLETED
                head = no_stream
            else:
                head = await exchange.head(self.limits.first_byte_timeout_s)
            if head.status >= 400:
                return await self._refusal(job, service, exchange, head)
            return await self._whole(job, slot, exchange, head)

    async def _refusal(self, job: Job, service: Service, exchange: Exchange, head: Head) -> Outcome:
        """A 4xx is the client's and goes to it as it is; a 5xx is the instance's and another one may do better."""
        said = await exchange.body(self.limits.stall_timeout_s, ERROR_LIMIT_BYTES)
        if head.status >= 500:
            error = UpstreamFailed(f"the instance answered {head.status}: {upstream_message(said)}")
            raise AttemptFailed(error, kind="5xx", ill=head.status != 503, answered=True)
        if head.status in (401, 403):
            raise AttemptFailed(UpstreamFailed("the instance refused the gateway's own key", code="upstream_auth"))
        job.status, job.error = head.status, "upstream_refused"
        if head.status == 404 and b'"Not Found"' in said[:40]:  # the engine has no such route, and says no more
            said = msgspec.json.encode(
                {"detail": f"the instances of {service.spec.name} do not serve {job.route.path}"}
            )
        body = reshape(job.route.dialect, head.status, said)
        headers = self._headers(job, head)
        if body is not said:
            headers = [(b"content-type", b"application/json"), *((k, v) for k, v in headers if k != b"content-type")]
        job.client.reply(head.status, headers, body)
        return Outcome.CLIENT_ERROR

    async def _whole(self, job: Job, slot: Slot, exchange: Exchange, head: Head) -> Outcome:
        body = await exchange.body(self.limits.first_byte_timeout_s, ANSWER_LIMIT_BYTES)
        arrived_s = self.clock.now_s()
        if ABORTED[0] in body or ABORTED[1] in body:
            error = UpstreamFailed("the instance gave up this answer")
            raise AttemptFailed(error, kind="abort", vanished=True, answered=True)
        if not body.startswith(b"{") and not body.lstrip().startswith((b"{", b"[")):
            raise UpstreamFailed("the instance sent an answer that is not JSON")
        assert job.timing is not None
        job.timing.chunk(arrived_s, 1)
        slot.content()
        job.status = head.status
        if job.route.generates:
            job.usage = find_usage(body)
            slot.cached(find_cached(body))
        job.client.reply(head.status, self._headers(job, head, whole=True), body)
        job.timing.relay_s = self.clock.now_s() - arrived_s
        return Outcome.COMPLETED

    async def _stream(
        self, job: Job, service: Service, slot: Slot, exchange: Exchange, begin_by_s: float
    ) -> Head | None:
        """Nothing reaches the client before the first content, which has to come by `begin_by_s`. Returns the head of
        an answer that is no stream."""
        assert job.parsed is not None
        if job.keeps_ids:  # it can be moved, and may leave while it waits
            slot.awaits_first()
        events = self._events(job, job.route.usage_on_request and not job.parsed.wants_usage)
        events.energy = self._energy(job)
        return await self._pour(job, service, slot, exchange, events, begin_by_s)

    async def _continue(self, job: Job, service: Service, slot: Slot, member: Member) -> Outcome:
        """The client has a part of its stream; this instance makes the rest."""
        resumed = await prepare(job, service, member, self.limits)
        energy = self._energy(job)
        if isinstance(resumed, bytes):
            job.client.end((b"" if energy is None else energy_comment(energy)) + resumed)
            return Outcome.COMPLETED
        body, events = resumed
        events.energy = energy
        async with await member.wires.send(b"POST", b"/v1/completions", engine_headers(job, service), body) as exchange:
            job.sent_s = self.clock.now_s()
            self._begins(job, service, slot, job.sent_s)
            begin_by_s = job.sent_s + self.limits.first_byte_timeout_s
            head = await self._pour(job, service, slot, exchange, events, begin_by_s)
            if head is not None:
                said = upstream_message(await exchange.body(self.limits.stall_timeout_s, ERROR_LIMIT_BYTES))
                error = UpstreamFailed(f"the instance answered {head.status} to the rest of a stream: {said}")
                raise AttemptFailed(error, kind="5xx", ill=head.status >= 500 and head.status != 503, answered=True)
            return Outcome.COMPLETED

    async def _pour(
        self, job: Job, service: Service, slot: Slot, exchange: Exchange, events: EventStream, begin_by_s: float
    ) -> Head | None:
        """To the end of the stream. All is made ready before its head comes: what arrives then goes on at once."""
        assert job.timing is not None
        client = job.client

        def answer_head() -> tuple[int, Headers]:
            head = exchange.answered
            job.status = head.status
            return head.status, self._headers(job, head)

        def on_content() -> None:
            slot.content()
            if job.stint is not None:
                job.stint.first_s = self.clock.now_s()
            job.went_on(self.clock.now_s())

        stay = Stay(job, service, slot, self.clock, lambda action: self.metrics.overran(service.spec.name, action))
        pipe = Pipe(
            events, job.timing, client, self.clock, self.limits, begin_by_s, on_content=on_content, head=answer_head,
            watch=stay.watch if job.answer is not None else None, on_edge=stay.overrun, edge=stay.edge,
        )  # fmt: skip
        client.on_room = exchange.hold
        try:
            exchange.hold(client.full)
            no_stream = await exchange.pour(pipe, pipe.check, pipe.look_s, is_event_stream, pipe)
            if no_stream is not None:
                return no_stream
            pipe.finish()
        except StreamEnded:
            client.end()
        except (UpstreamFailed, UpstreamTimeout, Leave):
            if not events.done:
                raise
            client.end()  # the client has all of it, to the last event
        finally:
            client.on_room = None
            job.usage = events.usage()
            slot.cached(events.cached())
        return None

    def _events(self, job: Job, strip_usage: bool) -> EventStream:
        if not job.keeps_ids:
            return EventStream(job.route.dialect, strip_usage=strip_usage)
        job.answer = Answer(chat=job.route.chat)
        return TokenStream(job.answer, strip_usage=strip_usage)

    def _energy(self, job: Job) -> Energy | None:
        """What a stream that is asked for its joules says of them."""
        asked = job.parsed is not None and job.parsed.wants_energy
        if not asked and job.client.header(b"x-joulegate-energy") != b"on":
            return None

        def told() -> tuple[float, str]:
            if job.stint is None:
                return 0.0, "modelled"
            return self.ledger.estimate(job.stint, self.clock.now_s()), self.ledger.quality(job.stint)

        return told

    def _headers(self, job: Job, head: Head, *, whole: bool = False) -> Headers:
        """The instance's headers but for hop-by-hop ones, and the gateway's own; with joules where the answer is
        whole."""
        assert job.timing is not None and job.sized is not None
        kept = [pair for pair in head.headers if pair[0] not in NOT_RETURNED]
        if len(kept) != len(head.headers) and (connection := head.get(b"connection")) is not None:
            named = {token.strip().lower() for token in connection.split(b",")}
            kept = [pair for pair in kept if pair[0] not in named]
        kept += (
            (b"x-request-id", job.request_id.encode()),
            (b"x-joulegate-pool", job.pool.encode()),
            (b"x-joulegate-instance", job.instance.encode()),
            (b"x-joulegate-overhead-ms", b"%.2f" % (job.timing.own_s * 1000)),
        )
        if job.route.generates:
            kept.append((b"x-joulegate-class", job.sized.name.encode()))
        if whole and job.stint is not None:
            kept.append((b"x-joulegate-joules", b"%.3f" % self.ledger.estimate(job.stint, self.clock.now_s())))
            kept.append((b"x-joulegate-joules-quality", self.ledger.quality(job.stint).encode()))
        return kept


def is_event_stream(head: Head) -> bool:
    return head.status < 400 and (head.get(b"content-type") or b"").startswith(b"text/event-stream")
