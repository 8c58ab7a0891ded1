#!/bin/sh
# Check the requirement besides Python and a C compiler: Java 17 or newer (for Spark).
# If Java is missing, install it from the system's packages where that is possible without a question;
# otherwise print a line with the remedy. $1: a Makefile fragment to write if JAVA_HOME must be set.
set -u
fragment=${1:-/dev/null}

say() { echo "$*" >&2; }

# The major version of a java program; 0: it does not run.
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

if [ "$(id -u)" = 0 ]; then
    as_root=
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root="sudo -n"
else
    say "logclient needs Java 17 or newer for Spark, and may not install it here: install a JRE or set JAVA_HOME"
    exit 1
fi

log=$(mktemp)
attempt() { say "installing Java: $*"; $as_root "$@" >>"$log" 2>&1; }
if command -v apt-get >/dev/null 2>&1; then
    DEBIAN_FRONTEND=noninteractive
    export DEBIAN_FRONTEND
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
say "logclient needs Java 17 or newer for Spark, and could not install it (see $log): install a JRE or set JAVA_HOME"
exit 1
