#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the tests with cargo-nextest, or with cargo test where it is not installed.
set -euo pipefail
if cargo nextest --version >/dev/null 2>&1; then
	# Many tests wait more than they compute, for the kernel above all: each link at an interface is a grace period of RCU.
	exec cargo nextest run --no-fail-fast --test-threads "${NEXTEST_TEST_THREADS:-$((2 * $(nproc)))}" "$@"
fi
echo "nextest.sh: cargo-nextest is not installed; using cargo test" >&2
exec cargo test --no-fail-fast "$@" --lib --bins --tests --examples
