# Everything runs in .venv, made from the hashed lock; .venv/bin/joulegate is the command.
# `make help` lists the targets.

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?=
CONFIG ?= configs/dev.yaml
TRACE ?= ../shared/data/azure_llm_2023/AzureLLMInferenceTrace_conv.csv
MINUTES ?= 10
PEERS ?=
DURATION ?= 60
SEED ?= 1
ENGINE ?= emulated
PAPER ?=
ABLATE ?=
SPEED ?= 6
HOUR ?= 60
SHARE ?= 1
PLANS ?= 1000
STAMP := $(VENV)/.installed

.PHONY: help install serve test test-unit test-e2e test-vllm test-browser test-prometheus check format lock replay bench bench-self predict-cost agent-kills gateway-kills reshards plans chaos soak overload live live-vllm thrash paper ablate clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(STAMP) ## make .venv from the lock

# Without PYTHON=, deploy/choose_python.sh chooses: of two builds of one version one costs an eighth less CPU.
# uv installs in seconds what pip installs in a minute; it comes from the same lock, by hash.
$(STAMP): requirements.lock requirements-uv.lock pyproject.toml pools/_shortcut.c
	test -x $(BIN)/python || { python=$(or $(PYTHON),$$(sh deploy/choose_python.sh)) && "$$python" -m venv $(VENV); }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-uv.lock
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --compile-bytecode --require-hashes requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $(STAMP)

serve: install ## gateway, controller and three emulated pools on 127.0.0.1:8080; Ctrl-C ends all of it
	$(BIN)/joulegate serve $(CONFIG)

test: install ## all tests but those that need vLLM or a browser
	$(BIN)/pytest tests/unit tests/scenario -n auto --dist worksteal
	$(BIN)/pytest tests --ignore=tests/vllm --ignore=tests/browser --ignore=tests/prometheus --ignore=tests/unit --ignore=tests/scenario -n auto --dist loadfile

test-unit: install ## the pure tests, seconds
	$(BIN)/pytest tests/unit -n auto --dist worksteal

test-e2e: install ## the gateway as a process, official clients, faults
	$(BIN)/pytest tests/e2e tests/contract -n auto --dist loadfile

test-vllm: install ## three real vLLM servers on the CPU behind the gateway, compared byte by byte
	bash tests/vllm/install.sh
	$(BIN)/pytest tests/vllm -s

test-browser: install ## the dashboard in real Chromium; installs Playwright, and Chromium where it may
	bash tests/browser/install.sh
	$(BIN)/pytest tests/browser -rs

test-prometheus: install ## rules and dashboards with promtool and a real Prometheus (apt-get install prometheus)
	$(BIN)/pytest tests/prometheus

check: install ## lint, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: install ## lay the code out
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## resolve the dependencies anew
	$(BIN)/uv pip compile --quiet --generate-hashes --no-annotate --no-header --group dev pyproject.toml --python-version 3.11 -o requirements.lock
	$(BIN)/uv pip compile --quiet --generate-hashes --no-annotate --no-header -c requirements.lock pyproject.toml --python-version 3.11 -o requirements-serve.lock
	$(BIN)/uv pip compile --quiet --generate-hashes --no-annotate --no-header -c requirements.lock --group browser --python-version 3.11 -o requirements-browser.lock
	echo uv | $(BIN)/uv pip compile --quiet --generate-hashes --no-annotate --no-header --python-version 3.11 - -o requirements-uv.lock

replay: install ## MINUTES of TRACE live through the emulated pools: TTFT and TBT per class, errors, pool shares
	$(BIN)/python bench/replay.py $(TRACE) --minutes $(MINUTES) --out build/replay.json

live: install ## an HOUR of TRACE at SPEED, live, with the controller off and on: joules, errors, what moved, into build/live.json
	$(BIN)/python -m bench.live $(TRACE) --speed $(SPEED) --minutes $(HOUR) --share $(SHARE)

live-vllm: install ## the controller off and on over real vLLM servers (CPU) at true speed: what starts and ends, errors, CPU seconds
	bash tests/vllm/install.sh
	.venv-vllm/bin/python tests/vllm/build_tiny_model.py
	$(BIN)/python -m bench.live_vllm

thrash: install ## square waves and sawteeth made to provoke thrash, simulated beside a smooth load: starts, kWh, attainment
	$(BIN)/python -m bench.thrash

bench: install ## joulegate beside nginx, vllm-router, smg, litellm (PEERS=) in turns: CPU ratios and their spread
	$(BIN)/python -m bench.run --peers "$(PEERS)"

bench-self: install ## joulegate against itself: how large a difference is noise here
	$(BIN)/python -m bench.run --self-check --out build/bench-self.json

predict-cost: install ## p50 and p99 of one prediction of an answer's length, beside a bare numpy logistic
	$(BIN)/python -m bench.predict_cost $(wildcard ../shared/data/alpaca_eval_outputs)

agent-kills: install ## kill -9 of agent, gateway and controller in every combination, 100 runs: are clocks undone in time?
	$(BIN)/python -m bench.agent_kills

gateway-kills: install ## kill -9 of whole gateways and of the agent, 30 runs: clocks undone in time, no instance lost or doubled?
	$(BIN)/python -m bench.gateway_kills

reshards: install ## ten minutes of re-shards under load on real vLLM servers (CPU): does a request fail?
	bash tests/vllm/install.sh
	.venv-vllm/bin/python tests/vllm/build_tiny_model.py
	$(BIN)/python -m bench.reshards

plans: install ## PLANS random plans with SEED on fleets of emulated and process launchers, children in this process: is each reached?
	PLANS=$(PLANS) SEED=$(SEED) $(BIN)/pytest -s --timeout 3600 tests/scenario/test_random_plans.py

chaos: install ## streams under faults for DURATION seconds with SEED on ENGINE=emulated|vllm, every answer checked: build/chaos.json
	$(BIN)/python -m tests.chaos.run --engine $(ENGINE) --duration $(DURATION) --seed $(SEED)

soak: install ## steady streams for MINUTES, instances come and go and break, the gateway stays: slope of its memory, fds, into build/soak.json
	$(BIN)/python -m tests.chaos.run --soak --every 4 --duration $$(( $(MINUTES) * 60 )) --seed $(SEED) --out build/soak.json

overload: install ## load offered against load served in time, up to three times capacity, simulated: build/overload.json
	$(BIN)/python -m bench.overload $(TRACE)

paper: install ## DynamoLLM's evaluation simulated, the paper's figures beside ours, into build/paper; goes on where it stopped
	nice -n 5 $(BIN)/python -m bench.paper --trace $(TRACE) $(PAPER)

ablate: install ## what the distance from the energy bound is made of, and each part of the controller on its own: build/ablate
	nice -n 5 $(BIN)/python -m bench.ablate $(ABLATE)

clean: ## remove what make made
	rm -rf $(VENV) .venv-vllm build
