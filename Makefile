# make demo   the whole way, from logger.info to a Spark verdict
# make kafka  a Kafka broker on this machine; make kafka-stop ends it
# make check  lint, types and unit tests, in under a minute
# make test   lint and every test that is not long; make test-long has the others
# make docs   the documentation as a site, in build/site
# make nemesis  seeded faults over all protocols, SEEDS=1-100 MINUTES=75 (docs/nemesis.md)
#
# PYTHON=python3.12   which interpreter .venv is made from (3.11 or newer)
# ARGS="…"            more arguments for demo, kafka, test, test-long, nemesis, bench, mutants, fuzz, lock
# TIME=1200 JOBS=1    fuzz: seconds for each target, targets at one time
# ONLY=name,name      build these extensions only (development)
# DEBUG=1             build with symbols, for gdb and perf; the next build without it replaces them
# LOGCLIENT_LIBRARIES=none   link no compression library (tools/libraries.py); after a build, make clean first
# WORKERS=3           test: processes that run tests, each whole files (a third waits); 0: none but pytest's own
# COVERAGE=percent    test: measure which lines run, too (a fifth slower); it fails below this

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
SOURCES := $(shell find _ext -name '*.pyx' -o -name '*.px[di]' -o -name '*.h' -o -name '__init__.py') setup.py tools/extensions.py tools/libraries.py tools/stubs.py

# Written by tools/system.sh when the right Java is not the one on PATH.
-include $(VENV)/java.mk

.PHONY: all deps deps-bench build check generated docs demo kafka kafka-stop test test-long test-pythons wheels nemesis bench mutants fuzz lint format lock clean distclean
all: build

deps: $(VENV)/.test $(VENV)/.system $(VENV)/.kafka $(VENV)/.logux $(VENV)/.pyright

$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { echo "logclient needs Python 3.11 or newer: there is no $(PYTHON); try make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "logclient needs Python 3.11 or newer: $(PYTHON) is $$($(PYTHON) -V 2>&1); try make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot make environments: install its venv package (Debian: python3-venv)" >&2; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || { echo "$(PYTHON) has no headers to compile against: install its development package (Debian: python3-dev)" >&2; exit 1; }
	@command -v "$${CC:-cc}" >/dev/null || { echo "logclient needs a C compiler: there is no $${CC:-cc} (Debian: gcc; Fedora: gcc)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# Each lock adds to the one before it (tools/lock.py), so that the demo waits for nothing that only tests need,
# and tests install what the demo has not. What comes as source (PySpark) is built by the locked setuptools,
# not by what pip would fetch for it, into a wheel that is not compressed, which halves the time. Byte
# code is left to the first import of each module (--no-compile).
$(VENV)/.demo: $(VENV)/.build | $(VENV)/.installed
$(VENV)/.test: $(VENV)/.demo
$(VENV)/.docs $(VENV)/.bench: $(VENV)/.test
$(VENV)/.build $(VENV)/.demo $(VENV)/.test $(VENV)/.docs $(VENV)/.bench: $(VENV)/.%: requirements-%.lock | $(VENV)/.made
	@start=$$(date +%s); DIST_EXTRA_CONFIG=$(CURDIR)/tools/stored.cfg $(PY) -m pip install --quiet --disable-pip-version-check \
		--no-deps --no-build-isolation --no-compile --require-hashes -r $< \
		&& touch $@ && echo "deps: $$(grep -c == $<) packages of $< in $$(( $$(date +%s) - start )) s"

# The compression libraries, with which extensions are compiled where they can be had.
$(VENV)/.libraries: tools/system.sh | $(VENV)/.made
	@sh tools/system.sh libraries && touch $@

# After the other: two installations would wait for one lock.
$(VENV)/.system: tools/system.sh | $(VENV)/.made $(VENV)/.libraries
	@start=$$(date +%s); sh tools/system.sh java $(VENV)/java.mk \
		&& touch $@ && echo "deps: system checked in $$(( $$(date +%s) - start )) s"

# Kafka's broker and Spark's connector, by Maven coordinates. Nothing but their tests needs them.
$(VENV)/.kafka: tools/kafka-ivy.xml tools/kafka.sha256 | $(VENV)/.demo $(VENV)/.system
	@start=$$(date +%s); $(PY) tools/kafka.py fetch; case $$? in \
		0) touch $@; echo "deps: Kafka's packages in $$(( $$(date +%s) - start )) s";; \
		3) echo "deps: no Kafka: its tests will skip";; \
		*) exit 1;; esac

# What tests and rows of benchmarks have from npm, in exact versions, by the folders of tests/interop: Logux's own
# server and clients, and a type checker.
$(VENV)/.logux $(VENV)/.pyright: $(VENV)/.%: tests/interop/%/package.json tests/interop/%/package-lock.json | $(VENV)/.made
	@start=$$(date +%s); command -v node >/dev/null && command -v npm >/dev/null && mkdir -p $(VENV)/$* && cp $^ $(VENV)/$* && cd $(VENV)/$* \
		&& npm ci --omit=dev --omit=optional --ignore-scripts --engine-strict --no-audit --no-fund --loglevel=error \
			--update-notifier=false --logs-max=0 --fetch-retries=1 --fetch-timeout=60000 --cache=cache >install.log 2>&1 \
		&& rm -rf cache && touch ../.$* && echo "deps: $$(grep -c integrity package-lock.json) packages of npm for $* in $$(( $$(date +%s) - start )) s" \
		|| echo "deps: no $* (it needs npm, and Node 20, or 22 and newer): its tests will skip"

