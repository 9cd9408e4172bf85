# `make` alone prints this help. Everything runs in $(VENV), which `make setup` makes once.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format docs bench-loop bench-parse bench-plan clean

help:  ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP)  ## make the virtual environment with tested versions (once)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e '.[agent,dev]' -c constraints.txt
	touch $@

demo: $(STAMP)  ## the loop on a small real job, with a table and a picture at the end (3 minutes; ARGS=...)
	$(BIN)/loopopt demo $(ARGS)

test: $(STAMP)  ## all tests (ARGS="-k wire" for some)
	$(BIN)/python -m pytest $(ARGS)

lint: $(STAMP)  ## style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(STAMP)  ## put the code into the style that `lint` asks for
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)  ## write docs/cli.md, settings.md, metrics.md and grafana/ anew from the code
	$(BIN)/python tests/contract/reference.py
	$(BIN)/python -m loopopt.export.generate


bench-loop: $(STAMP)  ## the demo model with and without the loop, as ratios (long)
	$(BIN)/python -m tests.bench.loop $(ARGS)

HTA := .venv-hta

$(HTA)/.installed:
	test -x $(HTA)/bin/python || $(PYTHON) -m venv $(HTA)
	echo '*' > $(HTA)/.gitignore
	$(HTA)/bin/python -m pip install --quiet 'HolisticTraceAnalysis==0.5.0' 'pandas<3'
	touch $@

bench-parse: $(STAMP) $(HTA)/.installed  ## reading and measuring traces next to HolisticTraceAnalysis (10 minutes)
	$(BIN)/python -m tests.bench.parse --hta-python $(HTA)/bin/python $(ARGS)

bench-plan: $(STAMP)  ## what planning costs on large made-up graphs (a minute)
	$(BIN)/python -m tests.bench.plan $(ARGS)

clean:  ## remove the virtual environment and what the tools left
	rm -rf $(VENV) $(HTA) build dist demo-out *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
