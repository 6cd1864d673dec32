# make demo   train a small network on real digits        make test   run the tests
# make check  what CI runs: linter, types, tests           make clean  remove what make made

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint types figures schema check clean

help:
	@sed -n '1,2s/^# //p' Makefile

$(VENV)/package: pyproject.toml hatch_build.py constraints.txt $(wildcard descend/graph/schema/*.proto)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "descend needs Python 3.11 or newer: make PYTHON=python3.11" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing torch and descend into $(VENV) (a few minutes the first time)"
	@$(PIP) "torch==2.13.0"
	@$(PIP) --editable .
	@touch $@

$(VENV)/tools: $(VENV)/package
	@echo "installing the tools for tests into $(VENV)"
	@$(PIP) --editable ".[dev]"
	@touch $@

demo: $(VENV)/package
	@$(BIN)/descend demo

test: $(VENV)/tools
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

test-slow: $(VENV)/tools
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow

lint: $(VENV)/tools
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/tools
	$(BIN)/basedpyright --pythonpath $(BIN)/python

figures:
	@$(PYTHON) tools/figures.py --verbose

schema: $(VENV)/tools
	$(BIN)/python hatch_build.py

check: lint types test

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
