# make demo       the whole way, from logger.info to a Spark verdict; KAFKA=1: plog's events through a broker
# make check      lint, types and unit tests, in a minute; needs neither Java nor Node, and no network again
# make test       lint and the tests of behaviour, in minutes;  WORKERS=3: processes that run them
# make test-all   lint and every test that is not long;  COVERAGE=percent: fail below it
# make test-long  tests that take minutes each;  make test-pythons, wheels: for every Python that can be found
# make bench | mutants | fuzz | nemesis | docs | kafka | generated | lock | format   CONTRIBUTING.md says more
#
# PYTHON=python3.12   the interpreter of .venv, also with arguments;  ARGS="…"  more arguments for the command
# ONLY=name,name      build these extensions only;  DEBUG=1  with symbols, until the next build without it
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
DEPS := PYTHON='$(PYTHON)' VENV=$(VENV) sh tools/deps.sh
PYTEST = $(PY) -m pytest --dist=loadgroup --no-loadscope-reorder
SOURCES := $(shell find _ext -name '*.pyx' -o -name '*.px[di]' -o -name '*.h' -o -name '__init__.py') setup.py tools/extensions.py tools/libraries.py tools/stubs.py
-include $(VENV)/java.mk

.PHONY: all deps deps-bench build check generated docs demo kafka test test-all test-long test-pythons wheels nemesis bench mutants fuzz lint format lock clean distclean
all: build
deps: $(VENV)/.test $(VENV)/.system $(VENV)/.kafka $(VENV)/.logux $(VENV)/.pyright
deps-bench: deps $(VENV)/.bench

$(VENV)/.made:
	@$(DEPS) venv

# Each lock adds to the one before it, so that the demo waits for nothing that only tests need.
$(VENV)/.demo: $(VENV)/.build | $(VENV)/.installed
$(VENV)/.test: $(VENV)/.demo
$(VENV)/.docs $(VENV)/.bench: $(VENV)/.test
$(VENV)/.build $(VENV)/.demo $(VENV)/.test $(VENV)/.docs $(VENV)/.bench: $(VENV)/.%: requirements-%.lock | $(VENV)/.made
	@$(DEPS) packages $*
$(VENV)/.libraries: tools/system.sh | $(VENV)/.made
	@$(DEPS) libraries
# After the libraries: two installations would wait for one lock.
$(VENV)/.system: tools/system.sh | $(VENV)/.made $(VENV)/.libraries
	@$(DEPS) java
$(VENV)/.kafka: tools/kafka-ivy.xml tools/kafka.sha256 | $(VENV)/.demo $(VENV)/.system
	@$(DEPS) kafka
$(VENV)/.logux $(VENV)/.pyright: $(VENV)/.%: tests/interop/%/package.json tests/interop/%/package-lock.json | $(VENV)/.made
	@$(DEPS) npm $*
$(VENV)/.installed: pyproject.toml $(VENV)/.build
	@$(DEPS) tree

build: $(VENV)/.installed $(VENV)/.libraries
	@$(if $(ONLY)$(DEBUG),LOGCLIENT_ONLY=$(ONLY) LOGCLIENT_DEBUG=$(DEBUG) $(PY) setup.py --quiet build_ext --inplace && rm -f build/.built,$(MAKE) --silent --no-print-directory build/.built)
build/.built: $(SOURCES) $(VENV)/.build $(VENV)/.libraries
	@mkdir -p build
	@for so in _ext/*.so _ext/*/*.so; do [ -e "$${so%%.*}.pyx" ] || [ "$${so%%.*}" = _ext/_runtime ] || rm -f "$$so"; done
	@$(PY) setup.py --quiet build_ext --inplace
	@touch $@

# From nothing, packages are fetched while extensions are compiled.
demo:
	@$(MAKE) --no-print-directory --jobs=3 build $(VENV)/.demo $(VENV)/.system $(if $(KAFKA),$(VENV)/.test $(VENV)/.kafka)
	@$(if $(KAFKA),$(PY) tools/kafka.py run --) $(PY) -m tools.demo $(if $(KAFKA),--packages $(VENV)/kafka/spark) $(ARGS)
kafka: deps
	@$(PY) tools/kafka.py $(or $(ARGS),start)

lint: $(VENV)/.test $(VENV)/.installed
	@$(PY) -m tools.stubs
	@$(BIN)/ruff check . && $(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@PATH="$(BIN):$$PATH" cython-lint _ext
# To collect all tests would take longer than to run these.
check: build $(VENV)/.test lint
	@$(PYTEST) -q -m "unit and not slow and not long" --hypothesis-profile=check --numprocesses=$(or $(WORKERS),2) $(ARGS) $$(grep -l "pytest.mark.unit" tests/*/test_*.py)
test: build deps lint
	@$(PYTEST) -m "not slow and not long" --numprocesses=$(or $(WORKERS),3) $(ARGS)
test-all: build deps lint
	@mkdir -p build/coverage
	@$(PYTEST) -m "not long" --numprocesses=$(or $(WORKERS),3) $(if $(COVERAGE),--cov --cov-report=term --cov-fail-under=$(COVERAGE)) $(ARGS)
test-long: build deps
	@$(PY) -m pytest -m long --timeout=3600 $(ARGS)
test-pythons wheels: %: build deps
	@$(PY) $(if $(filter wheels,$@),tools/wheels.py,tools/pythons.py test) $(ARGS)
nemesis: build deps
	@$(PY) -m tests.nemesis --seeds $(or $(SEEDS),1-100) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)
mutants: build deps
	@$(PY) -m tests.mutants $(ARGS)
fuzz: build deps
	@$(PY) -m fuzz --seconds $(or $(TIME),1200) --jobs $(or $(JOBS),1) $(ARGS)
bench: build deps-bench
	@$(PY) -m bench $(ARGS)
docs: build $(VENV)/.docs
	@$(PY) tools/site.py && $(BIN)/zensical build --clean --strict $(ARGS)
	@$(PY) -m pytest -q tests/project/test_docs_search.py
generated: build
	@$(PY) -m tools.options
format: $(VENV)/.test
	@$(BIN)/ruff check --fix-only --quiet . && $(BIN)/ruff format .
lock:
	$(PYTHON) tools/lock.py $(ARGS)

distclean: clean
	rm -rf $(VENV)
clean:
	rm -rf build dist *.egg-info logclient/_ext $(VENV)/.installed .coverage .hypothesis .mypy_cache .ruff_cache .benchmarks
	find _ext \( -name '*.so' -o -name '*.c' -o -name '*.html' -o -name '*.pyi' \) -exec rm -f {} +
	find logclient tests bench fuzz tools _ext -name __pycache__ -type d -prune -exec rm -rf {} +
