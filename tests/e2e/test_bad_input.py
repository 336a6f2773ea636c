"""What clients may get wrong, and what they may not have: each gets its own status, code and shape, and the gateway
goes on. Also which headers pass, in both directions."""

import hashlib
import json
import socket
from contextlib import closing

import anthropic
import httpx
import openai
import pytest

from tests import fakes
from tests.e2e.process import CHAT, Gateway, pool, run_command, service, write_config
from tests.fakes import Stage, sample, until

LIMITS = {
    "max_body_bytes": 20_000,
    "max_header_bytes": 4_000,
    "max_streams": 4,
    "max_queue": 1,
    "max_wait_s": 0.5,
    "body_timeout_s": 0.4,
    "header_timeout_s": 0.4,
}
ROUTE = "/v1/chat/completions"


def keyed(name: str, **more: object) -> dict[str, object]:
    return {"name": name, "hash": "sha256:" + hashlib.sha256(f"key-of-{name}".encode()).hexdigest(), **more}


AUTH = {
    "keys": [
        keyed("ann"),
        keyed("bob", services=["other"]),
        keyed("cyd", requests_per_minute=2),
    ],
    "admin_keys": [keyed("root")],
}


@pytest.fixture(scope="module")
def gateway(stage: Stage, start) -> Gateway:
    """Open to all, with one slot and narrow limits."""
    return start({"tiny": service(pool(stage.backends[:1], slots=1))}, limits=LIMITS)


@pytest.fixture(scope="module")
def locked(stage: Stage, start) -> Gateway:
    """Two services behind keys."""
    services = {"tiny": service(pool(stage.backends[1:2])), "other": service(pool(stage.backends[2:]))}
    return start(services, auth=AUTH, admin_key="key-of-root")


@pytest.fixture(autouse=True)
def _settled(settled: None) -> None:
    return


def talk(gateway: Gateway, *pieces: bytes) -> bytes:
    """Sends raw bytes and reads until the gateway closes the connection."""
    with closing(socket.create_connection(("127.0.0.1", gateway.port), 10)) as made:
        for piece in pieces:
            made.sendall(piece)
        return made.makefile("rb").read()


def post_bytes(gateway: Gateway, body: bytes, path: str = ROUTE) -> httpx.Response:
    return httpx.post(gateway.url + path, content=body, headers={"content-type": "application/json"})


BAD_BODIES = {
    b"": "invalid_json",
    b"{": "invalid_json",
    b"not json": "invalid_json",
    b"\xff\xfe{}": "invalid_json",
    b'{"model":"tiny"} trailing': "invalid_json",
    b'{"model":"tiny","x":' + b"[" * 5000: "invalid_json",
    b'{"model":"tiny","messages":[{"content":"half a pair: \\ud83d"}]}': "invalid_json",
    b"[]": "invalid_type",
    b"null": "invalid_type",
    b'"text"': "invalid_type",
    b'{"model":7}': "invalid_type",
    b'{"model":"tiny","messages":"hello"}': "invalid_type",
    b'{"model":"tiny","messages":[7]}': "invalid_type",
    b'{"model":"tiny","max_tokens":"many"}': "invalid_type",
    b'{"model":"tiny","max_tokens":1e300}': "invalid_type",
    b'{"model":"tiny","stream":"perhaps"}': "invalid_type",
    b'{"model":"tiny","stream_options":3}': "invalid_type",
    b'{"model":"tiny","n":1000000}': "too_many_answers",
    b'{"model":"none-such","messages":[]}': "model_not_found",
}


@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: body[:40].decode("latin-1"))
def test_bad_bodies(body: bytes, gateway: Gateway, stage: Stage) -> None:
    said = post_bytes(gateway, body)
    error = said.json()["error"]
    assert (said.status_code, error["code"]) == (404 if b"none-such" in body else 400, BAD_BODIES[body])
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    claude = post_bytes(gateway, body, "/v1/messages")
    assert claude.status_code == said.status_code
    assert claude.json()["type"] == "error" and claude.json()["error"]["message"] == error["message"]
    assert not stage.requests


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"tiny","max_tokens":-5}',
        b'{"model":"tiny","max_tokens":null,"n":0}',
        b'{"model":"tiny","n":65536}',
        b'{"model":"tiny","prompt":[]}',
        b'{"model":"tiny","messages":[{"role":"user","content":[{"type":"text","text":7},3,null]}]}',
        b'{"model":"tiny","model":"tiny"}',
        b'  {"model" : "tiny" }  ',
    ],
    ids=lambda body: body[:60].decode(),
)
def test_odd_bodies_are_for_the_engine_to_judge(body: bytes, gateway: Gateway, stage: Stage) -> None:
    said = post_bytes(gateway, body)
    assert (said.status_code, said.content) == (200, sample("chat"))
    assert stage.requests[0].body == body


