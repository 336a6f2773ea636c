"""The configuration: what loads, what is refused, and that every refusal says where."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from core.service import SIZES
from gateway.config import Config, to_services
from gateway.config_docs import config_reference
from gateway.config_file import ConfigError, config_schema, load_config

ROOT = Path(__file__).resolve().parents[2]
DEV = ROOT / "configs" / "dev.yaml"
H100 = ROOT / "configs" / "h100x8.yaml"
TEXT = DEV.read_text()
SERVICE = "services.llama-3.1-70b"
MINIMAL = """services:
  s:
    model: m
    pools:
      - {name: p, serves: [S, M, L], urls: ["http://a:1"]}
    launcher: {kind: static}
"""

Load = Callable[..., Config]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def from_text(text: str | bytes, env: dict[str, str] | None = None, *overrides: str) -> Config:
        file = tmp_path / "c.yaml"
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return load_config(file, env or {}, overrides)

    return from_text


def problems(load: Load, *args: Any) -> list[str]:
    """The problems as `line: path: message`."""
    with pytest.raises(ConfigError) as caught:
        load(*args)
    return [str(problem).rpartition("c.yaml:")[2] for problem in caught.value.errors]


def changed(before: str, after: str, text: str = TEXT) -> str:
    assert before in text
    return text.replace(before, after, 1)


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


# What loads


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda file: file.stem)
def test_shipped_configuration_loads(file: Path) -> None:
    services = to_services(load_config(file, {}, ()))
    for service in services:
        assert {size for pool in service.pools for size in pool.serves} == {*SIZES}
    jsonschema_rs.validate(config_schema(), yaml.safe_load(file.read_text()))


def test_dev_becomes_the_frozen_values() -> None:
    (service,) = to_services(load_config(DEV, {}, ()))
    assert (service.name, service.model) == ("llama-3.1-70b", "meta-llama/Llama-3.1-70B-Instruct")
    assert service.slo.ttft_s == {"S": 0.25, "M": 0.4, "L": 2.0}
    assert service.slo.tbt_s == 0.1
    assert [(pool.name, pool.serves, pool.tp, pool.limits.slots) for pool in service.pools] == [
        ("short", ("S",), 4, 128),
        ("medium", ("M",), 4, 128),
        ("long", ("L",), 8, 128),
    ]
    assert service.launcher.kind == "emulated"


def test_defaults(load: Load) -> None:
    config = load(MINIMAL)
    assert (config.listen.host, config.limits.max_body_bytes, config.run_log.keep) == ("127.0.0.1", 8 << 20, 3)
    assert config.controller.mode == "enforce"


def test_static_pool_has_an_instance_per_url(load: Load) -> None:
    config = load(changed('["http://a:1"]', '["http://a:1/", "http://b:1"]', MINIMAL))
    (pool,) = to_services(config)[0].pools
    assert (pool.instances, pool.urls) == (2, ("http://a:1", "http://b:1"))


def test_step_tokens_are_the_emulated_engines_or_unknown(load: Load) -> None:
    steps = {
        file: [p.limits.step_tokens for p in to_services(load_config(file, {}, ()))[0].pools] for file in (DEV, H100)
    }
    assert steps == {DEV: [512] * 3, H100: [512] * 3}
    named = to_services(load(changed("slots: 128", "slots: 128\n        step_tokens: 1024")))[0].pools
    assert [pool.limits.step_tokens for pool in named] == [1024, 512, 512]
    many = to_services(load(changed("slots: 128", "slots: 600")))[0].pools
    assert many[0].limits.step_tokens == 600, "every running sequence takes one"
    (static,) = to_services(load(MINIMAL))[0].pools
    assert (static.limits.step_tokens, static.limits.tokens_per_step) == (0, 2048)


def test_keys_let_others_in(load: Load) -> None:
    key = f"[{{name: a, hash: 'sha256:{'0' * 64}'}}]"
    config = load(MINIMAL, None, "listen.host=0.0.0.0", f"auth.keys={key}", f"auth.admin_keys={key}")
    assert config.auth.keys[0].services is None


# Precedence


def test_command_line_beats_environment_beats_file(load: Load) -> None:
    env = {"JOULEGATE__LISTEN__PORT": "9000", "JOULEGATE__listen__Host": "::1", "OTHER": "x"}
    assert load(TEXT).listen.port == 8080
    assert load(TEXT, env).listen.port == 9000
    config = load(TEXT, env, "listen.port=9001")
    assert (config.listen.host, config.listen.port) == ("::1", 9001)


def test_environment_reaches_a_service_with_dots_and_dashes(load: Load) -> None:
    env = {"JOULEGATE__SERVICES__LLAMA_3_1_70B__POOLS__SHORT__TP": "2", "JOULEGATE__RUN_LOG__PATH": "null"}
    config = load(TEXT, env)
    assert config.services["llama-3.1-70b"].pools[0].tp == 2
    assert config.run_log.path is None


def test_command_line_takes_the_longest_name_that_fits(load: Load) -> None:
    twice = MINIMAL + MINIMAL.partition("\n")[2].replace("  s:", "  s.slo:").replace("a:1", "b:1")
    config = load(twice, None, "services.s.slo.model=x", "services.s.edges.output=[1, 2]")
    assert config.services["s.slo"].model == "x"
    assert config.services["s"].edges.output == (1, 2)


@pytest.mark.parametrize("path", ["pools.1.slots", "pools.medium.slots"])
def test_items_of_a_list_by_number_or_name(load: Load, path: str) -> None:
    assert load(TEXT, None, f"{SERVICE}.{path}=7").services["llama-3.1-70b"].pools[1].slots == 7


def test_new_environment_of_a_launcher_keeps_its_case(load: Load) -> None:
    config = load(TEXT, {"JOULEGATE__SERVICES__LLAMA_3_1_70B__LAUNCHER__ENV__Omp_X": "'1'"})
    assert config.services["llama-3.1-70b"].launcher.env == {"Omp_X": "1"}


@pytest.mark.parametrize(
    ("env", "override", "message"),
    [
        ({"JOULEGATE__LISTEN__PROT": "1"}, (), 'JOULEGATE__LISTEN__PROT: listen has no "PROT": unknown key; did you'),
        ({"JOULEGATE__LISTEN__PORT": "x"}, (), "JOULEGATE__LISTEN__PORT: listen.port: must be a whole number"),
        ({"JOULEGATE__LISTEN": "["}, (), "JOULEGATE__LISTEN: listen: is no YAML"),
        ({}, ("listen.port",), "--set listen.port: must be KEY=VALUE"),
        ({}, ("listen..port=1",), "--set listen..port: listen has no"),
        ({}, ("=1",), "--set : here has no"),
        ({}, ("services.none.model=1",), '--set services.none.model: services has no "none"'),
        ({}, (f"{SERVICE}.pools.9.tp=1",), 'has no "9"'),
        ({}, ("listen.port.deeper=1",), 'listen.port has no "deeper"'),
    ],
)
def test_wrong_overrides_name_their_source(
    load: Load, env: dict[str, str], override: tuple[str, ...], message: str
) -> None:
    assert message in problems(load, TEXT, env, *override)[0]


def test_two_services_that_look_alike_in_the_environment(load: Load) -> None:
    twice = MINIMAL + MINIMAL.partition("\n")[2].replace("a:1", "b:1")
    text = twice.replace("  s:", "  s-1:", 1).replace("  s:", "  s.1:", 1)
    assert "s-1 and s.1 both fit" in problems(load, text, {"JOULEGATE__SERVICES__S_1__MODEL": "x"})[0]


# Files that are no configuration


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"# only words\n", "must hold keys and values"),
        (b"- a\n", "must hold keys and values"),
        (b"\x7fELF\x00\xff\xfe", "is not a text file"),
        (b"a: \x07", "holds a character"),
        (b'a: "\\U00110000"', "holds a character"),
        (b"a: 1\n\tb: 2\n", "2: a tab"),
        (b"a: 1\nb: {\n", "is no YAML"),
        (b"a: 1\na: 2\n", "2: a: the key is here twice; first in line 1"),
        (b"a: &x [1]\nb: [*x, *x]\n", "1: anchors (&) and aliases (*) are not taken"),
        (b"a: *x\n", "1: anchors (&) and aliases (*) are not taken"),
        (b"a: !!python/object/apply:os.system [x]\n", "1: a: the YAML tag"),
        (b"a: !!int x\n", "1: a: is no int"),
        (b"? [a]\n: 1\n", "1: a key must be a plain word"),
        (b"a: 1\n---\nb: 2\n", "is no YAML: expected a single document"),
        (b"[" * 5000, "nested deeper"),
        (b"a: 1\n" * 60_000, "is longer than 256 KiB"),
    ],
)
def test_files_that_are_no_configuration(load: Load, text: bytes, message: str) -> None:
    assert any(message in problem for problem in problems(load, text))


@pytest.mark.parametrize("path", ["nowhere.yaml", ".", "a\0b"])
def test_files_that_cannot_be_read(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(f"{tmp_path}/{path}", {}, ())


# Rules


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("port: 8080", "port: '8080'", 'listen.port: must be a whole number, not "8080"'),
        ("port: 8080", "port: true", "listen.port: must be a whole number, not true"),
        ("port: 8080", "port: 70000", "listen.port: must be less than or equal to 65535, not 70000"),
        ("port: 8080", "port:", "listen.port: is empty"),
        ("host: 127.0.0.1", "host: 0.0.0.0", "auth.keys: listen.host is 0.0.0.0"),
        ("host: 127.0.0.1", "host: example.org", "auth.admin_keys: listen.host is example.org"),
        ("mode: enforce", "mode: force", "controller.mode: must be 'shadow', 'advise' or 'enforce', not \"force\""),
        ("tbt_p99_ms: 100", "tbt_p99_ms: .inf", "tbt_p99_ms: must be a number"),
        ("tbt_p99_ms: 100", "tbt_p99_ms: 1e999", "tbt_p99_ms: must be a finite number"),
        ("[256, 1024, 8192]", "[256, 256, 8192]", "edges.input: edges must rise"),
        ("[256, 1024, 8192]", "[256, 1024]", "edges.input: must have at least 3 items, not 2"),
        ("name: medium", "name: short", "pools.1.name: pool name 'short' is already used by number 1"),
        ("name: medium", "name: a b", "pools.1.name: must be 1 to 128 letters"),
        ("llama-3.1-70b:", '"llama 3":', "services.llama 3: must be 1 to 128 letters"),
        ("serves: [L]", "serves: [M]", "pools: no pool serves L answers"),
        ("serves: [S]", "serves: [L]", "pools.1.serves: pools go from short answers to long ones"),
        ("serves: [S]", "serves: [S, S]", "pools.0.serves: names a size twice"),
        ("serves: [S]", "serves: [XL]", "pools.0.serves.0: must be 'S', 'M' or 'L'"),
        ("serves: [S]", "serves: []", "pools.0.serves: must have at least 1 item, not 0"),
        ("slots: 128", "slots: 0", "pools.0.slots: must be greater than or equal to 1, not 0"),
        ("tp: 4", "tp: 0", "pools.0.tp: must be greater than or equal to 1, not 0"),
        ("tp: 4", "tp: 3", "pools.0.tp: llama-3.1-70b is known with TP"),
        ("profile: llama-3.1-70b", "profile: gpt", "profile: the emulated launcher needs one of gpt-oss-120b"),
        ("clock_mhz: 1980", "clock_mhz: 0", "pools.0.clock_mhz: an emulated GPU needs a clock"),
        ("kind: emulated", "kind: static", "pools.0.urls: the static launcher needs the URLs"),
        ("kind: emulated", "kind: process", "launcher.argv: the process launcher needs a command"),
        ("kind: emulated", "kind: emulated\n      argv: [x]", "argv: only the process launcher"),
        ("kind: emulated", "kind: process\n      argv: [x]", "argv: {port} appears nowhere"),
        ("kind: emulated", "kind: process\n      argv: ['{port}', '{ports}']", "argv: {ports} is not known"),
        ("slots: 128", "slots: 128\n        step_tokens: 127", "step_tokens: must be at least slots (128)"),
        ("slots: 128", "urls: ['http://a:1']", "pools.0.urls: only the static launcher takes urls"),
        ("    model: ", "    # model: ", "model: is missing: What the engines call the model."),
    ],
)
def test_rules(load: Load, before: str, after: str, message: str) -> None:
    assert any(message in problem for problem in problems(load, changed(before, after)))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://a:1", "must start with http://"),
        ("a:1", "must start with http://"),
        ("http://", "must be http://HOST:PORT"),
        ("http://u@a:1", "must be http://HOST:PORT"),
        ("http://a:1/v1", "must end after the port"),
        ("http://a:1?x", "must end after the port"),
        ("http://a:x", "is no URL"),
        ("http://[a", "is no URL"),
        ("http://A:1/", "is listed twice"),
    ],
)
def test_urls(load: Load, url: str, message: str) -> None:
    text = changed('["http://a:1"]', json.dumps(["http://a:1", url]), MINIMAL)
    (problem,) = problems(load, text)
    assert problem.startswith("5: services.s.pools.0.urls.1: ") and message in problem


def test_instances_and_urls_must_agree(load: Load) -> None:
    (problem,) = problems(load, changed("name: p,", "name: p, instances: 2,", MINIMAL))
    assert "2 instances but 1 urls" in problem


def test_keys_are_checked_and_never_repeated(load: Load) -> None:
    keys = f"""[{{name: a, hash: jg-secret}}, {{name: b, hash: 'sha256:{"0" * 64}', requests_per_minute: jg-secret}}]"""
    found = problems(load, MINIMAL, None, f"auth.keys={keys}")
    assert len(found) == 2 and "jg-secret" not in "".join(found)
    twice = f"[{{name: a, hash: 'sha256:{'0' * 64}'}}, {{name: a, hash: 'sha256:{'0' * 64}', services: [no]}}]"
    assert len(problems(load, MINIMAL, None, f"auth.keys={twice}")) == 2
    one = f"[{{name: a, hash: 'sha256:{'0' * 64}', services: [no]}}]"
    assert 'there is no service "no"' in problems(load, MINIMAL, None, f"auth.keys={one}")[0]


def test_all_problems_are_told_in_the_order_of_the_file(load: Load) -> None:
    text = changed("tp: 4", "tp: x", changed("port: 8080", "port: x", changed("[100, 350]", "[350, 100]")))
    assert [int(problem.partition(":")[0]) for problem in problems(load, text)] == [
        line_of(text, "port: x"),
        line_of(text, "output: "),
        line_of(text, "tp: x"),
    ]


# Typos


KEY = re.compile(r"[\s{,-]([a-z_]+|[SML]):(?=\s|$)")
PLACES = [
    (number, match.start(1), match.group(1))
    for number, line in enumerate(TEXT.splitlines(), 1)
    for match in KEY.finditer(" " + line.partition("#")[0])
]


def typos(word: str) -> st.SearchStrategy[str]:
    at = st.integers(0, len(word) - 1)
    letter = st.sampled_from("abcdefghijklmnopqrstuvwxyz_")
    doubled = at.map(lambda i: word[: i + 1] + word[i:])
    added = st.tuples(at, letter).map(lambda p: word[: p[0]] + p[1] + word[p[0] :])
    kinds = [doubled, added, st.just(word.swapcase())]
    if len(word) > 2:
        kinds.append(at.map(lambda i: word[:i] + word[i + 1 :]))
        kinds.append(at.filter(lambda i: i > 0).map(lambda i: word[: i - 1] + word[i] + word[i - 1] + word[i + 1 :]))
    return st.one_of(kinds).filter(lambda typo: typo != word)


def test_all_keys_of_dev_are_tried() -> None:
    assert {"services", "S", "input", "tp", "kind"} <= {word for _, _, word in PLACES}
    assert len(PLACES) > 35


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_typo_is_told_with_its_line_and_the_key_meant(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    number, column, word = data.draw(st.sampled_from(PLACES))
    typo = data.draw(typos(word))
    lines = TEXT.splitlines()
    column -= 1
    lines[number - 1] = lines[number - 1][:column] + typo + lines[number - 1][column + len(word) :]
    file = tmp_path_factory.getbasetemp() / "typo.yaml"
    file.write_text("\n".join(lines))
    with pytest.raises(ConfigError) as caught:
        load_config(file, {}, ())
    told = [(problem.line, problem.message) for problem in caught.value.errors]
    assert told == [(number, f'unknown key; did you mean "{word}"?')]


# Anything at all


def only_config_error(data: bytes, file: Path, env: dict[str, str], overrides: list[str]) -> None:
    file.write_bytes(data)
    try:
        to_services(load_config(file, env, overrides))
    except ConfigError as error:
        assert error.errors and all(problem.message for problem in error.errors)


yaml_bits = st.sampled_from(
    [
        *"[]{}:,-?!&*#|>%@`'\"\t\n ",
        "\n  ",
        "\n- ",
        ": ",
        "!!int ",
        "!!map ",
        "<<: ",
        "---\n",
        "...\n",
        "&a ",
        "*a",
        "~",
        ".inf",
    ]
    + [
        "%YAML 1.1\n",
        "%TAG ! x\n",
        '"\\u',
        "\\ud800",
        "1e9",
        "0x1",
        "2001-01-01",
        "services",
        "listen",
        "port",
        "\x00",
        "é",
    ]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
trees = st.recursive(
    scalars, lambda kids: st.lists(kids, max_size=3) | st.dictionaries(st.text(max_size=5), kids, max_size=3)
)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=64) | st.lists(yaml_bits, max_size=30).map("".join).map(str.encode))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    only_config_error(data, tmp_path_factory.getbasetemp() / "any.yaml", {}, [])


@settings(max_examples=150, deadline=None)
@given(at=st.integers(0, len(TEXT)), gone=st.integers(0, 30), new=st.lists(yaml_bits, max_size=4).map("".join))
def test_any_change_of_dev(tmp_path_factory: pytest.TempPathFactory, at: int, gone: int, new: str) -> None:
    text = TEXT[:at] + new + TEXT[at + gone :]
    only_config_error(text.encode(), tmp_path_factory.getbasetemp() / "changed.yaml", {}, [])


@settings(max_examples=150, deadline=None)
@given(data=st.data(), value=trees)
def test_any_value_at_any_key(tmp_path_factory: pytest.TempPathFactory, data: Any, value: Any) -> None:
    tree = yaml.safe_load(TEXT)
    node: Any = tree
    while True:
        key = data.draw(st.sampled_from(list(node) if isinstance(node, dict) else range(len(node))))
        if not isinstance(node[key], dict | list) or not node[key] or data.draw(st.booleans()):
            node[key] = value
            break
        node = node[key]
    only_config_error(yaml.safe_dump(tree).encode(), tmp_path_factory.getbasetemp() / "tree.yaml", {}, [])


paths = st.lists(
    st.sampled_from(["listen", "port", "services", "llama-3.1-70b", "pools", "0", "tp", "env", "", "x"])
    | st.text(max_size=4)
)


@settings(max_examples=150, deadline=None)
@given(path=paths, value=st.lists(yaml_bits, max_size=5).map("".join) | st.text(max_size=8))
def test_any_override(tmp_path_factory: pytest.TempPathFactory, path: list[str], value: str) -> None:
    file = tmp_path_factory.getbasetemp() / "override.yaml"
    only_config_error(TEXT.encode(), file, {"JOULEGATE__" + "__".join(path).upper(): value}, [])
    only_config_error(TEXT.encode(), file, {}, [".".join(path) + "=" + value])


# Documents


def test_reference_page_is_the_schema() -> None:
    page = (ROOT / "docs" / "config.md").read_text()
    assert page == config_reference(), "docs/config.md is old: write gateway.config_docs.config_reference() into it"


def test_every_key_has_a_meaning() -> None:
    schema = config_schema()
    jsonschema_rs.meta.validate(schema)
    for section in [schema, *schema["$defs"].values()]:
        for name, field in section["properties"].items():
            assert field.get("description"), name


# Agents


def test_agents_of_services(load: Load) -> None:
    assert {name: one.emulate for name, one in load(TEXT).agents.items()} == {"node-1": "h100:24"}
    (service,) = to_services(load(TEXT))
    assert service.launcher.agent == "node-1"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("emulate: h100:24", "emulate: b200:8", "agents.node-1.emulate"),
        ("emulate: h100:24", "emulate: h100:8\n    url: unix:/run/a.sock", "a url or emulates GPUs, one of the two"),
        ("emulate: h100:24", "token_env: TOKEN", "a url or emulates GPUs, one of the two"),
        ("emulate: h100:24", "url: /run/a.sock", "must be unix:PATH"),
        ("emulate: h100:24", "url: unix:/run/a.sock\n    islands: [[A, B], [B]]", "names a GPU twice"),
        ("agent: node-1", "agent: other", 'there is no agent "other"'),
    ],
)
def test_rules_of_agents(load: Load, before: str, after: str, message: str) -> None:
    assert any(message in problem for problem in problems(load, changed(before, after)))