deps-bench: deps $(VENV)/.bench

# The source tree itself is on the environment's path (a .pth file, no import hook: a hook would cost
# every start of an interpreter). The link lets Python, mypy and Spark's workers find in the tree what
# a wheel has as logclient/_ext; it is never committed and setup.py does not look at it.
$(VENV)/.installed: pyproject.toml $(VENV)/.build
	@ln -sfn ../_ext logclient/_ext
	@LOGCLIENT_ONLY=- $(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
		--config-settings editable_mode=compat --editable .
	@touch $@

build: $(VENV)/.installed $(VENV)/.libraries
	@[ -L logclient/_ext ] || ln -sfn ../_ext logclient/_ext
ifneq ($(ONLY)$(DEBUG),)
	@LOGCLIENT_ONLY=$(ONLY) LOGCLIENT_DEBUG=$(DEBUG) $(PY) setup.py --quiet build_ext --inplace
	@rm -f build/.built
else
	@$(MAKE) --silent --no-print-directory build/.built
endif

build/.built: $(SOURCES) $(VENV)/.build $(VENV)/.libraries
	@mkdir -p build
	@for so in _ext/*.so _ext/*/*.so; do [ -e "$${so%%.*}.pyx" ] || [ "$${so%%.*}" = _ext/_runtime ] || rm -f "$$so"; done
	@$(PY) setup.py --quiet build_ext --inplace
	@touch $@

# From nothing, packages are fetched while extensions are compiled.
# KAFKA=1: plog's events go through a broker of their own, by a client that is among what tests need.
demo:
	@$(MAKE) --no-print-directory --jobs=3 build $(VENV)/.demo $(VENV)/.system $(if $(KAFKA),$(VENV)/.test $(VENV)/.kafka)
ifdef KAFKA
	@at=$$($(PY) tools/kafka.py start | $(PY) -c 'import json, sys; print(json.load(sys.stdin)["bootstrap"])') \
		&& { $(BIN)/logclient demo --out build/demo --kafka $$at --packages $(VENV)/kafka/spark $(ARGS); code=$$?; $(PY) tools/kafka.py stop; exit $$code; }
else
	@$(BIN)/logclient demo --out build/demo $(ARGS)
endif

kafka: deps
	@$(PY) tools/kafka.py start $(ARGS)

kafka-stop:
	@$(PY) tools/kafka.py stop

# Needs neither Java nor Node, and no network once packages are there. To collect all tests would take longer.
check: UNIT_TESTS = $(shell grep -l "pytest.mark.unit" tests/*/test_*.py)
check: build $(VENV)/.test lint
	@$(PY) -m pytest -q -m "unit and not long" --hypothesis-profile=check --numprocesses=$(or $(WORKERS),2) --dist=loadfile \
		$(ARGS) $(UNIT_TESTS)

# What is written from the table of options: commit it.
generated: build
	@$(PY) -m tools.options

docs: build $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet $(ARGS)

test: build deps lint
	@mkdir -p build/coverage
	@$(PY) -m pytest -m "not long" --numprocesses=$(or $(WORKERS),3) --dist=loadfile --no-loadscope-reorder $(if $(COVERAGE),--cov --cov-report=term --cov-fail-under=$(COVERAGE)) $(ARGS)

test-long: build deps
	@$(PY) -m pytest -m long --timeout=3600 $(ARGS)

# Results in build/nemesis, or where ARGS="--resume DIR" says: then seeds that are there are not run again.
nemesis: build deps
	@$(PY) -m tests.nemesis --seeds $(or $(SEEDS),1-100) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

# A wheel for every other Python that can be found, and the tests that need no Spark.
test-pythons: build deps
	@$(PY) tools/pythons.py test $(ARGS)

# Source distribution, a wheel from it for every Python 3.11+ here, each tried outside the tree.
wheels: build deps
	@$(PY) tools/wheels.py $(ARGS)

bench: build deps-bench
	@$(PY) -m bench $(ARGS)

mutants: build deps
	@$(PY) -m tests.mutants $(ARGS)

# Needs clang and its sanitizers, which nothing else here does: docs/fuzzing.md.
fuzz: build deps
	@$(PY) -m fuzz --seconds $(or $(TIME),1200) --jobs $(or $(JOBS),1) $(ARGS)

lint: $(VENV)/.test $(VENV)/.installed
	@[ -L logclient/_ext ] || ln -sfn ../_ext logclient/_ext
	@$(PY) -m tools.stubs
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@PATH="$(BIN):$$PATH" cython-lint _ext

format: $(VENV)/.test
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

# Exact versions and hashes of everything pyproject.toml names; commit what it writes. ARGS=--upgrade: the newest.
lock:
	$(PYTHON) tools/lock.py $(ARGS)

clean:
	rm -rf build dist *.egg-info logclient/_ext .coverage .hypothesis .mypy_cache .ruff_cache .benchmarks
	find _ext \( -name '*.so' -o -name '*.c' -o -name '*.html' -o -name '*.pyi' \) -exec rm -f {} +
	find logclient tests bench fuzz tools _ext -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
