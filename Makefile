# Everything sets itself up in .venv; only Python 3.11+, make and the package registries are needed.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
STAMP   = $(VENV)/.ready
BENCH   = $(VENV)/.bench-ready
# One more than the two cores it is meant for: many tests wait for processes more than they compute.
WORKERS ?= 3

.DEFAULT_GOAL := help
.PHONY: help setup browser test check fix demo acceptance bench torture mutate coverage clean

help:            ## list the commands
	@grep -E '^[a-z-]+: .*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Safepoint needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	@command -v chromium >/dev/null 2>&1 || $(MAKE) --no-print-directory browser
	@touch $(STAMP)

browser:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		(apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium fonts-dejavu-core) >/dev/null 2>&1; fi; \
	command -v chromium >/dev/null 2>&1 || echo 'There is no chromium: install it, or the tests of the page are skipped.'

$(BENCH): $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev,bench]'
	@touch $(BENCH)

setup: $(STAMP)  ## create .venv with all the tools (the others do it by themselves)

test: $(STAMP)   ## run lint, types and all tests
	@$(MAKE) --no-print-directory check
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

check: $(STAMP)  ## ruff, mypy --strict, pyright, the architecture tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/basedpyright
	$(BIN)/python -m pytest tests/test_architecture.py

fix: $(STAMP)    ## format, and repair what ruff can repair
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

demo: $(STAMP)   ## serve the demo agent with its page: say something, and stop it
	$(BIN)/python -m safepoint serve

acceptance: $(STAMP) ## the table of what the five systems do: passing and open lines
	$(BIN)/python scripts/acceptance.py $(ARGS)

coverage: $(STAMP) ## branch coverage of the abort layer (must be 100 %)
	$(BIN)/python scripts/coverage.py

bench: $(BENCH)  ## ratios against unmodified peers, printed and written to benchmarks/results/
	$(BIN)/python -m benchmarks

torture: $(STAMP) ## the full counts of races and kills (bounded: 30 minutes)
	SAFEPOINT_TORTURE=1 timeout 1800 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --timeout 900

mutate: $(STAMP) ## break guard.py and signal.py line by line; every break must be noticed
	$(BIN)/python scripts/mutate.py

clean:           ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis htmlcov .coverage*
