#!/bin/sh
# Install what the Makefile's targets need into $VENV, and note each part by a file there:
#
#     deps.sh venv            an environment of $PYTHON
#     deps.sh packages STAGE  the packages of requirements-STAGE.lock
#     deps.sh tree            this tree, in place
#     deps.sh libraries | java | kafka
#     deps.sh npm FOLDER      those of tests/interop/FOLDER, where there is npm
set -eu
say() { echo "$*" >&2; }
py=$VENV/bin/python
start=$(date +%s)
took() { echo "deps: $* in $(($(date +%s) - start)) s"; }

case $1 in
venv)
    fail() { say "$*"; exit 1; }
    # A command with its arguments, or one whose name has spaces.
    if command -v "$PYTHON" >/dev/null; then python() { "$PYTHON" "$@"; }; else python() { $PYTHON "$@"; }; fi
    command -v "$PYTHON" >/dev/null || command -v "${PYTHON%% *}" >/dev/null || fail "logclient needs Python 3.11 or newer: there is no $PYTHON; try make PYTHON=python3.12"
    python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "logclient needs Python 3.11 or newer: $PYTHON is $(python -V 2>&1); try make PYTHON=python3.12"
    python -c 'import venv, ensurepip' 2>/dev/null || fail "$PYTHON cannot make environments: install its venv package (Debian: python3-venv)"
    python -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || fail "$PYTHON has no headers to compile against: install its development package (Debian: python3-dev)"
    compiler=${CC:-cc}
    compiler=${compiler%% *} # as in CC="ccache gcc"
    command -v "$compiler" >/dev/null || fail "logclient needs a C compiler: there is no $compiler (Debian: gcc; Fedora: gcc)"
    python -m venv "$VENV"
    touch "$VENV/.made"
    ;;
packages)
    # What comes as source (PySpark) is built by the locked setuptools, not by what pip would fetch for it, into a
    # wheel that is not compressed, which halves the time. Byte code is left to the first import of each module.
    DIST_EXTRA_CONFIG=$PWD/tools/stored.cfg "$py" -m pip install --quiet --disable-pip-version-check --no-deps \
        --no-build-isolation --no-compile --require-hashes -r "requirements-$2.lock"
    touch "$VENV/.$2"
    took "$(grep -c == "requirements-$2.lock") packages of requirements-$2.lock"
    ;;
tree)
    # A .pth file and no import hook, which would cost every start of an interpreter. By the link Python, mypy
    # and Spark's workers find in the tree what a wheel has as logclient/_ext; setup.py does not look at it.
    ln -sfn ../_ext logclient/_ext
    LOGCLIENT_ONLY=- "$py" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
        --config-settings editable_mode=compat --editable .
    touch "$VENV/.installed"
    ;;
libraries)
    sh tools/system.sh libraries
    touch "$VENV/.libraries"
    ;;
java)
    sh tools/system.sh java "$VENV/java.mk"
    touch "$VENV/.system"
    took "system checked"
    ;;
kafka)
    # Kafka's broker and Spark's connector, by Maven coordinates. Nothing but their tests needs them.
    code=0
    "$py" tools/kafka.py fetch || code=$?
    case $code in
    0) touch "$VENV/.kafka" && took "Kafka's packages" ;;
    3) echo "deps: no Kafka: its tests will skip" ;;
    *) exit 1 ;;
    esac
    ;;
npm)
    # What tests and rows of benchmarks have from npm, in exact versions: Logux's own server and clients, and a
    # type checker.
    from=$PWD/tests/interop/$2
    at=$PWD/$VENV
    if command -v node >/dev/null && command -v npm >/dev/null && mkdir -p "$at/$2" && cp "$from"/package*.json "$at/$2" && cd "$at/$2" \
        && npm ci --omit=dev --omit=optional --ignore-scripts --engine-strict --no-audit --no-fund --loglevel=error \
            --update-notifier=false --logs-max=0 --fetch-retries=1 --fetch-timeout=60000 --cache=cache >install.log 2>&1; then
        rm -rf cache
        touch "$at/.$2"
        took "$(grep -c integrity package-lock.json) packages of npm for $2"
    else
        echo "deps: no $2 (it needs npm, and Node 20, or 22 and newer): its tests will skip"
    fi
    ;;
esac
