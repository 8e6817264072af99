# Every target does its own set-up: a machine with Python 3.11 or later, git and make is enough. With LOCKED=1 the
# versions are those of requirements/ci.lock, which `make lock` writes.
PYTHON ?= python3
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
BENCH_STAMP := $(VENV)/.stamp-bench
DOCS_STAMP := $(VENV)/.stamp-docs

# One BLAS thread per test process: WORKERS processes with a full thread pool each would fight for the cores.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
# Tests of compiled kernels that are quick enough to run without compilation.
KERNEL_TESTS := tests/test_solvers.py tests/test_one_pass.py tests/test_engines.py tests/test_mixture.py
# Doctests of a module that needs an absent extra are skipped; every other example in a docstring must run.
# With worksteal a worker runs whole files, mostly: what the tests of a file share (a cluster, a browser, a fit) is made once.
# Bytecode is written whatever the environment says: many tests start processes, and each would compile the package anew.
PYTEST := $(ONE_THREAD) PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q --doctest-modules --doctest-ignore-import-errors

.PHONY: ratings sparse sparse-real counts demo compare reproduce fireworks ranks tables breakdown real hard bench docs test test-all test-gpu fuzz soak release coverage mutants lock audit lint dist check-wheel clean distclean

demo: $(STAMP)
	$(BIN)/python -m robustnmf.paper.demo

# Every model on the embedded faces, one line each (minutes).
compare: $(STAMP)
	$(BIN)/python -m robustnmf.paper.compare

# The paper's tables and figures beside ours (hours; DATA=folder adds AR and Caltech-101, QUICK=1 takes minutes).
reproduce: $(STAMP)
	$(BIN)/robustnmf reproduce all $(if $(DATA),--data $(DATA)) $(if $(QUICK),--quick)

# What the default is worth, table by table (hours; `benchmarks/robust_default.py --help` for fewer).
tables: $(STAMP)
	$(BIN)/python benchmarks/robust_default.py

# Sparse counts of 100 000 samples and 20 000 features, beside scikit-learn (half an hour).
sparse: $(STAMP)
	$(BIN)/python benchmarks/sparse_counts.py
	$(BIN)/python benchmarks/sparse_counts.py --break-even

