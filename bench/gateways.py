"""The gateways that are compared: where each is found, how it is started, and the configuration written for it.

Nothing is installed or started here. A peer whose program is not found is None, and whoever asks says so."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MODEL = "stub-model"
KEY = "sk-joulegate-bench-only"
OURS = "joulegate"
AGAIN = "joulegate-again"  # the same once more, to see how far two equal things measure apart
BASELINE = "joulegate-baseline"  # another checkout
PEERS = ("nginx", "vllm-router", "smg", "litellm", "raw-relay")
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Gateway:
    """`exact`: its answers must be what the stub sent, byte for byte. `slow`: starts late and costs so much that a few
    rounds say enough."""

    name: str
    port: int
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    headers: tuple[str, ...] = ()
    exact: bool = True
    slow: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """What a configuration needs to know: the ports of the two stub engines and a folder of its own."""

    backends: tuple[int, int]
    folder: Path

    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.backends]

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)


def joulegate_config(port: int, urls: Sequence[str], run_log: str) -> dict[str, object]:
    """Everything on: keys, rate limits, the learnt predictor, deadlines, KV room, token ids kept for migration, energy
    ledger, run log, controller with its checkpoint, probes. What /admin/explain tells is kept always."""
    pools = [
        {"name": name, "serves": serves, "tp": 4, "clock_mhz": 1980, "slots": 128, "kv_tokens": 400_000, "urls": [url]}
        for name, serves, url in zip(("short", "long"), (["S", "M"], ["L"]), urls, strict=True)
    ]
    digest = "sha256:" + hashlib.sha256(KEY.encode()).hexdigest()
    service = {
        "model": MODEL,
        "context_tokens": 8192,
        "profile": "llama-3.1-70b",
        "pools": pools,
        "launcher": {"kind": "static"},
        "migration": True,
        "predictor": {"kind": "model"},
    }
    return {
        "listen": {"host": "127.0.0.1", "port": port},
        "auth": {"keys": [{"name": "bench", "hash": digest, "requests_per_minute": 1_000_000_000}]},
        "controller": {"mode": "enforce", "checkpoint": f"{run_log}.checkpoint"},
        "run_log": {"path": run_log},
        "energy": {"path": f"{run_log}.energy.sqlite"},
        "services": {MODEL: service},
    }


def joulegate(name: str, port: int, place: Place, source: Path) -> Gateway:
    """From the checkout `source`, with the Python that runs the bench."""
    run_log = str(place.folder / f"{name}.run.jsonl")
    config = place.write(f"{name}.yaml", json.dumps(joulegate_config(port, place.urls(), run_log), indent=1))
    argv = (sys.executable, "-m", "joulegate", "serve", config)
    headers = (f"Authorization: Bearer {KEY}",)
    return Gateway(name, port, argv, {"PYTHONPATH": str(source)}, source, headers)


def nginx_config(port: int, backends: Sequence[int]) -> str:
    servers = " ".join(f"server 127.0.0.1:{backend};" for backend in backends)
    temp = " ".join(f"{kind}_temp_path {kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    return f"""worker_processes 1; daemon off; pid nginx.pid; error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000; client_body_buffer_size 256k; tcp_nodelay on; {temp}
  upstream engines {{ {servers} keepalive 512; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


def litellm_config(urls: Sequence[str]) -> dict[str, object]:
    def one(url: str) -> dict[str, object]:
        params = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{url}/v1", "api_key": "x"}
        return {"model_name": MODEL, "litellm_params": params}

    return {
        "model_list": [one(url) for url in urls],
        "router_settings": {"routing_strategy": "simple-shuffle", "num_retries": 0, "disable_cooldowns": True},
        "litellm_settings": {"telemetry": False, "set_verbose": False, "request_timeout": 120},
    }


def peers_root(environ: Mapping[str, str] = os.environ) -> Path:
    return Path(environ.get("PEERS_VENVS") or "~/.cache/joulegate-peers").expanduser()


def peer(name: str, port: int, place: Place, root: Path, second_port: int) -> Gateway | None:
    """None = not installed. Each is started with its plainest policy, round robin over the two engines."""
    here, urls = ("--host", "127.0.0.1", "--port", str(port)), place.urls()
    routers = {
        "vllm-router": (root / "v_vllmrouter/bin/vllm-router", "warning"),
        "smg": (root / "v_smg/bin/smg", "warn"),
    }
    if name == "nginx":
        nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
        config = place.write("nginx.conf", nginx_config(port, place.backends))
        return Gateway(name, port, (nginx, "-c", config, "-p", str(place.folder))) if nginx else None
    if name in routers:
        program, level = routers[name]
        more = ("--policy", "round_robin", "--prometheus-port", str(second_port), "--log-level", level)
        argv = (str(program), *(("launch",) if name == "smg" else ()), *here, "--worker-urls", *urls, *more)
        argv += ("--disable-tokenizer-autoload",) if name == "smg" else ()
        return Gateway(name, port, argv) if program.exists() else None
    if name == "litellm":
        program = root / "v_litellm/bin/litellm"
        config = place.write("litellm.yaml", json.dumps(litellm_config(urls)))
        env = {
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # it refuses to start without a key
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_LOG": "ERROR",
            "LITELLM_TELEMETRY": "False",
            "NO_PROXY": "127.0.0.1,localhost",
        }
        argv = (str(program), "--config", config, *here, "--num_workers", "1")
        return Gateway(name, port, argv, env, exact=False, slow=True) if program.exists() else None
    if name == "raw-relay":
        backends = [str(backend) for backend in place.backends]
        return Gateway(name, port, (sys.executable, str(HERE / "raw_relay.py"), str(port), *backends))
    raise ValueError(f"{name} is no known peer; known: {', '.join(PEERS)}")
