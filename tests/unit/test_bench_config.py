"""The configurations that the bench writes."""

import hashlib
import json
from pathlib import Path

import pytest

from bench.gateways import (
    KEY,
    MODEL,
    PEERS,
    Place,
    joulegate,
    joulegate_config,
    litellm_config,
    nginx_config,
    peer,
    peers_root,
)
from bench.run import parse_args
from gateway.config_file import load_config

URLS = ["http://127.0.0.1:9101", "http://127.0.0.1:9102"]


def test_joulegate_takes_its_configuration_with_everything_on(tmp_path: Path) -> None:
    path = tmp_path / "joulegate.yaml"
    path.write_text(json.dumps(joulegate_config(9200, URLS, str(tmp_path / "run.jsonl"))))
    config = load_config(path, {}, [])
    assert config.listen.port == 9200 and config.run_log.path == str(tmp_path / "run.jsonl")
    assert config.auth.keys[0].hash == "sha256:" + hashlib.sha256(KEY.encode()).hexdigest()
    assert config.auth.keys[0].requests_per_minute is not None
    service = config.services[MODEL]
    assert [pool.urls for pool in service.pools] == [(URLS[0],), (URLS[1],)]
    assert service.profile and all(pool.kv_tokens for pool in service.pools)
    assert service.migration and service.predictor.kind == "model"
    assert config.energy.path and config.controller.checkpoint


def test_joulegate_is_started_from_the_named_checkout(tmp_path: Path) -> None:
    gateway = joulegate("joulegate", 9200, Place((9101, 9102), tmp_path), Path("/somewhere"))
    assert gateway.env == {"PYTHONPATH": "/somewhere"} and gateway.cwd == Path("/somewhere")
    assert gateway.exact and gateway.headers == (f"Authorization: Bearer {KEY}",)


def test_nginx_keeps_connections_and_does_not_buffer() -> None:
    text = nginx_config(9201, [9101, 9102])
    assert "server 127.0.0.1:9101; server 127.0.0.1:9102; keepalive" in text
    assert "listen 127.0.0.1:9201;" in text and "proxy_buffering off" in text
    assert text.count("{") == text.count("}")


def test_litellm_has_both_engines() -> None:
    config = litellm_config(URLS)
    assert json.dumps(config).count(f"hosted_vllm/{MODEL}") == 2 and f"{URLS[1]}/v1" in json.dumps(config)


@pytest.mark.parametrize("name", ["vllm-router", "smg", "litellm"])
def test_a_peer_that_is_not_installed_is_none(name: str, tmp_path: Path) -> None:
    assert peer(name, 9201, Place((9101, 9102), tmp_path), tmp_path / "nothing", 9401) is None


def test_a_peer_is_told_both_engines(tmp_path: Path) -> None:
    program = tmp_path / "v_smg/bin/smg"
    program.parent.mkdir(parents=True)
    program.touch()
    found = peer("smg", 9201, Place((9101, 9102), tmp_path), tmp_path, 9401)
    assert found is not None and found.argv[:2] == (str(program), "launch")
    assert set(URLS) < set(found.argv) and "9401" in found.argv


def test_an_unknown_peer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no known peer"):
        peer("squid", 1, Place((2, 3), tmp_path), tmp_path, 4)
    with pytest.raises(SystemExit) as ended:
        parse_args(["--peers", "nginx,squid"])
    assert ended.value.code == 2


def test_where_peers_are() -> None:
    assert peers_root({"PEERS_VENVS": "/opt/peers"}) == Path("/opt/peers")
    assert peers_root({}).name == "joulegate-peers"


def test_more_rounds_when_joulegate_is_alone() -> None:
    assert parse_args(["--self-check"]).rounds > parse_args([]).rounds
    assert parse_args(["--self-check", "--rounds", "2"]).rounds == 2
    assert set(PEERS) >= {"nginx", "vllm-router", "smg", "litellm"}
