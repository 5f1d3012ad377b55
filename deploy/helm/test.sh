#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Renders sets of values with the chart and compares the facts with those of Cilium's chart: test.sh [OPTION...] [FILE...]
# FILE is NAME.values.yaml or NAME.json, both in one folder; without files, the sets in testdata, after every value was refused with a
# wrong type. See compare.py for the options and what is compared. Helm is that of variable HELM, or of the PATH.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
helm=${HELM:-helm}
if ! command -v "$helm" >/dev/null; then
	echo "test.sh: helm is missing; put it on the PATH or set HELM (tests/hack/deps.sh --tests installs it)" >&2
	exit 1
fi
files=() options=()
for argument in "$@"; do
	case "$argument" in
	-*) options+=("$argument") ;;
	*) files+=("$argument") ;;
	esac
done
if [ "${#files[@]}" -eq 0 ]; then
	python3 "$here/wrong_types.py" --helm "$helm" --chart "$here/skep"
	files=("$here"/testdata/*.values.yaml)
fi
exec python3 "$here/compare.py" --helm "$helm" --chart "$here/skep" --keys "$here/testdata/keys.json" "${options[@]}" "${files[@]}"