# Counts with planted components, gross errors, drop-outs and sizes of samples, beside scikit-learn (minutes).
counts: $(BENCH_STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/counts.py

# Topics of real text and types of real cells, clean and with planted errors, beside scikit-learn (ten minutes).
ratings: $(STAMP)
	$(BIN)/python benchmarks/ratings.py

sparse-real: $(BENCH_STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/sparse_real.py

# Air quality at Baltimore with and without the days of fireworks (minutes).
fireworks: $(STAMP)
	$(BIN)/python benchmarks/fireworks.py

# Whether cross-validation finds the number of components, in simulated and real data (an hour).
ranks: $(BENCH_STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/rank_selection.py

# How much of the data may be wrong before each method breaks down (about a quarter of an hour).
breakdown: $(STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/breakdown.py --jobs $(WORKERS)

# Real data of many kinds, clean and with planted errors, beside other methods (many hours, downloads 1 GB; what is done
# is not done again; `benchmarks/real_data.py --help` for less).
real: $(BENCH_STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/real_data.py --jobs $(WORKERS)

# Data on which robust factorisation is easily wrong in silence (minutes).
hard: $(BENCH_STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/hard_cases.py

# How fast it is, against other packages on the same machine (many minutes; `benchmarks/speed.py --help` for fewer).
bench: $(BENCH_STAMP)
	$(BIN)/python benchmarks/speed.py

# How fast it is on a CUDA GPU (minutes; Torch must see one).
bench-gpu: $(STAMP)
	$(BIN)/python benchmarks/gpu.py --out benchmarks/results/gpu.md

# The documentation with its gallery, as pages in docs/_build/html; a warning is an error.
docs: $(DOCS_STAMP)
	$(BIN)/python -m sphinx -b html -d docs/_build/doctrees -W --keep-going -q docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

test: $(STAMP)
	$(PYTEST) src tests

test-all: $(STAMP)
	$(PYTEST) -m "" src tests

# What needs a CUDA GPU, slow tests too (two minutes with WORKERS=14); without one, all of it is skipped.
test-gpu: $(STAMP)
	$(PYTEST) -m gpu tests

# Spoilt files of every kind, at random, for some minutes (SECONDS=n).
fuzz: $(STAMP)
	$(ONE_THREAD) $(BIN)/python tests/fuzz/run.py --seconds $(or $(SECONDS),300)

# Fits of random configurations, for some minutes (SECONDS=n), SEED=n for others: results must be finite or refused, and
# what is promised must hold. A failure prints the seed that replays it.
soak: $(STAMP)
	$(ONE_THREAD) $(BIN)/python tests/soak/run.py --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

# What has to pass before a release: every test, the slow ones too, and the runs at random (hours).
release: lint test-all soak fuzz docs audit

# Lines and branches of src that the tests run. Compiled kernels are seen by the tests that run them uncompiled; interrupts
# at random moments are left out, for they can strike inside coverage's own lock. With ALL=1 the slow tests too.
coverage: $(STAMP)
	rm -f .coverage .coverage.*
	$(ONE_THREAD) $(BIN)/python -m coverage run -m pytest -n $(WORKERS) -q --doctest-modules --doctest-ignore-import-errors -k "not interrupted_fit" $(if $(ALL),-m "") src tests
	NUMBA_DISABLE_JIT=1 $(ONE_THREAD) $(BIN)/python -m coverage run -m pytest -q $(KERNEL_TESTS)
	$(BIN)/python -m coverage combine -q
	$(BIN)/python -m coverage report --fail-under 95

# Small faults in the mathematical core, one at a time: does a test notice? (An hour; MODULES="model/losses solvers/hals" for fewer.)
mutants: $(STAMP)
	$(ONE_THREAD) $(BIN)/python tests/mutation/run.py --jobs $(WORKERS) $(MODULES)

# The versions that LOCKED=1 installs, for every supported Python and platform. No hashes: pip refuses them beside an editable
# install. What is locked stays as it is while it fits; UPGRADE=1 takes the newest.
lock: $(STAMP)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev --no-annotate --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) --output-file requirements/ci.lock pyproject.toml

# Whether what is installed is what requirements/ci.lock says, under licences that are known; offline, so nothing of
# vulnerabilities. It is for a .venv that was made with LOCKED=1: others may have newer versions.
audit: $(STAMP)
	$(BIN)/python -m pip check
	$(BIN)/uv pip install --check --offline --python $(BIN)/python --constraint requirements/ci.lock --requirement pyproject.toml --extra dev
	$(BIN)/python -m pytest -q tests/test_supply_chain.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(LOCKED),-c requirements/ci.lock) --editable ".[dev]"
	touch $@

# The rivals of the benchmark, torch among them: a large download.
$(BENCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[bench]"
	touch $@

# Sphinx and what it needs.
$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	touch $@

# The files of a release in dist/, with a look at their description.
dist: $(STAMP)
	rm -rf dist
	$(BIN)/uv build --quiet --out-dir dist
	$(BIN)/uvx --quiet twine check --strict dist/*

# The wheel in an empty environment without an index, with the newest dependencies and with the oldest admitted (minutes).
check-wheel: $(STAMP)
	$(BIN)/python packaging/check_wheel.py
	$(BIN)/python packaging/check_wheel.py --oldest

# What the tools left behind, compiled kernels included; the environment stays.
clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis fuzz-failures .coverage .coverage.*
	rm -rf docs/_build docs/auto_examples docs/generated
	find src tests docs examples -type d -name __pycache__ -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
