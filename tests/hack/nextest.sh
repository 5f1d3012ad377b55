#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the tests with cargo-nextest and prints the slowest, or runs them with cargo test where it is not installed.
set -euo pipefail
if ! cargo nextest --version >/dev/null 2>&1; then
	echo "nextest.sh: cargo-nextest is not installed; using cargo test" >&2
	exec cargo test --no-fail-fast "$@" --lib --bins --tests --examples
fi
status=0
# Many tests wait more than they compute, for the kernel above all: each link at an interface is a grace period of RCU.
cargo nextest run --no-fail-fast --test-threads "${NEXTEST_TEST_THREADS:-$((2 * $(nproc)))}" "$@" || status=$?
# In the workspace, wherever the target folder is.
report=target/nextest/default/junit.xml
if [ -f "$report" ]; then
	echo "Slowest tests, in seconds:"
	sed -n 's/.*<testcase name="\([^"]*\)" classname="\([^"]*\)".* time="\([0-9.]*\)".*/\3 \2 \1/p' "$report" |
		sort -rn | sed -n '1,30p'
fi
exit "$status"
