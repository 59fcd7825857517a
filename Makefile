# The two commands: `make up` serves on http://127.0.0.1:8080/v1, `make test` runs every test.
# VENV_DIR=DIR reuses an environment; ARGS='--port 9000' goes to `herma up`.

PYTHON   ?= python3
VENV_DIR ?= .venv
ARGS     ?=
BIN      := $(VENV_DIR)/bin
# An editable install points to one checkout, so the stamp names it.
HERE     := $(shell printf %s "$(CURDIR)" | cksum | cut -d' ' -f1)
STAMP    := $(VENV_DIR)/.herma-$(HERE)
DEV      := $(STAMP)-dev

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: up install dev test check format gpu bench fuzz chaos clean
.PHONY: eval eval-skills eval-outside eval-parity eval-speed

up: $(STAMP)
	@$(BIN)/herma up $(ARGS)

install: $(STAMP)

dev: $(DEV)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "herma needs Python >= 3.11; name one with PYTHON=python3.12"; exit 1; }
	@echo "herma: creating $(VENV_DIR)"
	@$(PYTHON) -m venv $(VENV_DIR)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@echo "herma: installing the pinned dependencies (torch is the large one)"
	@rm -f $(VENV_DIR)/.herma-*
	@$(BIN)/python -m pip install -c constraints.txt -e .
	@touch $@

$(DEV): $(STAMP)
	@echo "herma: installing what the tests need"
	@$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	@touch $@

test: $(DEV)
	$(BIN)/python -m pytest -q -m 'not gpu and not slow' $(ARGS)

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/architecture

format: $(DEV)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# On a machine with an NVIDIA GPU.
gpu: $(DEV)
	$(BIN)/python -m pytest -q -m gpu $(ARGS)
	$(BIN)/python -m benchmarks.gpu_parity

# The same properties as in `make test`, with many more examples.
fuzz: $(DEV)
	HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -q -m 'not gpu' tests/protocol tests/workers/core tests/gateway/core $(ARGS)

# Real processes on loopback that are killed, stopped, cut off and lied to, about 25 minutes; fails if
# a client sees an error or a wrong byte, or a bar is missed. FAULT=kill-engine runs that one alone.
LONG_TESTS := tests/gateway/test_disconnects.py tests/gateway/test_spending_process.py tests/e2e/test_crash_loop.py

chaos: $(DEV)
ifdef FAULT
	$(BIN)/python -m tests.chaos --fault $(FAULT) $(ARGS)
else
	$(BIN)/python -m tests.chaos --json $(RESULTS)/chaos_cpu.json $(ARGS)
	$(BIN)/python -m pytest -q $(LONG_TESTS)
endif

bench: $(DEV)
	$(BIN)/python -m benchmarks.serving $(ARGS)

# The built-in model's long measurements on an idle machine, about half an hour on two cores. Each
# writes its report and fails under its bars; `make -k eval` goes on to the next one.
RESULTS := benchmarks/results

eval: eval-parity eval-speed eval-skills eval-outside

# Held-out cases of every skill: the seed of the reports, and two that nothing was chosen by.
eval-skills: eval-skills-2026 eval-skills-2027 eval-skills-2028

eval-skills-2026: $(DEV)
	$(BIN)/python -m benchmarks.tiny_eval --serve --json $(RESULTS)/tiny_eval_cpu.json

eval-skills-%: $(DEV)
	$(BIN)/python -m benchmarks.tiny_eval --serve --seed $* --json $(RESULTS)/tiny_eval_cpu_$*.json

# Prompts that it has not learned to answer: does every answer end by itself?
eval-outside: $(DEV)
	$(BIN)/python -m benchmarks.tiny_eval --serve --outside --json $(RESULTS)/tiny_outside_cpu.json

# The engine against transformers, token for token.
eval-parity: $(DEV)
	$(BIN)/python -m benchmarks.tiny_eval.parity --json $(RESULTS)/tiny_parity_cpu.json

# Time to ready, first token, tokens/s, an agent's prompt.
eval-speed: $(DEV)
	$(BIN)/python -m benchmarks.tiny_speed --json $(RESULTS)/tiny_speed_cpu.json

clean:
	rm -rf $(VENV_DIR) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
