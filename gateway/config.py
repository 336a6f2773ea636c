"""The shape of a configuration: every key, its default, its meaning, and the rules that no single key can state.

Owns the schema and its translation into the frozen values of core/service.py. Reads neither the file nor the
environment (gateway/config_file.py does) and starts nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address
from itertools import pairwise
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field

from core.service import STEP_TOKENS, Edges, InstanceLimits, LauncherSpec, PoolSpec, ServiceSpec, Slo, order_problem
from gateway.config_agents import AgentConfig
from gateway.config_launcher import LauncherConfig
from gateway.config_predictor import PredictorConfig
from gateway.config_section import (
    VARIABLE,
    Amount,
    Count,
    Hash,
    Items,
    Millis,
    Name,
    Problems,
    Seconds,
    Section,
    repeated,
)
from profiles.engine_model import engine_model_names, load_engine_model

MIB = 1024 * 1024
# An emulated engine's, unless its pool says otherwise: with 2048 the steps of a 70B model at TP4 last over 150 ms, more
# than the TBT objective of whoever decodes beside them.
EMULATED_STEP_TOKENS = 512


class Listen(Section):
    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on. Without keys: loopback.")
    port: int = Field(default=8080, ge=0, le=65_535, description="TCP port. 0 = any free one.")

    def loopback(self) -> bool:
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class AdminKey(Section):
    name: Name = Field(description="Whose key it is; appears in logs and in the run log.")
    hash: Hash = Field(description='"sha256:" and the SHA-256 of the key in hex. The key itself is never stored.')


class ClientKey(AdminKey):
    services: Items[Name] | None = Field(default=None, description="Services that the key may use. null = all.")
    requests_per_minute: Count | None = Field(default=None, description="Requests per minute. null = no limit.")
    tokens_per_minute: Count | None = Field(default=None, description="Tokens, prompts' and answers'. null = no limit.")
    joules_per_minute: Count | None = Field(default=None, description="Joules of its requests. null = no limit.")
    tier: Literal["interactive", "batch"] = Field("interactive", description="batch waits for all others.")


class Auth(Section):
    keys: Items[ClientKey] = Field(default=(), description="Keys of clients. None = open, on loopback only.")
    admin_keys: Items[AdminKey] = Field(default=(), description="Keys for /admin. None = open, on loopback only.")

    def check(self) -> Problems:
        for group, keys in (("keys", self.keys), ("admin_keys", self.admin_keys)):
            yield from repeated((group,), "name", [key.name for key in keys], "key name")
            yield from repeated((group,), "hash", [key.hash for key in keys], "hash", show=False)


class Limits(Section):
    max_body_bytes: Count = Field(default=8 * MIB, description="Largest request body; longer ones get 413.")
    max_header_bytes: Count = Field(default=64 * 1024, description="Largest request head; longer ones get 431.")
    max_streams: Count = Field(default=1024, description="Requests at once over all services; more get 429.")
    max_queue: Amount = Field(default=512, description="Requests that may wait per service; more get 429.")
    max_wait_s: Seconds = Field(default=60.0, description="Longest wait for a free slot; then 503.")
    comeback_s: Seconds = Field(
        default=10.0,
        description="Longest wait of a request that every instance has failed, for one of them to be well again.",
    )
    body_timeout_s: Seconds = Field(default=30.0, description="Time a client has to send its body; then 408.")
    header_timeout_s: Seconds = Field(default=10.0, description="Time a client has to send its request head.")
    connect_timeout_s: Seconds = Field(default=2.0, description="Time to connect to an instance.")
    first_byte_timeout_s: Seconds = Field(default=300.0, description="Time an instance has to begin; then 504.")
    stall_timeout_s: Seconds = Field(
        default=60.0, description="Longest silence in an answer, of an instance or its reader."
    )
    max_loop_lag_s: Seconds = Field(
        default=0.5, description="Lateness of the event loop over half a second at which new requests get 429."
    )
    drain_timeout_s: Seconds = Field(default=30.0, description="Time that running answers have to end at shutdown.")
    retries_per_s: float = Field(
        default=2.0, ge=0, le=1e6, description="Repeats a service may make per second, beside a fifth of what arrives."
    )
    retries: int = Field(
        default=2,
        ge=0,
        le=16,
        description="Tries after the first, in a row without a token. Twice as many, within max_wait_s, where "
        "instances break off instead of answering with an error.",
    )


class Health(Section):
    interval_s: Seconds = Field(default=2.0, description="Time between two probes of an instance.")
    timeout_s: Seconds = Field(default=2.0, description="Time a probe may take.")
    fall: Count = Field(default=3, description="Failed probes in a row that make an instance not ready.")
    rise: Count = Field(default=1, description="Good probes in a row that make it ready again.")


class Breaker(Section):
    failures: Count = Field(default=3, description="Failed requests in a row that take an instance out of routing.")
    backoff_s: Seconds = Field(default=1.0, description="First pause before it is tried again; doubles each time.")
    backoff_max_s: Seconds = Field(default=30.0, description="Longest such pause.")

    def check(self) -> Problems:
        if self.backoff_max_s < self.backoff_s:
            yield ("backoff_max_s",), f"must be at least backoff_s ({self.backoff_s:g}), not {self.backoff_max_s:g}"


class Controller(Section):
    mode: Literal["shadow", "advise", "enforce"] = Field(
        default="enforce", description="shadow = decide and log, advise = offer for approval, enforce = do."
    )
    plan: Literal["configured", "energy"] = Field(
        default="configured",
        description="configured = every pool keeps its instances; energy = counts, tensor parallelism and clocks are "
        "chosen for the fewest joules within the objectives. Needs a profile.",
    )
    plan_interval_s: Seconds = Field(default=300.0, description="Time between two plans; more load plans sooner.")
    interval_s: Seconds = Field(default=1.0, description="Longest time between two ticks.")
    gpus: int = Field(default=0, ge=0, le=1_000_000, description="GPUs that instances may use in all. 0: no limit.")
    node_gpus: Literal[1, 2, 4, 8, 16] = Field(default=8, description="GPUs of one machine: no instance spans two.")
    eta: float = Field(default=1.0, ge=0, le=1, description="1 = only joules count in a plan, 0 = only latency.")
    tbt_room: float = Field(
        default=1.0,
        ge=0.5,
        le=1,
        description="Part of tbt_p99_ms that a step may take as planned. Less than 1 where steps scatter, for example "
        "on a crowded host: a step that is planned to take the whole limit is late whenever it takes any longer.",
    )
    spare: bool = Field(default=False, description="The load must fit without the largest instance, too (N+1).")
    park: bool = Field(
        default=False,
        description="Put instances that are not needed to sleep (vLLM's --enable-sleep-mode, VLLM_SERVER_DEV_MODE=1) "
        "for as long as their next start would cost, before they end.",
    )
    learn: bool = Field(
        default=False,
        description="Learn what clocks really draw, by trying slower ones while there is slack; do not trust the "
        "profile. All instances of a service have one clock meanwhile.",
    )
    power_cap_w: float | None = Field(default=None, gt=0, description="Most watts that instances may draw. null: none.")
    solver: Literal["dynamic", "milp"] = Field(
        default="dynamic", description="milp: an integer programme betters plans."
    )
    transitions: str | None = Field(
        default="build/transitions.json",
        min_length=1,
        description="File of what starts, stops and re-shards took in seconds and joules: the plan's switching costs. "
        "null = forgotten at the end.",
    )
    checkpoint: str | None = Field(
        default="build/controller.json",
        min_length=1,
        description="File in which plans, overrides and what was learnt outlive a restart; of answers' lengths in one "
        "beside it. null = nowhere.",
    )


class RunLogConfig(Section):
    path: str | None = Field(default="build/run.jsonl", min_length=1, description="JSONL file. null = off.")
    max_bytes: Count = Field(default=64 * MIB, description="Size at which the file becomes FILE.1.")
    keep: int = Field(default=3, ge=0, le=1000, description="Old files kept: FILE.1 (newest) to FILE.n. 0 = none.")


class Energy(Section):
    path: str | None = Field(
        default="build/energy.sqlite", min_length=1, description="SQLite file of the ledger. null = in memory only."
    )
    interval_s: float = Field(default=1.0, ge=1, le=60, description="Time between two reads of the energy counters.")
    keep_days: Count = Field(default=400, description="Days that sums by window, class, pool and key are kept.")
    keep_requests_days: Count = Field(default=7, description="Days that the joules of single requests are kept.")
    gco2_per_kwh: float | None = Field(default=None, ge=0, description="Grams of CO2 per kWh. null: not told.")
    gco2_file: str | None = Field(default=None, description="CSV of moment,gCO2 per kWh; wins over the constant.")
    price_per_kwh: float | None = Field(default=None, ge=0, description="Price of a kWh. null: not told.")
    price_file: str | None = Field(default=None, description="CSV of moment,price per kWh; wins over the constant.")
    currency: str = Field(default="USD", pattern=r"^[A-Z]{3}$", description="Of the price.")


class TtftConfig(Section):
    S: Millis = Field(default=250.0, description="For short prompts.")
    M: Millis = Field(default=400.0, description="For medium prompts.")
    L: Millis = Field(default=2000.0, description="For long prompts.")


class SloConfig(Section):
    ttft_p99_ms: TtftConfig = Field(default_factory=TtftConfig, description="Time to first token, p99, by input size.")
    tbt_p99_ms: Millis = Field(default=100.0, description="Time between output tokens, p99.")


class EdgesConfig(Section):
    input: Items[Count] = Field(default=(256, 1024, 8192), min_length=3, max_length=3, description="Prompts: S, M, L.")
    output: Items[Count] = Field(default=(100, 350), min_length=2, max_length=2, description="Answers: S, M.")

    def check(self) -> Problems:
        for name, edges in (("input", self.input), ("output", self.output)):
            if any(low >= high for low, high in pairwise(edges)):
                yield (name,), f"edges must rise from one to the next, not {list(edges)}"


class PoolConfig(Section):
    name: Name = Field(description="The pool's name, unique in its service.")
    serves: Items[Literal["S", "M", "L"]] = Field(min_length=1, description="Answer sizes it serves first: S, M, L.")
    instances: Amount = Field(default=1, description="Instances at the start. Static: the number of `urls`.")
    tp: int = Field(default=1, ge=1, le=1024, description="Tensor parallelism: GPUs per instance.")
    clock_mhz: Amount = Field(default=0, description="GPU clock at the start. 0 = the GPU's own default.")
    slots: Count = Field(default=128, description="Sequences that an instance may run at once (vLLM --max-num-seqs).")
    kv_tokens: Amount = Field(default=0, description="Tokens of KV cache of an instance. 0 = not known.")
    step_tokens: Amount = Field(
        default=0,
        description="Tokens in a step, prompts' and answers' (vLLM --max-num-batched-tokens). "
        f"0 = {STEP_TOKENS} is assumed; emulated: {EMULATED_STEP_TOKENS}.",
    )
    urls: Items[str] = Field(default=(), description="Static launcher only: http://HOST:PORT of each instance.")

    def check(self) -> Problems:
        if len(set(self.serves)) != len(self.serves):
            yield ("serves",), f"names a size twice: {list(self.serves)}"
        for index, url in enumerate(self.urls):
            if reason := _url_problem(url):
                yield ("urls", index), reason
        if 0 < self.step_tokens < self.slots:  # vLLM refuses it too
            yield ("step_tokens",), f"must be at least slots ({self.slots}): each running sequence takes one"
        if self.urls and "instances" in self.model_fields_set and self.instances != len(self.urls):
            yield ("instances",), f"{self.instances} instances but {len(self.urls)} urls; leave `instances` out"


class ServiceConfig(Section):
    model: str = Field(min_length=1, description="What the engines call the model.")
    context_tokens: Count = Field(default=8192, description="Longest prompt plus answer (vLLM --max-model-len).")
    profile: str = Field(default="", description="Engine model in profiles/models_h100.yaml. Empty = energy not known.")
    tokenizer: str = Field(default="", description="Path of a tokenizer.json, for exact prompt counts near an edge.")
    embeddings: bool = Field(default=False, description="Serves /v1/embeddings rather than answers.")
    engine_api_key_env: str = Field(
        default="", pattern=VARIABLE, description="Environment variable that holds the engines' API key."
    )
    engine_priority: bool = Field(default=False, description="Engines run with --scheduling-policy priority.")
    migration: bool = Field(
        default=True,
        description="A stream whose instance fails goes on at another one (docs/migration.md). Asks engines for token "
        "ids; one that knows no return_token_ids ignores it.",
    )
    slo: SloConfig = Field(default_factory=SloConfig, description="Latency promises.")
    eta: float | None = Field(
        default=None, ge=0, le=1, description="As controller.eta, for this service. null: as that says."
    )
    predictor: PredictorConfig = Field(default_factory=PredictorConfig, description="Foretells answers' lengths.")
    edges: EdgesConfig = Field(default_factory=EdgesConfig, description="Class edges in tokens, upper edge inclusive.")
    pools: Items[PoolConfig] = Field(min_length=1, description="Pools, shortest answers first.")
    launcher: LauncherConfig = Field(description="How instances come to be.")

    def check(self) -> Problems:
        yield from repeated(("pools",), "name", [pool.name for pool in self.pools], "pool name")
        yield from self._check_sizes()
        yield from self._check_urls()
        if self.launcher.kind != "static" and not any(pool.instances for pool in self.pools):
            yield ("pools",), "no pool has an instance"
        if self.launcher.kind == "emulated":
            yield from self._check_emulated()

    def _check_sizes(self) -> Problems:
        problem = order_problem([pool.serves for pool in self.pools])
        if problem is not None:
            index, sentence = problem
            yield ("pools",) if index is None else ("pools", index, "serves"), sentence

    def _check_urls(self) -> Problems:
        static = self.launcher.kind == "static"
        seen: set[str] = set()
        for index, pool in enumerate(self.pools):
            if static and not pool.urls:
                yield ("pools", index, "urls"), "the static launcher needs the URLs of its servers here"
            if not static and pool.urls:
                yield ("pools", index, "urls"), f"only the static launcher takes urls; kind is {self.launcher.kind}"
            for at, url in enumerate(pool.urls):
                if (plain := url.rstrip("/").lower()) in seen:
                    yield ("pools", index, "urls", at), f"{url} is listed twice; its slots would be counted twice"
                seen.add(plain)

    def _check_emulated(self) -> Problems:
        if self.profile not in (known := engine_model_names()):
            yield ("profile",), f'the emulated launcher needs one of {", ".join(sorted(known))}, not "{self.profile}"'
            return
        sizes = load_engine_model(self.profile).points
        for index, pool in enumerate(self.pools):
            if pool.tp not in sizes:
                yield ("pools", index, "tp"), f"{self.profile} is known with TP {', '.join(map(str, sizes))} only"
            if not pool.clock_mhz:
                yield ("pools", index, "clock_mhz"), "an emulated GPU needs a clock, e.g. 1980"


class Config(Section):
    """A joulegate configuration."""

    listen: Listen = Field(default_factory=Listen, description="Where clients connect.")
    auth: Auth = Field(default_factory=Auth, description="Who may do what.")
    limits: Limits = Field(default_factory=Limits, description="Bounds on sizes, numbers and waits.")
    health: Health = Field(default_factory=Health, description="Probes of instances.")
    breaker: Breaker = Field(default_factory=Breaker, description="When a failing instance is left alone.")
    controller: Controller = Field(default_factory=Controller, description="Chooses instances and clocks.")
    agents: Mapping[Name, AgentConfig] = Field(default={}, description="Node agents, which set GPU clocks, by name.")
    run_log: RunLogConfig = Field(default_factory=RunLogConfig, description="A row per request and tick; no prompts.")
    energy: Energy = Field(default_factory=Energy, description="The ledger of joules, what they cost and emit.")
    services: Mapping[Name, ServiceConfig] = Field(min_length=1, description="Served models by the name clients use.")

    def check(self) -> Problems:
        if not self.listen.loopback():
            for group, keys in (("keys", self.auth.keys), ("admin_keys", self.auth.admin_keys)):
                if not keys:
                    where = f"listen.host is {self.listen.host}, which others can reach"
                    yield ("auth", group), f"{where}: add a key, or listen on 127.0.0.1"
        for name, service in self.services.items():
            agent = service.launcher.agent
            if agent and agent not in self.agents:
                yield ("services", name, "launcher", "agent"), f'there is no agent "{agent}" under agents'
            elif agent and service.launcher.kind == "static":
                yield ("services", name, "launcher", "agent"), "nobody knows the GPUs of static servers"
        for index, key in enumerate(self.auth.keys):
            for at, named in enumerate(key.services or ()):
                if named not in self.services:
                    yield ("auth", "keys", index, "services", at), f'there is no service "{named}"'


def _url_problem(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"is no URL: {error}"
    if parts.scheme != "http":
        return "must start with http:// (instances are spoken to without TLS)"
    if not parts.hostname or port == 0 or parts.username is not None or re.search(r"[\s\x00-\x1f\\]", url):
        return "must be http://HOST:PORT"
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        return "must end after the port; joulegate adds the path itself, /v1 too"
    return None


def to_services(config: Config) -> tuple[ServiceSpec, ...]:
    """The services as the frozen values that the rest of the gateway reads; milliseconds become seconds here."""
    return tuple(_service(name, service) for name, service in config.services.items())


def _service(name: str, service: ServiceConfig) -> ServiceSpec:
    ttft, launcher = service.slo.ttft_p99_ms, service.launcher
    first, second, third = service.edges.input
    low, high = service.edges.output
    return ServiceSpec(
        name=name,
        model=service.model,
        context_tokens=service.context_tokens,
        slo=Slo({"S": ttft.S / 1e3, "M": ttft.M / 1e3, "L": ttft.L / 1e3}, service.slo.tbt_p99_ms / 1e3),
        edges=Edges((first, second, third), (low, high)),
        pools=tuple(_pool(pool, launcher.kind) for pool in service.pools),
        launcher=LauncherSpec(**{**dict(launcher), "env": dict(launcher.env)}),
        profile=service.profile,
        tokenizer=service.tokenizer,
        embeddings=service.embeddings,
        engine_api_key_env=service.engine_api_key_env,
        engine_priority=service.engine_priority,
        migration=service.migration,
        predictor=service.predictor.spec(),
        eta=service.eta,
    )


def _pool(pool: PoolConfig, launcher: str) -> PoolSpec:
    step_tokens = pool.step_tokens or (max(EMULATED_STEP_TOKENS, pool.slots) if launcher == "emulated" else 0)
    return PoolSpec(
        name=pool.name,
        serves=pool.serves,
        instances=len(pool.urls) or pool.instances,
        tp=pool.tp,
        clock_mhz=pool.clock_mhz,
        limits=InstanceLimits(pool.slots, pool.kv_tokens, step_tokens),
        urls=tuple(url.rstrip("/") for url in pool.urls),
    )
