#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks what a build of the whole workspace hides: the order of domains, dependencies that are banned, and that the
# crates for embedders build by themselves, without clang where they load no BPF programs. With --every-feature: that
# each crate builds with each of its features.
set -euo pipefail
cd "$(dirname "$0")/../.."
./tests/hack/workspace.py guards
# A compiler that does not exist stands in for a machine without clang.
no_clang=/nonexistent/clang
needs_clang=$(cargo tree --quiet --workspace --edges normal,build --invert skep-bpf-programs --prefix none --format '{p}' |
	cut -d' ' -f1 | sort -u)
if [ "${1:-}" = --every-feature ]; then
	excluded=()
	included=()
	for package in $needs_clang; do
		excluded+=(--exclude "$package")
		included+=(--package "$package")
	done
	CLANG=$no_clang cargo hack check --quiet --workspace --each-feature --no-dev-deps "${excluded[@]}"
	exec cargo hack check --quiet --each-feature --no-dev-deps "${included[@]}"
fi
for package in $(./tests/hack/workspace.py promised); do
	if grep -qxF "$package" <<<"$needs_clang"; then
		cargo check --quiet --package "$package"
	else
		CLANG=$no_clang cargo check --quiet --package "$package"
	fi
done
