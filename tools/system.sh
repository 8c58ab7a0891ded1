#!/bin/sh
# Install the requirements besides Python and a C compiler from the system's packages, if that needs no question:
#
#     system.sh libraries        the compression libraries with their headers (tools/libraries.py). A failure is
#                                silent, because Python's packages replace them
#     system.sh java [FRAGMENT]  Java 17 or newer (for Spark), or a line with the remedy. FRAGMENT: a Makefile
#                                fragment to write if JAVA_HOME must be set
set -u
fragment=${2:-/dev/null}

say() { echo "$*" >&2; }

# Set as_root to the beginning of a command as root; fail if that needs a password.
may_install() {
    if [ "$(id -u)" = 0 ]; then
        as_root=
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        as_root="sudo -n"
    else
        return 1
    fi
    DEBIAN_FRONTEND=noninteractive
    export DEBIAN_FRONTEND
}

have_libraries() { pkg-config --exists zlib libisal liblz4 snappy 2>/dev/null; }

# One package at a time: a system may lack one of them.
libraries() {
    if [ "${LOGCLIENT_LIBRARIES:-}" = none ] || ! may_install; then
        return
    fi
    if command -v apt-get >/dev/null 2>&1; then
        quick="-o Acquire::Retries=0 -o Acquire::http::Timeout=10 -o Acquire::https::Timeout=10"
        install="apt-get $quick install -y --no-install-recommends"
        packages="pkg-config zlib1g-dev libisal-dev liblz4-dev libsnappy-dev"
        $as_root apt-get $quick update
    elif command -v dnf >/dev/null 2>&1; then
        # Fedora has all of them. Elsewhere ISA-L is in EPEL, snappy's headers in PowerTools (CRB from 9 on).
        $as_root dnf install -y epel-release dnf-plugins-core
        $as_root dnf config-manager --set-enabled powertools || $as_root dnf config-manager --set-enabled crb
        install="dnf install -y"
        packages="pkgconf-pkg-config zlib-devel isa-l-devel lz4-devel snappy-devel"
    elif command -v apk >/dev/null 2>&1; then
        install="apk add"
        packages="pkgconf zlib-dev isa-l-dev lz4-dev snappy-dev"
    else
        return
    fi
    for package in $packages; do
        $as_root $install "$package"
    done
}

if [ "${1:-}" = libraries ]; then
    have_libraries && exit 0
    libraries >/dev/null 2>&1
    have_libraries && say "deps: installed the compression libraries"
    exit 0
fi

# The major version of a java program, 0 when it does not run.
version() {
    v=$("$1" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1)
    echo "${v:-0}"
}

# As PySpark, use JAVA_HOME first, then PATH; then look in the usual folders of systems.
find_java() {
    if [ -n "${JAVA_HOME:-}" ] && [ "$(version "$JAVA_HOME/bin/java")" -ge 17 ]; then
        return 0
    fi
    if [ -z "${JAVA_HOME:-}" ] && [ "$(version java)" -ge 17 ]; then
        return 0
    fi
    for home in /usr/lib/jvm/* /Library/Java/JavaVirtualMachines/*/Contents/Home /opt/homebrew/opt/openjdk*; do
        if [ -x "$home/bin/java" ] && [ "$(version "$home/bin/java")" -ge 17 ]; then
            echo "export JAVA_HOME := $home" >"$fragment"
            return 0
        fi
    done
    return 1
}

find_java && exit 0

remedy="install a JRE (Debian: openjdk-17-jre-headless; Fedora: java-21-openjdk-headless; Alpine: openjdk17-jre-headless) or set JAVA_HOME"
if ! may_install; then
    say "logclient needs Java 17 or newer for Spark, and may not install it here: $remedy"
    exit 1
fi

log=$(mktemp)
attempt() { say "installing Java: $*"; $as_root "$@" >>"$log" 2>&1; }
if command -v apt-get >/dev/null 2>&1; then
    attempt apt-get update
    for package in openjdk-21-jre-headless openjdk-17-jre-headless default-jre-headless; do
        attempt apt-get install -y --no-install-recommends "$package" && break
    done
elif command -v dnf >/dev/null 2>&1; then
    for package in java-21-openjdk-headless java-17-openjdk-headless java-latest-openjdk-headless; do
        attempt dnf install -y "$package" && break
    done
elif command -v apk >/dev/null 2>&1; then
    for package in openjdk21-jre-headless openjdk17-jre-headless; do
        attempt apk add "$package" && break
    done
fi

if find_java; then
    rm -f "$log"
    exit 0
fi
say "logclient needs Java 17 or newer for Spark, and could not install it (see $log): $remedy"
exit 1