def test_unknown_routes_take_the_shape_of_their_family(gateway: Gateway) -> None:
    for path in ("/v1/none-such", "/none-such", "/v1", "/v1/chat/completions/", "/admin/none-such", "/docs/none-such"):
        said = httpx.post(gateway.url + path, json={})
        assert said.status_code == 404, path
        assert said.json()["error"]["message"], path
    claude = httpx.post(gateway.url + "/v1/messages/none-such", json={})
    assert (claude.status_code, claude.json()["error"]["type"]) == (404, "not_found_error")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("GET", ROUTE, "POST"), ("DELETE", "/v1/messages", "POST"), ("POST", "/v1/models", "GET"),
     ("PUT", "/metrics", "GET"), ("DELETE", "/admin/state", "GET"), ("POST", "/v1/models/tiny", "GET")],
)  # fmt: skip
def test_wrong_method(method: str, path: str, allow: str, gateway: Gateway) -> None:
    said = httpx.request(method, gateway.url + path)
    assert said.status_code == 405
    assert allow in said.headers["allow"]
    assert said.json()["error"]["message"]


def test_a_huge_body(gateway: Gateway, stage: Stage) -> None:
    body = json.dumps({**CHAT, "x": "y" * 30_000}).encode()
    for content in (body, iter([body[:15_000], body[15_000:]])):  # the second has no content-length
        said = httpx.post(gateway.url + ROUTE, content=content)
        assert (said.status_code, said.json()["error"]["code"]) == (413, "body_too_large")
    claude = httpx.post(gateway.url + "/v1/messages", content=body)
    assert (claude.status_code, claude.json()["error"]["type"]) == (413, "request_too_large")
    assert not stage.requests


def test_a_slow_body(gateway: Gateway) -> None:
    said = talk(gateway, b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{" % ROUTE.encode())
    assert said.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"body_timeout"' in said


@pytest.mark.parametrize("piece", [b"P", b"POST / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\nhost: x\r\nx-a: "])
def test_a_slow_head(piece: bytes, gateway: Gateway) -> None:
    said = talk(gateway, piece)
    assert said.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"header_timeout"' in said


def test_a_connection_that_says_nothing_is_closed(gateway: Gateway) -> None:
    """Without a word: an answer could be taken for that of the first request, just on its way."""
    assert talk(gateway) == b""


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
def test_huge_headers(end: bytes, gateway: Gateway) -> None:
    said = talk(gateway, b"POST / HTTP/1.1\r\nhost: x\r\nx-a: ", b"a" * 5_000, end)
    assert said.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"headers_too_large"' in said


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"SSH-2.0-x\r\n\r\n", b"\r\nnonsense\r\n"]
)
def test_what_is_no_http(data: bytes, gateway: Gateway) -> None:
    said = talk(gateway, data)
    assert said.startswith(b"HTTP/1.1 400 ")
    assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


def test_two_lengths_are_no_http(gateway: Gateway, stage: Stage) -> None:
    head = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    assert talk(gateway, head % ROUTE.encode()).startswith(b"HTTP/1.1 400 ")
    assert not stage.requests


def test_an_empty_line_after_the_body_harms_nothing(gateway: Gateway, stage: Stage) -> None:
    """RFC 9112, 2.2: a server ignores it. The time limit on the next head must not end the answer that runs."""
    stage.play(fakes.drip)
    body = json.dumps({**CHAT, "stream": True}).encode()
    head = b"POST %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    with closing(socket.create_connection(("127.0.0.1", gateway.port), 10)) as made:
        made.sendall(head % (ROUTE.encode(), len(body)) + body)
        said = made.recv(100)
        made.sendall(b"\r\n")
        while said.count(b"data:") < 50:  # a second or so, longer than the limit
            said += made.recv(100_000)
            assert b"408" not in said
        stage.open_gate()
        said += made.makefile("rb").read()
    assert b"data: [DONE]" in said


def test_garbage_after_a_request_never_lands_in_its_answer(gateway: Gateway, stage: Stage) -> None:
    stage.play(fakes.drip)
    body = json.dumps({**CHAT, "stream": True}).encode()
    with closing(socket.create_connection(("127.0.0.1", gateway.port), 10)) as made:
        made.sendall(b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (ROUTE.encode(), len(body)) + body)
        said = made.recv(100)
        made.sendall(b"\x00\x01 nonsense\r\n\r\n")
        said += made.makefile("rb").read()
    assert said.count(b"HTTP/1.1") == 1
    assert until(lambda: stage.requests[0].gone.is_set())


