# The two commands: `make up` serves on http://127.0.0.1:8080/v1, `make test` runs the tests of every behaviour.
# VENV_DIR=DIR reuses an environment; ARGS='--port 9000' goes to `herma up`.

PYTHON   ?= python3
VENV_DIR ?= .venv
ARGS     ?=
BIN      := $(VENV_DIR)/bin
# PyPI's torch for Linux brings CUDA's libraries. Without an NVIDIA card the CPU build is enough: name
# PyTorch's index of CPU wheels, TORCH_INDEX=URL, and pip prefers it there.
TORCH_INDEX ?=
# An editable install points to one checkout, so the stamp names it.
HERE     := $(shell printf %s "$(CURDIR)" | cksum | cut -d' ' -f1)
STAMP    := $(VENV_DIR)/.herma-$(HERE)
DEV      := $(STAMP)-dev

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: up install dev fast test long test-gateway test-pythons check-next-python check check-aarch64 format gpu gpu-kernels gpu-engine gpu-parity gpu-answers bench fuzz chaos clean test-clients test-hermes test-schemas test-evaluations test-api test-engines test-peers test-page check-oldest-triton
.PHONY: eval eval-skills eval-outside eval-both eval-parity eval-speed

up: $(STAMP)
	@$(BIN)/herma up $(ARGS)

install: $(STAMP)

dev: $(DEV)

TORCH_FROM = $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

define SAY_SIZE
if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then \
	echo "herma: an NVIDIA card is here; fetching the gateway (16 MB) and the engine with CUDA (about 2.8 GB, 6 GB on disk)"; \
elif [ -n "$(TORCH_INDEX)" ]; then \
	echo "herma: no NVIDIA card is here; fetching the gateway (16 MB) and the engine for CPUs (about 440 MB, 1.7 GB on disk)"; \
else \
	echo "herma: no NVIDIA card is here; fetching the gateway (16 MB) and the engine (about 440 MB, or 2.8 GB where the"; \
	echo "  package index has only the build with CUDA: TORCH_INDEX=URL names PyTorch's index of CPU wheels)."; \
	echo "  The gateway alone, in front of other engines and providers: pip install ."; \
fi
endef

# pip is silent while it unpacks, which takes minutes on a slow disk.
define WITH_PROGRESS
parent=$$$$; (while sleep 10 && kill -0 $$parent 2>/dev/null; do \
	echo "  ... $$(du -sm $(VENV_DIR) | cut -f1) MB unpacked"; done) & watch=$$!; trap "kill $$watch 2>/dev/null" EXIT;
endef

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "herma needs Python >= 3.11; name one with PYTHON=python3.12"; exit 1; }
	@echo "herma: creating $(VENV_DIR)"
	@$(PYTHON) -m venv $(VENV_DIR)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@rm -f $(VENV_DIR)/.herma-*
	@$(SAY_SIZE)
	@$(WITH_PROGRESS) $(BIN)/python -m pip install -c constraints.txt $(TORCH_FROM) -e '.[engine]'
	@touch $@

$(DEV): $(STAMP)
	@echo "herma: installing what the tests need"
	@$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	@touch $@

# What decides and touches nothing: no torch, no process, no model. The first thing to run after a change.
# Long walks of the scheduler are left to `make test`, and comparisons with transformers, which imports torch.
PURE := $(addprefix tests/gateway/,api output prompt routing schemas spending) \
	$(addprefix tests/workers/,external ipc scheduler speculation versions) tests/config
LONG_WALKS := $(patsubst %,--ignore=tests/workers/scheduler/test_%.py,scheduler_fuzz planned_blocks concurrency intake_queue)
COMPARED := $(patsubst %,--ignore=tests/gateway/prompt/test_%.py,family_templates model_text split_patterns)

fast: $(DEV)
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -q -n 2 --dist loadfile -m 'not gpu and not slow' $(PURE) $(LONG_WALKS) $(COMPARED) $(ARGS)

