# make demo   train a small network on real digits        make test   run the tests
# make check  what CI runs: linter, types, tests           make clean  remove what make made
# make docs   build the site in build/site

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := -m pip install --disable-pip-version-check --quiet

# TORCH_OPTIONS is for pip where it installs torch, such as an index with a build for CPUs or another CUDA.
TORCH_OPTIONS ?=

# The oldest torch that pyproject.toml admits, in an environment of its own, whose other packages are those of VENV.
# TORCH_OLDEST_OPTIONS is for pip, such as an index with a CPU build; the plain file needs CUDA's libraries, 4.1 GB in
# all, even where there is no GPU.
OLDEST               ?= .venv-oldest
TORCH_OLDEST         := 2.11.0
TORCH_OLDEST_OPTIONS ?=
TESTS_OF_OLDEST      := tests/optim/rules tests/optim/engine tests/train tests/runtime tests/callbacks

# Whose torch sees a GPU: `make cuda CUDA_PYTHON=python3` where another environment has torch's build for CUDA.
CUDA_PYTHON ?= $(BIN)/python

# Tests start many processes, and each would compile our modules anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help fresh newcomer cuda demo test test-changed test-slow test-oldest lint types figures drawings coverage mutants docs docs-look pages schema check clean

help:
	@sed -n '1,3s/^# //p' Makefile

$(VENV)/package: pyproject.toml hatch_build.py constraints.txt $(wildcard descend/graph/schema/*.proto)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "descend needs Python 3.11 or newer: make PYTHON=python3.11" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing torch and descend into $(VENV) (a few minutes the first time)"
	@$(BIN)/python $(PIP) --constraint constraints.txt $(TORCH_OPTIONS) "torch==2.13.0"
	@$(BIN)/python $(PIP) --constraint constraints.txt --editable .
	@touch $@

$(VENV)/tools: $(VENV)/package
	@echo "installing the tools for tests into $(VENV)"
	@$(BIN)/python $(PIP) --constraint constraints.txt --editable ".[dev]"
	@touch $@

$(OLDEST)/torch:
	@test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	@echo "installing torch $(TORCH_OLDEST) into $(OLDEST)"
	@$(OLDEST)/bin/python $(PIP) --no-cache-dir $(TORCH_OLDEST_OPTIONS) "torch==$(TORCH_OLDEST)"
	@touch $@

$(OLDEST)/tools: $(OLDEST)/torch $(VENV)/tools
	@$(OLDEST)/bin/python -c 'import site, sys; open(site.getsitepackages()[0] + "/others.pth", "w").write("\n".join(sys.argv[1:]))' \
		"$(CURDIR)" "$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])')"
	@touch $@

demo: $(VENV)/package
	@$(BIN)/descend demo

# TESTS is what else pytest is given, such as folders.
TESTS ?=
test: $(VENV)/tools
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(TESTS)

# The README's commands in a clone, on a system that has Python and make and nothing else; then without a C++ compiler.
# COMPILER=yes or COMPILER=no makes one of the two. Needs Linux, and the right to make a mount namespace.
COMPILER ?= yes no
fresh:
	@$(if $(filter yes,$(COMPILER)),$(PYTHON) tools/fresh.py)
	@$(if $(filter no,$(COMPILER)),$(PYTHON) tools/fresh.py --no-compiler)

# The mirrored tests of what differs from BASE, and of what imports that.
BASE ?= HEAD
test-changed: $(VENV)/tools
	@tests=$$($(BIN)/python tools/changed_tests.py --base $(BASE)); \
	if [ -z "$$tests" ]; then echo "no module with a test differs from $(BASE)"; else \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $$tests; fi

# Slow tests wait for processes most of the time, so there are more of them at once than a small machine has cores.
test-slow: $(VENV)/tools
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal -m slow --durations=30

test-oldest: $(OLDEST)/tools
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n 2 --dist worksteal $(TESTS_OF_OLDEST)

# Builds the wheel, installs it into a fresh environment in an empty folder, and does there what README and docs say,
# and what users come and leave for.
newcomer:
	@$(PYTHON) tests/newcomer/run.py

# The checks and benchmarks that need a GPU, in ten minutes; writes docs/speed_cuda.md.
ifeq ($(CUDA_PYTHON),$(BIN)/python)
cuda: $(VENV)/tools
endif
cuda:
	@$(CUDA_PYTHON) tools/cuda_page.py

lint: $(VENV)/tools
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/tools
	$(BIN)/basedpyright --pythonpath $(BIN)/python

figures:
	@$(PYTHON) tools/figures.py --verbose

drawings:
	@$(PYTHON) tools/drawings.py

coverage: $(VENV)/tools
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term --cov-report=html:build/coverage
	@echo "coverage: $$($(BIN)/python -m coverage report --format=total) %"

mutants: $(VENV)/tools
	@$(BIN)/python tools/mutants.py

$(VENV)/docs-tools: $(VENV)/package
	@echo "installing the tools for the site into $(VENV)"
	@$(BIN)/python $(PIP) --constraint constraints.txt --editable ".[docs]"
	@touch $@

# Warnings are errors; nothing is fetched; every link inside leads somewhere.
docs: $(VENV)/docs-tools
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -b html -W --keep-going -q docs build/site
	@$(BIN)/python tools/site_links.py build/site
	@echo "the site is in build/site/index.html"

# The main pages and the search of the site in a browser: errors, requests, widths, accessibility.
docs-look: docs $(VENV)/tools
	$(BIN)/python tools/site_in_browser.py build/site

# Pictures of run pages and reports, to be looked at.
pages: $(VENV)/tools
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.page_shots

schema: $(VENV)/tools
	$(BIN)/python hatch_build.py

check: lint types test

clean:
	rm -rf $(VENV) $(OLDEST) build dist .pytest_cache .ruff_cache .hypothesis .coverage*
