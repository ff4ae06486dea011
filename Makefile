# Two commands on a fresh machine: `make train` and `make test`. Each sets up what it needs in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS_VENV := .venv-peers
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: train test test-slow test-optimizers lint format docs wheel wheel-check bench bench-peers sanitize clean
.DEFAULT_GOAL := test

train: $(VENV)/.installed
	$(BIN)/topkast train

# Two processes of one thread each: most tests are small, and threads of two processes would wait for each other.
# Tests of threads ask for as many as they want.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow --timeout 3600 -s

# The table of other people's optimizers, in an environment of their own.
OPTIMIZERS_VENV := .venv-optimizers
test-optimizers: $(OPTIMIZERS_VENV)/.installed
	OMP_NUM_THREADS=1 $(OPTIMIZERS_VENV)/bin/python -m pytest tests/optimizers

lint: $(VENV)/.dev
	$(BIN)/ruff check src tests examples docs/hooks.py
	$(BIN)/ruff format --check src tests examples docs/hooks.py
	$(BIN)/basedpyright
	$(BIN)/clang-format --dry-run --Werror src/topkast/kernels/native/*.[ch]pp

format: $(VENV)/.dev
	$(BIN)/ruff format src tests examples docs/hooks.py
	$(BIN)/ruff check --fix src tests examples docs/hooks.py
	$(BIN)/clang-format -i src/topkast/kernels/native/*.[ch]pp

# The documentation as pages in site/; a warning is an error. The tests build it too.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The sdist, and from it the wheel, in dist/.
wheel: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

# All tests, on the wheel, from another folder, in an environment made for it: torch is installed once more. The tests of
# the wheel and of the site are left out, which want the sources and are part of `make test`. WHEEL_TESTS chooses others.
CLEAN := build/wheel-check
WHEEL_TESTS ?= tests --ignore tests/packaging/test_wheel.py --ignore tests/test_site.py
wheel-check: wheel
	rm -rf $(CLEAN)
	mkdir -p $(CLEAN)
	$(PYTHON) -m venv $(CLEAN)/venv
	$(CLEAN)/venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	    "$$(ls dist/*.whl)[dev]"
	cp -r tests docs examples README.md CONTRIBUTING.md CHANGELOG.md pyproject.toml $(CLEAN)
	cd $(CLEAN) && venv/bin/python -c 'import topkast; assert "wheel-check/venv/" in topkast.__file__, topkast.__file__'
	cd $(CLEAN) && OMP_NUM_THREADS=1 venv/bin/python -m pytest -n 2 --dist worksteal $(WHEEL_TESTS)

# Options go into BENCH: make bench BENCH="--suite conv --batch 32".
BENCH ?=
bench: $(VENV)/.installed
	$(BIN)/topkast bench $(BENCH)

# Beside the peers, in an environment of their own: sparseprop's setup installs into whatever Python runs it.
# spops is timed too where it is there, but it is not in the package index (the spops there is another project):
# get it from github.com/IST-DASLab/spops and pip install --no-build-isolation its folder into .venv-peers.
bench-peers: $(PEERS_VENV)/.installed
	mkdir -p runs
	$(PEERS_VENV)/bin/topkast bench --equal --json runs/bench-peers.json $(BENCH)

# The kernel tests on a compiled core with address and undefined-behaviour sanitizers, installed beside the other.
SANITIZED := build/sanitize
sanitize: $(VENV)/.dev
	$(PIP_INSTALL) --no-deps --upgrade --target $(SANITIZED) \
	    -C cmake.define.TOPKAST_SANITIZE=ON -C cmake.build-type=RelWithDebInfo .
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
	    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
	    $(BIN)/python tests/sanitize.py $(SANITIZED)

clean:
	rm -rf $(VENV) $(PEERS_VENV) $(OPTIMIZERS_VENV) build dist site .pytest_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "topkast needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) --version 2>&1); set PYTHON=…"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The package alone is enough to train; the tests want tools besides. Both build the compiled core, again when it
# has changed.
NATIVE := CMakeLists.txt $(wildcard src/topkast/kernels/native/*)

$(VENV)/.installed: pyproject.toml constraints.txt $(NATIVE) | $(VENV)/bin/python
	@echo "setting up $(VENV) (torch is large: the first time takes a few minutes)"
	$(PIP_INSTALL) -e '.[train]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(NATIVE) | $(VENV)/bin/python
	@echo "setting up $(VENV) with the development tools"
	$(PIP_INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.installed

$(PEERS_VENV)/.installed: PIP_INSTALL := $(PEERS_VENV)/bin/python -m pip install --quiet \
    --disable-pip-version-check -c constraints.txt
$(PEERS_VENV)/.installed: pyproject.toml constraints.txt $(NATIVE)
	@echo "setting up $(PEERS_VENV) with the peers"
	$(PYTHON) -m venv $(PEERS_VENV)
	$(PIP_INSTALL) -e . setuptools==84.2.1 wheel==0.48.0 pybind11==3.1.0
	$(PIP_INSTALL) --no-build-isolation sparselab==0.2.2 sparseprop==0.1.14
	@touch $@

$(OPTIMIZERS_VENV)/.installed: PIP_INSTALL := $(OPTIMIZERS_VENV)/bin/python -m pip install --quiet \
    --disable-pip-version-check -c constraints.txt
$(OPTIMIZERS_VENV)/.installed: pyproject.toml constraints.txt $(NATIVE)
	@echo "setting up $(OPTIMIZERS_VENV) with the optimizers"
	$(PYTHON) -m venv $(OPTIMIZERS_VENV)
	$(PIP_INSTALL) -e . pytest==9.2.0 pytest-timeout==2.4.0 hypothesis==6.170.15 \
	    schedulefree==1.4.1 pytorch-optimizer==4.1.0 torch-ema==0.3
	@touch $@
