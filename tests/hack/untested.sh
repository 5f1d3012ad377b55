#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Targets with `test = false` in their manifest must have no tests: cargo would not run them.
set -euo pipefail
cd "$(dirname "$0")/../.."
failed=0
while read -r manifest; do
	sources=${manifest%/*}/src
	# Of programs the main file, of libraries all files.
	if grep -qx '\[lib\]' <(grep -B9 '^test = false' "$manifest"); then
		files=("$sources")
	else
		files=("$sources/main.rs")
	fi
	if grep -rnE '#\[(.*::)?test\b|cfg\(test\)|proptest!' "${files[@]}" >&2; then
		echo "untested.sh: cargo does not run these tests: $manifest says test = false" >&2
		failed=1
	fi
done < <(git ls-files '*/Cargo.toml' | xargs grep -l '^test = false')
exit "$failed"
