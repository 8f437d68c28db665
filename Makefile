# The commands of this repository. `make check`, `make test`, `make interop` and `make spark` are what CI runs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt
RUNS := $(VENV)/.runs
STAMP := $(VENV)/.installed
SEEDS ?= 20
NIGHT_SEEDS ?= 2000
# Files of tests run beside each other; those of one file share what they start. In their order, so
# that those of a folder share it, too.
AT_ONCE ?= --numprocesses 2 --dist loadfile --no-loadscope-reorder
OLDEST_SPARK := 4.2.0
OLDEST := .venv-spark42
OLDEST_PIP := $(OLDEST)/bin/python -m pip install --disable-pip-version-check --quiet
KILLS ?= 2000
# Compiled modules are kept: hundreds of processes that tests start import the same ones.
unexport PYTHONDONTWRITEBYTECODE
UNDER_FIRE := test_output_is_input_however_often_processes_are_killed

.PHONY: help install demo test test-all interop interop-table spark spark-kills check format night docs sim bench peers performance faces changelog release clean

help:
	@echo "make install  set up .venv with what it takes to run the log"
	@echo "make demo     three bookies, 336,776 real events, one kill -9; checks every byte"
	@echo "make test     the tests, without the slow and the tidy ones (make test-all: all of them)"
	@echo "make night    every campaign in full, hours long; build/night/report.md says what ran"
	@echo "make interop  against released Apache BookKeeper; needs Java and Maven"
	@echo "make spark    with Spark, its newest and its oldest version that will do; needs Java"
	@echo "make spark-kills  exactly-once pipelines under KILLS=2000 kills; SEED=7 for other ones"
	@echo "make check    formatting, lint, types, import rules, tidy tests"
	@echo "make sim      simulated clusters under faults: SEEDS=200, or SEED=7 to repeat one (TRACE=1);"
	@echo "              SCENARIO=healing: those that heal themselves, alone"
	@echo "make bench    every benchmark, one JSON object for each result; about 70 minutes"
	@echo "make peers    fetches what benchmarks compare with into .peers: Redis, NATS, Kafka, BookKeeper"
	@echo "make performance  measures, and writes the tables and the plot of docs/performance.md;"
	@echo "              about 90 minutes, continues where it was interrupted; ONLY='rate idle'"
	@echo "make format   let ruff format and fix"
	@echo "make docs     write docs/configuration.md, metrics.md and api.md from the code"
	@echo "make faces    write stream/aio and stream/blocking from the trio classes"
	@echo "make changelog  collect changelog.d into CHANGELOG.md, for the version in pyproject.toml"
	@echo "make release  build, check and tag that version; uploads nothing (TAG=no: does not tag)"

# Both are made again whenever the pinned versions or the package's own list of needs change. To run
# the log takes little; to test it also PySpark, which is large and brings a ZooKeeper server.
$(RUNS): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; \
		sys.exit(0 if v >= (3, 11) else f"Python 3.11 or newer is needed, this is {v.major}.{v.minor}: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'installing into .venv, which takes a minute'
	$(PIP) --editable '.[examples,zookeeper]'
	@touch $@

$(STAMP): $(RUNS)
	@echo 'installing what the tests need'
	$(PIP) --editable '.[dev]'
	@touch $@

install: $(RUNS)

demo: $(RUNS)
	$(BIN)/python -m examples.demo

# tests/tidy reads the checkout, not the product's behaviour: it is a part of `make check`.
test: $(STAMP)
	$(BIN)/python -m pytest -m "not slow and not interop and not spark" --ignore tests/tidy \
		$(AT_ONCE) --durations=10

test-all: $(STAMP)
	$(BIN)/python -m pytest

# Tests try samples of their examples, seeds and crash points; here they try all, and other ones.
night: $(STAMP)
	$(BIN)/python -m tests.night --seeds $(NIGHT_SEEDS) --kills $(KILLS)

# The table in docs/interoperability.md must say what this run found; `make interop-table` writes it.
interop: $(STAMP)
	@rm -f .interop/results.json
	$(BIN)/python -m pytest -m interop $(AT_ONCE) --durations=20
	$(BIN)/python -m tests.interop.results --check

interop-table: $(STAMP)
	$(BIN)/python -m tests.interop.results --write

# The oldest Spark that will do, beside the newest: some of the tests run with both.
$(OLDEST)/.installed: constraints.txt pyproject.toml
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	@echo 'installing PySpark $(OLDEST_SPARK) into $(OLDEST), which takes a minute'
	@grep -v '^pyspark==' constraints.txt >$(OLDEST)/constraints.txt
	$(OLDEST_PIP) --constraint $(OLDEST)/constraints.txt \
		--editable '.[spark,testing,zookeeper,security]' pytest-xdist 'pyspark[connect]==$(OLDEST_SPARK)'
	@touch $@

# The kills of CI are run by their command, which tells what was killed.
spark: $(STAMP) $(OLDEST)/.installed
	$(BIN)/python -m pytest -m spark $(AT_ONCE) --durations=10 \
		--deselect tests/spark/kills/test_killing.py::$(UNDER_FIRE)
	$(BIN)/python -m tests.spark.kills.killing --kills 80
	$(OLDEST)/bin/python -m pytest -m "spark and versions" tests/spark $(AT_ONCE) --durations=10

# Exactly once, under fire; a step of the night.
spark-kills: $(STAMP)
	$(BIN)/python -m tests.spark.kills.killing --kills $(KILLS) $(if $(SEED),--seed $(SEED))

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/tidy --numprocesses 2

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	$(BIN)/python -m tools.docs.configuration
	$(BIN)/python -m tools.docs.metrics
	$(BIN)/python -m tools.docs.api
	$(BIN)/python -m tools.docs.spark_options
	$(BIN)/python -m tools.docs.permissions

faces: $(STAMP)
	$(BIN)/python -m tools.faces.generate

sim: $(STAMP)
	$(BIN)/python -m tests.sim $(if $(SCENARIO),--scenario $(SCENARIO)) $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(if $(TRACE),--trace)
	$(if $(SEED)$(SCENARIO),,$(BIN)/python -m tests.sim --scenario healing --seeds $(SEEDS))

bench: $(STAMP)
	$(BIN)/python -m benchmarks all --json

peers: $(STAMP)
	$(BIN)/python -m benchmarks.systems.programs

performance: $(STAMP)
	$(BIN)/python -m benchmarks.document $(if $(ONLY),--only $(ONLY))

# Deletes the fragments that it collects. What it wrote is to be read, put in order and committed.
changelog: $(STAMP)
	$(BIN)/towncrier build --yes --version \
		"$$($(BIN)/python -c 'from tools import release; print(release.version_of(release.ROOT))')"

release: $(STAMP)
	$(BIN)/python -m tools.release $(if $(filter no,$(TAG)),--no-tag)

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
