#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the programs and runs the demo in labs of its own.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "$(id -u)" -ne 0 ]; then
	echo "demo: loading BPF programs and making network namespaces needs root" >&2
	exit 1
fi
echo "== Building (the first time takes a few minutes)"
cargo build --bin skep-agent --bin skep-clustermesh-apiserver --bin skep --bin skep-cni --bin skep-lab
target="${CARGO_TARGET_DIR:-target}/debug"
exec "$target/skep-lab" --name demo demo "$@"
