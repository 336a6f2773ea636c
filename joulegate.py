"""The command `joulegate`. Owns the command line and exit statuses: 0 done, 1 it failed or does not hold, 2 bad input.

Each command imports what it needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from commands import forecast, predict, profile
from commands.agent import agent
from commands.output import AsJson, fail, say
from commands.plan import plan
from commands.redecide import redecide
from commands.report import report
from commands.simulate import simulate
from commands.train import train
from commands.transitions import transitions

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="An OpenAI-compatible gateway in front of vLLM that keeps the latency promises with the fewest joules.",
)
ConfigPath = Annotated[
    Path, typer.Argument(help="YAML configuration, for example configs/dev.yaml", show_default=False)
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override one key, e.g. limits.max_queue=64; wins over environment and file."
    ),
]

app.add_typer(profile.app, name="profile")
app.command()(simulate)
app.command()(plan)
app.command()(report)
app.command()(redecide)
app.command()(transitions)
app.add_typer(predict.app, name="predict")
app.add_typer(forecast.app, name="forecast")
app.command()(train)
app.command()(agent)


@app.command()
def serve(
    config: ConfigPath,
    port: Annotated[int | None, typer.Option(help="Port to listen on; wins over the configuration.")] = None,
    mode: Annotated[str | None, typer.Option(help="Controller mode: shadow, advise or enforce.")] = None,
    overrides: Overrides = None,
    speed: Annotated[
        float, typer.Option(help="For replays on emulated engines: seconds of gateway and engines in a real one.")
    ] = 1.0,
) -> None:
    """Serve. Starts the gateway, the controller and the instances; Ctrl-C drains and ends all of it.

    Precedence of settings: file < environment (JOULEGATE__LISTEN__PORT=9000) < --set < --port and --mode.
    Then point any OpenAI client at http://127.0.0.1:8080/v1.
    """
    import uvloop

    from gateway.config import Config
    from gateway.config_file import ConfigError, load_config
    from gateway.logs import set_up_logs
    from gateway.run import CannotListen, run_gateway

    if not 0 < speed <= 1000:
        fail("--speed must be more than 0, and 1000 at most", 2)
    extra = [*(overrides or ())]
    extra += [f"listen.port={port}"] if port is not None else []
    extra += [f"controller.mode={mode}"] if mode is not None else []
    environment = dict(os.environ)

    def load() -> Config:
        return load_config(config, environment, extra)

    set_up_logs(sys.stderr)
    try:
        uvloop.run(run_gateway(load(), load, environment, speed))
    except ConfigError as error:
        fail("\n".join(str(problem) for problem in error.errors), 2)
    except CannotListen as error:
        fail(f"{error}. Choose another with --port, or stop what uses it.", 1)
    except ValueError as error:
        fail(str(error), 2)


@app.command()
def check(
    config: Annotated[Path | None, typer.Argument(help="YAML configuration to check.", show_default=False)] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of the configuration instead.")
    ] = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Check a configuration: every problem with its file, line and key. Exit status 2 when there is one."""
    from gateway.config_file import ConfigError, config_schema, load_config

    if schema:
        say(json.dumps(config_schema(), indent=2))
        return
    if config is None:
        fail("name a configuration file, or use --schema", 2)
    try:
        loaded = load_config(config, dict(os.environ), overrides or [])
        problems: list[dict[str, object]] = []
    except ConfigError as error:
        problems = [{"file": p.file, "line": p.line, "path": p.path, "message": p.message} for p in error.errors]
        if not as_json:
            fail("\n".join(str(problem) for problem in error.errors), 2)
    if as_json:
        say(json.dumps({"valid": not problems, "errors": problems}))
    else:
        names = ", ".join(f"{name} ({len(s.pools)} pools)" for name, s in loaded.services.items())
        say(f"{config} is right: {names}; listens on {loaded.listen.host}:{loaded.listen.port}")
    raise typer.Exit(2 if problems else 0)


@app.command()
def key(
    name: Annotated[str, typer.Argument(help="Whose key it is; shown in logs.")],
    as_json: AsJson = False,
) -> None:
    """Make an API key. The key is shown once; only its hash goes into the configuration."""
    from gateway.auth import new_key

    secret, digest = new_key()
    if as_json:
        say(json.dumps({"name": name, "key": secret, "hash": digest}))
        return
    say(f"key (give it to {name}, it is not stored): {secret}\n")
    say(f"under auth.keys or auth.admin_keys:\n  - name: {name}\n    hash: {digest}")


@app.command()
def engine(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")],
    profile: Annotated[str, typer.Option(help="Engine model, for example llama-3.1-70b.")] = "llama-3.1-70b",
    tp: Annotated[int, typer.Option(help="Tensor parallelism.")] = 4,
    clock_mhz: Annotated[int, typer.Option(help="GPU clock.")] = 1980,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences that run at once.")] = 128,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens in a step, prefill and decode together.")] = 2048,
    speed: Annotated[float, typer.Option(help="Times real time.")] = 1.0,
    served_model_name: Annotated[str | None, typer.Option(help="Model name; default: the profile's.")] = None,
    max_model_len: Annotated[int, typer.Option(help="Context length in tokens.")] = 8192,
    runner: Annotated[str, typer.Option(help="generate or pooling.")] = "generate",
    shutdown_timeout: Annotated[float, typer.Option(help="Seconds that running answers have to end at SIGTERM.")] = 0.0,
    nvml_state: Annotated[str, typer.Option(help="File of emulated GPUs whose clock this engine follows.")] = "",
    gpus: Annotated[str, typer.Option(help="Their UUIDs, with commas, as many as --tp.")] = "",
) -> None:
    """Run one emulated vLLM server. It speaks vLLM's HTTP; its text is made up and its times and watts are modelled."""
    import uvloop

    from simulator.server import EngineOptions, run_engine

    options = EngineOptions(
        port=port,
        profile=profile,
        tp=tp,
        clock_mhz=clock_mhz,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        speed=speed,
        served_model_name=served_model_name or profile,
        max_model_len=max_model_len,
        runner=runner,
        shutdown_timeout_s=shutdown_timeout,
        nvml_state=nvml_state,
        gpus=gpus,
    )
    try:
        uvloop.run(run_engine(options))
    except ValueError as error:
        fail(str(error), 2)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
