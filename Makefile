# The house: every task has one name here, and CI calls nothing else. `make help` lists them.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL:

# The first interpreter that runs and is new enough; `make PYTHON=/path/to/python3.12 …` overrides it.
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)

VENV := .venv
DEMO_VENV := .venv-demo
BIN := $(VENV)/bin
PIP_FLAGS := --quiet --disable-pip-version-check --no-input

# A set-up is done when the stamp named after the content that it was made from is there, so that a
# checkout which only changes times does nothing, and one which changes a lock is never missed.
key = $(shell cat $(1) | cksum | cut -d ' ' -f 1)
DEV_LOCKED := $(VENV)/.locked-$(call key,requirements-dev.lock)
DEV_READY := $(DEV_LOCKED)-$(call key,pyproject.toml)
DEMO_LOCKED := $(DEMO_VENV)/.locked-$(call key,requirements.lock)
DEMO_READY := $(DEMO_LOCKED)-$(call key,pyproject.toml)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: install
install: $(DEV_READY) ## make .venv with all that a developer needs

.PHONY: demo
demo: $(DEMO_READY) ## one machine, a real balancer, recorded traffic: watch a pool grow and shrink (ARGS='--seed 2')
	@$(DEMO_VENV)/bin/autoscaler demo $(ARGS)

.PHONY: test
test: debian install models check unit ## all set-up, all checks, all tests: what CI runs (ARGS='-k envoy')

.PHONY: check
check: install ## format, lint, types, import rules, spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

.PHONY: unit
unit: install ## the tests alone (ARGS='-n 2 tests/laws')
	$(BIN)/pytest $(ARGS)

.PHONY: bench
bench: install ## the figures of the README, measured here
	$(BIN)/python -m tests.benchmarks $(ARGS)

.PHONY: study
study: install ## policies on public traffic, side by side: docs/policy-study.md (TRACES=dir; goes on where it was)
	@test -d "$(TRACES)" || { echo "name the folder of the traces with TRACES=" >&2; exit 2; }
	$(BIN)/python -m autoscaler.lab.study --traces "$(TRACES)" --out study-out $(ARGS) \
	  --results docs/data/policy-study.json --document docs/policy-study.md

.PHONY: format
format: install ## rewrite what ruff can rewrite
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: debian
debian: ## install the Debian packages of .ci/apt-packages that are missing (needs root; elsewhere does nothing)
	@PYTHON="$(PYTHON)" sh .ci/debian

.PHONY: models
models: ## the model servers that tests/integration starts: llama.cpp, Triton, TorchServe (Linux on x86-64)
	@PYTHON="$(PYTHON)" sh .ci/models

.PHONY: lock
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links $(UPGRADE)
LOCK = $(COMPILE) pyproject.toml --group build --extra local
MODEL_LOCKS := $(patsubst %.in,%.lock,$(wildcard tests/integration/models/*.in))
lock: install ## remake all locks, ours from pyproject.toml (UPGRADE=--upgrade takes what is new)
	$(LOCK) -o requirements.lock
	$(LOCK) --extra dev --extra lab --extra aws -c requirements.lock -o requirements-dev.lock
	for lock in $(MODEL_LOCKS); do $(COMPILE) --no-deps $${lock%.lock}.in -o $$lock || exit 1; done

# $(1) venv, $(2) lock. A venv of another lock is not mended but made anew: nothing of the old one stays behind.
define locked
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed; name it with PYTHON=" >&2; exit 1; }
	@echo "making $(1) with $(PYTHON) from $(2)"
	@rm -rf $(1)
	@$(PYTHON) -m venv $(1)
	@$(1)/bin/python -m pip install $(PIP_FLAGS) --require-hashes -r $(2)
	@touch $@
endef

# $(1) venv. The editable install freezes the entry points, so it is done again when pyproject.toml changes.
define editable
	@$(1)/bin/python -m pip install $(PIP_FLAGS) --no-deps --no-build-isolation -e .
	@touch $@
endef

$(DEV_LOCKED):
	$(call locked,$(VENV),requirements-dev.lock)

$(DEV_READY): $(DEV_LOCKED)
	$(call editable,$(VENV))

$(DEMO_LOCKED):
	$(call locked,$(DEMO_VENV),requirements.lock)

$(DEMO_READY): $(DEMO_LOCKED)
	$(call editable,$(DEMO_VENV))
