#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks the chart: lint, and the manifest for those without Helm. With --write: writes the manifest.
set -euo pipefail
cd "$(dirname "$0")/.."
helm=${HELM:-helm}
if ! command -v "$helm" >/dev/null; then
	echo "check.sh: helm is missing; put it on the PATH or set HELM (tests/hack/deps.sh --tests installs it)" >&2
	exit 1
fi
manifest() {
	printf '# Rendered from the chart with manifest.values.yaml by deploy/helm/check.sh --write; do not edit.\n'
	"$helm" template cilium helm/skep --namespace kube-system --values manifest.values.yaml --kube-version 1.35.0 | sed "/^ *$/d"
}
if [ "${1:-}" = --write ]; then
	manifest >manifest.yaml
	exit
fi
"$helm" lint --quiet --values manifest.values.yaml helm/skep
fresh=$(mktemp)
trap 'rm -f "$fresh"' EXIT
manifest >"$fresh"
diff -u manifest.yaml "$fresh" || {
	echo "check.sh: deploy/manifest.yaml is out of date; run deploy/helm/check.sh --write" >&2
	exit 1
}