# The tests start over a hundred processes of ours, each of which would compile its modules again. On
# two cores four at a time: half of them wait for such processes (`tests/work_units.py`).
JOBS ?= 4

test: $(DEV)
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile -m 'not gpu and not slow' $(ARGS)

# What has the mark `slow` and needs no program of others: whole grids of parameters of which `make test`
# has each value or each pair, long walks, whole benchmarks.
LONG := $(addprefix tests/,benchmarks chaos e2e gateway herma kernels training workers)

long: $(DEV)
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -q -n 3 --dist loadfile -m 'slow and not gpu' $(LONG) $(ARGS)

# The gateway's own dependencies are enough for it: no torch in this environment. The processes of
# its tests run the engine's tests nowhere.
GATEWAY_VENV  ?= .venv-gateway
GATEWAY_STAMP := $(GATEWAY_VENV)/.herma-$(HERE)

$(GATEWAY_STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -m venv $(GATEWAY_VENV)
	@$(GATEWAY_VENV)/bin/python -m pip install -q -c constraints.txt -e '.[test]'
	@touch $@

test-gateway: $(GATEWAY_STAMP)
	@! $(GATEWAY_VENV)/bin/python -c 'import torch' 2>/dev/null || { echo "torch is in $(GATEWAY_VENV)"; exit 1; }
	env -u PYTHONDONTWRITEBYTECODE $(GATEWAY_VENV)/bin/python -m pytest -q -n 3 --dist loadfile \
		-m 'not gpu and not slow' tests/gateway tests/protocol tests/housekeeping tests/config $(ARGS)

# All kernels, compiled without a card by the oldest Triton that pyproject.toml allows: it refuses what
# newer ones take, and cards often have it (torch 2.11 brings 3.6).
OLDEST_TRITON ?= 3.6.0

check-oldest-triton: $(DEV)
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	$(BIN)/python -m pip install -q --no-deps --target "$$folder" triton==$(OLDEST_TRITON) && \
	PYTHONPATH="$$folder" $(BIN)/python -m pytest -q tests/workers/engine/compile/test_cards.py $(ARGS)

# The same tests by every Python that is here: PYTHONS='python3.12 /path/python3.13' names them. And is
# there a wheel of each of the gateway's packages for one that is not?
PYTHONS ?= python3.11 python3.12 python3.13
NEXT_PYTHON ?= 3.14
DEPENDENCIES = $$($(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")')

test-pythons:
	@for python in $(PYTHONS); do \
		command -v $$python >/dev/null || { echo "$$python is not here: left out"; continue; }; \
		echo "== $$python"; \
		$(MAKE) --no-print-directory test-gateway PYTHON=$$python GATEWAY_VENV=.venv-$$(basename $$python) || exit 1; \
	done
	@$(MAKE) --no-print-directory check-next-python

check-next-python:
	@echo "$(DEPENDENCIES)" >.next-python.txt; trap 'rm -f .next-python.txt' EXIT; \
	$(PYTHON) -m pip install -q --dry-run --ignore-installed --only-binary=:all: --python-version $(NEXT_PYTHON) \
		--target .next-python -c constraints.txt -r .next-python.txt && \
		echo "every package of the gateway has a wheel for Python $(NEXT_PYTHON)"

# Nothing is downloaded but the index: does every pin have a wheel for Linux on aarch64?
ARM := $(foreach glibc,2_17 2_26 2_27 2_28 2_31,--platform manylinux_$(glibc)_aarch64) --platform manylinux2014_aarch64

check-aarch64: $(STAMP)
	@$(BIN)/python -m pip install -q --dry-run --no-deps --ignore-installed --only-binary=:all: $(ARM) \
		--target $(VENV_DIR)/aarch64 -r constraints.txt && echo "every pin has a wheel for aarch64"

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/architecture

format: $(DEV)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# On a machine with an NVIDIA GPU. Tests of kernels are mostly the compilers' time, so several
# processes share the card; those of the engine measure its memory and have it alone. Each part
# writes every test down as it ends; RESUME=1 leaves out what a part that was cut off has passed.
GPU_DIR  ?= benchmarks/out/gpu
GPU_JOBS ?= 4
RESUME   ?= 0
GPU_TESTS = HERMA_GPU_RESUME=$(RESUME) HERMA_GPU_LOG=$(GPU_DIR)/$@.jsonl $(BIN)/python -m pytest -q -p tests.gpu_log -p no:benchmark -m gpu

gpu: gpu-kernels gpu-engine gpu-parity gpu-answers

gpu-kernels: $(DEV)
	$(GPU_TESTS) -n $(GPU_JOBS) --dist worksteal tests/kernels $(ARGS)

gpu-engine: $(DEV)
	$(GPU_TESTS) tests/workers/engine $(ARGS)

gpu-parity: $(DEV)
	@mkdir -p $(GPU_DIR)
	$(BIN)/python -m tests.gpu_parity --json $(GPU_DIR)/$@.json

# The tokens of 27B, 8B and 0.6B in 16, 8 and 4 bits at batch 1, 8 and 64.
gpu-answers: $(DEV)
	$(BIN)/python -m benchmarks.engine.answers --out $(GPU_DIR)/answers $(ARGS)

# The same properties as in `make test`, with many more examples. LIVES are the tables of states.
LIVES := tests/gateway/http/test_answer_state.py tests/gateway/turn/test_tries.py tests/gateway/turn/test_try_loop.py \
	$(addprefix tests/workers/supervisor/,test_lifecycle.py test_seat_states.py)

fuzz: $(DEV)
	HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -q -o faulthandler_timeout=0 -m 'not gpu' tests/protocol tests/workers/scheduler tests/workers/turns tests/workers/engine/test_scarce_memory.py tests/gateway/api tests/gateway/upstream/test_chat_events.py tests/gateway/prompt tests/gateway/output tests/gateway/routing tests/gateway/spending tests/gateway/http/server tests/gateway/http/test_fuzz.py $(LIVES) tests/benchmarks/routing/test_worker.py tests/kernels/test_attention_work.py tests/kernels/test_attention_bucket.py $(ARGS)

# Real processes on loopback that are killed, stopped, cut off and lied to, about 25 minutes; fails if
# a client sees an error or a wrong byte, or a bar is missed. FAULT=kill-engine runs that one alone.
LONG_TESTS := tests/gateway/test_disconnects.py tests/gateway/test_spending_process.py tests/e2e/test_crash_loop.py tests/e2e/test_stored_responses.py tests/e2e/test_haproxy.py

chaos: $(DEV)
ifdef FAULT
	$(BIN)/python -m tests.chaos --fault $(FAULT) $(ARGS)
else
	$(BIN)/python -m tests.chaos --json $(RESULTS)/chaos_cpu.json $(ARGS)
	$(BIN)/python -m tests.chaos.ways
	$(BIN)/python -m pytest -q $(LONG_TESTS)
endif

# The official clients, agents and frameworks as they come from PyPI and npm, each in an environment
# of its own outside of the checkout, made once; on loopback. tests/clients/clients.toml has their
# versions. ARGS='-k node' picks some.
CLIENTS_DIR  ?= $(HOME)/.cache/herma-clients
SCHEMATHESIS := 4.32.5

test-clients: export CLIENTS_DIR := $(abspath $(CLIENTS_DIR))
test-clients: $(DEV)
	$(BIN)/python -m tests.clients.install $(CLIENTS_DIR)
	$(BIN)/python -m pytest -q -s -rs -m 'slow or not slow' -o faulthandler_timeout=0 tests/clients \
		tests/hermes/test_hermes.py::test_a_tool_is_run_and_its_result_answered $(ARGS)

test-hermes: export CLIENTS_DIR := $(abspath $(CLIENTS_DIR))
test-hermes: $(DEV)
	$(BIN)/python -m tests.clients.install $(CLIENTS_DIR) hermes
	$(BIN)/python -m pytest -q -m 'slow or not slow' -o faulthandler_timeout=0 tests/hermes $(ARGS)

# Schemas of real MCP servers and of zod, which are not in this repository: lists them once, and walks
# through the grammar of each.
SCHEMAS_DIR ?= $(HOME)/.cache/herma-schemas

test-schemas: export HERMA_SCHEMAS_DIR := $(abspath $(SCHEMAS_DIR))
test-schemas: $(DEV) $(SCHEMAS_DIR)/schemas.json
	$(BIN)/python -m pytest -q -s -m 'slow or not slow' tests/schemas $(ARGS)

$(SCHEMAS_DIR)/schemas.json: tests/schemas/collect.py tests/schemas/zod_types.mjs
	@command -v npm >/dev/null || { echo "make test-schemas needs node (20 or later) and npm"; exit 1; }
	@mkdir -p $(@D) && npm install --silent --no-fund --no-audit --ignore-scripts --prefix $(@D) \
		$$($(BIN)/python -c 'from tests.schemas.collect import PACKAGES; print(*PACKAGES)')
	$(BIN)/python -m tests.schemas.collect $(@D)

# lm-eval, guidellm and, where they install, aiperf and inference-perf against the built-in model, each
# in an environment of its own outside the checkout.
EVALUATIONS_DIR ?= $(HOME)/.cache/herma-evaluations

test-evaluations: export HERMA_EVALUATIONS_DIR := $(abspath $(EVALUATIONS_DIR))
test-evaluations: $(DEV)
	$(BIN)/python -m tests.evaluation.install $(HERMA_EVALUATIONS_DIR)
	$(BIN)/python -m pytest -q -s -m 'slow or not slow' -o faulthandler_timeout=0 tests/evaluation $(ARGS)

# A real llama-server with the built-in model, built once (15 to 30 minutes on two cores) and kept
# outside the checkout; cmake and a C++ compiler are needed.
ENGINES_DIR ?= $(HOME)/.cache/herma-engines
GGUF_PY     := 0.19.0
SERVING     := fastapi==0.165.0 uvicorn==0.54.0 accelerate==1.15.0 annotated-doc==0.0.7 click==8.5.1 \
               h11==0.16.0 importlib-metadata==10.2.0 opentelemetry-api==1.45.2 psutil==7.2.2 \
               python-multipart==0.0.34 rich==15.0.0 typing-inspection==0.4.5 zipp==4.1.2

test-engines: export LLAMA_SERVER := $(ENGINES_DIR)/llama-server
test-engines: export TINY_GGUF := $(ENGINES_DIR)/herma-tiny.gguf
test-engines: export SERVING_PATH := $(ENGINES_DIR)/serving
test-engines: $(DEV)
	PYTHON=$(BIN)/python tests/engines/build_llama_server.sh $(ENGINES_DIR)
	$(BIN)/python -m pip install -q --no-deps --target $(ENGINES_DIR)/python gguf==$(GGUF_PY)
	$(BIN)/python -m pip install -q --no-deps --upgrade --target $(SERVING_PATH) $(SERVING)
	PYTHONPATH=.:$(ENGINES_DIR)/python $(BIN)/python -m tests.engines.gguf_of config/builtin/herma-tiny $(TINY_GGUF)
	$(BIN)/python -m pytest -q -m 'slow or not slow' -o faulthandler_timeout=0 tests/engines $(ARGS)

# Servers that others put before or behind a gateway: LiteLLM, SMG, llama-server (as a wheel has it),
# `transformers serve` and, where they install, vllm-router and dynamo's frontend with its mocker, each
# in an environment of its own outside the checkout, made once.
PEERS_DIR ?= $(HOME)/.cache/herma-peers

test-peers: export HERMA_PEERS_DIR := $(abspath $(PEERS_DIR))
test-peers: export SERVING_PATH := $(abspath $(PEERS_DIR))/serving
test-peers: export GGUF_PATH := $(abspath $(PEERS_DIR))/gguf
test-peers: $(DEV)
	$(BIN)/python -m tests.peers.install $(HERMA_PEERS_DIR)
	$(BIN)/python -m pip install -q --no-deps --upgrade --target $(SERVING_PATH) $(SERVING)
	$(BIN)/python -m pip install -q --no-deps --upgrade --target $(GGUF_PATH) gguf==$(GGUF_PY)
	@$(BIN)/python -c 'import transformers; print(f"transformers=={transformers.__version__} serve: installed")'
	$(BIN)/python -m pytest -q -rps -m 'slow or not slow' -o faulthandler_timeout=0 tests/peers $(ARGS)

# Requests made out of /openapi.json, valid and invalid ones, by a program that knows nothing else.
test-api: export SCHEMATHESIS_PROGRAM := $(abspath $(CLIENTS_DIR))/schemathesis/bin/schemathesis
test-api: $(DEV) $(CLIENTS_DIR)/schemathesis/.$(SCHEMATHESIS)
	$(BIN)/python -m pytest -q -m 'slow or not slow' -o faulthandler_timeout=0 tests/api $(ARGS)

FRESH_CLIENT = @rm -rf $(@D) && $(BIN)/python -m venv $(@D) && $(@D)/bin/python -m pip install -q

$(CLIENTS_DIR)/schemathesis/.$(SCHEMATHESIS): | $(DEV)
	$(FRESH_CLIENT) schemathesis==$(SCHEMATHESIS) && touch $@

define FRESH_NODE
@command -v node >/dev/null && command -v npm >/dev/null || \
	{ echo "make test-page needs node (20 or later) and npm; they are not installed"; exit 1; }
@rm -rf $(@D) && mkdir -p $(@D) && npm install --silent --no-fund --no-audit --prefix $(@D)
endef

# The operators' page in headless Chromium, which has to be installed, judged by axe-core too.
AXE := 4.14.1

test-page: export AXE_JS := $(abspath $(CLIENTS_DIR))/axe/node_modules/axe-core/axe.min.js
test-page: $(DEV) $(CLIENTS_DIR)/axe/.$(AXE)
	$(BIN)/python -m pytest -q -m 'slow or not slow' tests/dashboard $(ARGS)

$(CLIENTS_DIR)/axe/.$(AXE):
	$(FRESH_NODE) axe-core@$(AXE) && touch $@

bench: $(DEV)
	$(BIN)/python -m benchmarks.serving $(ARGS)

# The built-in model's long measurements on an idle machine, about half an hour on two cores. Each
# writes its report and fails under its bars; `make -k eval` goes on to the next one.
RESULTS := benchmarks/results

eval: eval-parity eval-speed eval-skills eval-outside eval-both

# Held-out cases of every skill: the seed of the reports, and two that nothing was chosen by.
eval-skills: eval-skills-2026 eval-skills-2027 eval-skills-2028

eval-skills-2026: $(DEV)
	$(BIN)/python -m benchmarks.tiny_eval --serve --json $(RESULTS)/tiny_eval_cpu.json

eval-skills-%: $(DEV)
	$(BIN)/python -m benchmarks.tiny_eval --serve --seed $* --json $(RESULTS)/tiny_eval_cpu_$*.json

# Prompts that it has not learned to answer: does every answer end by itself?
eval-outside: $(DEV)
	$(BIN)/python -m benchmarks.tiny_eval --serve --outside --json $(RESULTS)/tiny_outside_cpu.json

# The same answers to the letter, whole and streamed?
eval-both: $(DEV)
	$(BIN)/python -m benchmarks.tiny_eval --serve --both --cases 50 --json $(RESULTS)/tiny_both_cpu.json

# The engine against transformers, token for token.
eval-parity: $(DEV)
	$(BIN)/python -m benchmarks.tiny_eval.parity --json $(RESULTS)/tiny_parity_cpu.json

# Time to ready, first token, tokens/s, an agent's prompt.
eval-speed: $(DEV)
	$(BIN)/python -m benchmarks.tiny_speed --json $(RESULTS)/tiny_speed_cpu.json

clean:
	rm -rf $(VENV_DIR) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