@pytest.mark.parametrize("value", ["", "x", "-1", "0", "nan", "inf", "1e99", "10 ms"])
@pytest.mark.parametrize("name", ["x-slo-ttft-ms", "x-slo-tpot-ms"])
def test_bad_objectives(name: str, value: str, gateway: Gateway, stage: Stage) -> None:
    said = httpx.post(gateway.url + ROUTE, json=CHAT, headers={name: value})
    assert said.status_code == 400
    assert (said.json()["error"]["code"], said.json()["error"]["param"]) == ("invalid_slo", name)
    assert not stage.requests


def test_an_objective_of_its_own(gateway: Gateway) -> None:
    said = httpx.post(gateway.url + ROUTE, json=CHAT, headers={"x-slo-ttft-ms": "0.001", "x-slo-tpot-ms": "0.001"})
    assert said.status_code == 200
    assert gateway.row(said.headers["x-request-id"])["attained"] is False


def test_the_queue_fills_and_waits_end(gateway: Gateway, stage: Stage) -> None:
    stage.play(fakes.drip)
    with (
        httpx.Client(base_url=gateway.url) as http,
        http.stream("POST", ROUTE, json={**CHAT, "stream": True}),
        closing(socket.create_connection(("127.0.0.1", gateway.port), 10)) as waits,
    ):
        body = json.dumps(CHAT).encode()
        head = b"POST %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        waits.sendall(head % (ROUTE.encode(), len(body)) + body)
        assert until(lambda: gateway.state()["services"][0]["queued"] == 1)
        full = gateway.post()
        assert (full.status_code, full.json()["error"]["code"]) == (429, "queue_full")
        assert int(full.headers["retry-after"]) >= 1
        late = waits.makefile("rb").read()
        assert late.startswith(b"HTTP/1.1 503 ") and b'"code":"queue_timeout"' in late and b"retry-after: " in late
        assert len(stage.requests) == 1
        stage.open_gate()
    assert until(lambda: [row["outcome"] for row in gateway.rows()].count("shed") == 2)


