#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Clippy, tests and doc tests of the packages that the changes since a commit affect: affected.sh [BASE]
set -euo pipefail
cd "$(dirname "$0")/../.."
selected=()
for package in $(./tests/hack/workspace.py affected "$@"); do
	selected+=(--package "$package")
done
if [ "${#selected[@]}" -eq 0 ]; then
	echo "affected: no package"
	exit 0
fi
echo "affected:" "${selected[@]//--package/}"
cargo clippy "${selected[@]}" --lib --bins --tests --examples -- -D warnings
# The programs that end-to-end tests run.
cargo build --bins
cargo test "${selected[@]}" --doc --quiet
exec ./tests/hack/nextest.sh "${selected[@]}"