def test_too_many_streams(gateway: Gateway, stage: Stage) -> None:
    """Four slow bodies take all four places."""
    made = [socket.create_connection(("127.0.0.1", gateway.port), 10) for _ in range(4)]
    for each in made:
        each.sendall(b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{" % ROUTE.encode())
    assert until(lambda: gateway.state()["in_flight"] == 4)
    said = gateway.post()
    assert (said.status_code, said.json()["error"]["code"]) == (429, "too_many_streams")
    assert "retry-after" in said.headers
    for each in made:
        each.close()


# --- keys


def as_(name: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer key-of-{name}", **more}


@pytest.mark.parametrize("headers", [{}, as_("eve"), {"authorization": "Basic a2V5"}, {"x-api-key": "x"}, as_("root")])
def test_no_key_or_a_wrong_one(headers: dict[str, str], locked: Gateway, stage: Stage) -> None:
    for path in (ROUTE, "/tokenize"):
        said = httpx.post(locked.url + path, json=CHAT, headers=headers)
        assert (said.status_code, said.json()["error"]["code"]) == (401, "invalid_api_key")
        assert "key-of" not in said.text
    claude = httpx.post(locked.url + "/v1/messages", json=CHAT, headers=headers)
    assert (claude.status_code, claude.json()["error"]["type"]) == (401, "authentication_error")
    assert httpx.get(locked.url + "/v1/models", headers=headers).status_code == 401
    assert httpx.get(locked.url + "/health").status_code == 200
    assert not stage.requests


def test_official_clients_raise_what_users_catch(locked: Gateway) -> None:
    wrong = openai.OpenAI(base_url=f"{locked.url}/v1", api_key="wrong", max_retries=0)
    with wrong, pytest.raises(openai.AuthenticationError):
        wrong.chat.completions.create(model="tiny", messages=CHAT["messages"])
    claude = anthropic.Anthropic(base_url=locked.url, api_key="wrong", max_retries=0)
    with claude, pytest.raises(anthropic.AuthenticationError):
        claude.messages.create(model="tiny", messages=CHAT["messages"], max_tokens=6)
    with anthropic.Anthropic(base_url=locked.url, api_key="key-of-ann", max_retries=0) as claude:
        assert claude.messages.create(model="tiny", messages=CHAT["messages"], max_tokens=6).role == "assistant"


def test_a_key_for_another_service(locked: Gateway, stage: Stage) -> None:
    said = httpx.post(locked.url + ROUTE, json=CHAT, headers=as_("bob"))
    assert (said.status_code, said.json()["error"]["code"]) == (403, "model_not_allowed")
    models = httpx.get(locked.url + "/v1/models", headers=as_("bob")).json()["data"]
    assert [model["id"] for model in models] == ["other"]
    assert httpx.get(locked.url + "/v1/models/tiny", headers=as_("bob")).status_code == 404
    other = httpx.post(locked.url + ROUTE, json={**CHAT, "model": "other"}, headers=as_("bob"))
    assert other.status_code == 200
    assert [request.json["model"] for request in stage.requests] == ["tiny"], "the engine knows it by its own name"


def test_a_rate_limit(locked: Gateway, stage: Stage) -> None:
    answers = [httpx.post(locked.url + ROUTE, json=CHAT, headers=as_("cyd")) for _ in range(3)]
    assert [a.status_code for a in answers] == [200, 200, 429]
    assert answers[2].json()["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(answers[2].headers["retry-after"]) <= 30
    assert httpx.post(locked.url + ROUTE, json=CHAT, headers=as_("ann")).status_code == 200
    assert len(stage.requests) == 3
    assert locked.row(answers[2].headers["x-request-id"])["key"] == "cyd"


# --- headers


def test_secrets_and_hop_by_hop_headers_stay_here(locked: Gateway, stage: Stage) -> None:
    secret = {"x-api-key": "key-of-ann", "api-key": "a", "cookie": "c=1", "proxy-authorization": "Basic x"}
    hops = {"connection": "keep-alive, x-hop", "x-hop": "1", "te": "trailers", "keep-alive": "timeout=5"}
    kept = {"x-custom": "yes", "openai-organization": "org"}
    ours = {"x-slo-ttft-ms": "500", "accept-encoding": "gzip", "expect": "100-continue"}
    said = httpx.post(locked.url + ROUTE, json=CHAT, headers=as_("ann", **secret, **hops, **kept, **ours))
    assert said.status_code == 200
    names = [name for name, _ in stage.requests[0].headers]
    assert not {*secret, "authorization", "te", "keep-alive", "x-hop", "connection", *ours} & {*names}
    assert stage.requests[0].header("x-custom") == "yes"
    assert len(names) == len(set(names)), names
    assert "key-of-ann" not in locked.run_log.read_text() + locked.log()


def test_hop_by_hop_headers_of_an_instance_stay_there(gateway: Gateway, stage: Stage) -> None:
    dropped = {"connection": "keep-alive, x-hop", "x-hop": "1", "keep_alive": "timeout=5", "set_cookie": "a=b",
               "server": "uvicorn", "x_request_id": "theirs", "proxy_authenticate": "Basic"}  # fmt: skip
    stage.play(fakes.status(200, sample("chat"), **dropped, x_kept="yes"))
    said = gateway.post()
    assert said.headers["x-kept"] == "yes"
    assert not {"x-hop", "keep-alive", "set-cookie", "server", "proxy-authenticate"} & {*said.headers}
    assert "theirs" not in said.headers["x-request-id"]


def test_request_ids(gateway: Gateway, stage: Stage) -> None:
    said = httpx.post(gateway.url + ROUTE, json=CHAT, headers={"x-request-id": "abc-123"})
    assert said.headers.get_list("x-request-id") == ["abc-123"]
    assert stage.requests[0].header("x-request-id") == "abc-123"
    assert gateway.row("abc-123")["status"] == 200
    for insane in ("", "a b", "a" * 129, "ü", "<script>", "a,b"):
        said = httpx.post(gateway.url + ROUTE, json=CHAT, headers={"x-request-id": insane.encode()})
        assert said.headers["x-request-id"] not in ("", insane)
        assert stage.requests[-1].header("x-request-id") == said.headers["x-request-id"]


def test_own_headers(gateway: Gateway) -> None:
    for stream in (False, True):
        headers = gateway.post(stream=stream).headers
        assert headers["x-joulegate-pool"] == "all"
        assert headers["x-joulegate-instance"] in {i["id"] for i in gateway.instances().values()}
        assert headers["x-joulegate-class"] in {a + b for a in "SML" for b in "SML"}
        assert float(headers["x-joulegate-overhead-ms"]) >= 0
    assert "x-joulegate-class" not in gateway.post("/tokenize", prompt="x").headers
    assert httpx.post(gateway.url + ROUTE, content=b"{").headers["x-request-id"]


# --- the command line


def test_port_in_use(gateway: Gateway) -> None:
    done = run_command("serve", gateway.config, "--port", gateway.port)
    assert done.returncode == 1
    assert f"127.0.0.1:{gateway.port}" in done.stderr and "--port" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_misspelt_key_names_its_line_and_the_nearest(stage: Stage, tmp_path) -> None:
    path = write_config(tmp_path, {"tiny": service(pool(stage.backends))}, limits={"max_queues": 5})
    line = path.read_text().splitlines().index("  max_queues: 5") + 1
    done = run_command("serve", path)
    assert done.returncode == 2
    assert f"{path}:{line}: limits.max_queues:" in done.stderr and 'did you mean "max_queue"?' in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_file(tmp_path) -> None:
    done = run_command("serve", tmp_path / "none.yaml")
    assert done.returncode == 2
    assert "none.yaml" in done.stderr and "Traceback" not in done.stderr
