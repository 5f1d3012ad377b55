#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Measures everything, or with BENCH=PREFIX what has such a name; results as tables and as JSON under target/bench. Needs root
# (BPF maps, namespaces).
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "$(id -u)" -ne 0 ]; then
	echo "bench: making BPF maps and network namespaces needs root" >&2
	exit 1
fi
echo "== Building (release)"
cargo build --release --bin lb-benchmark
# Programs are measured as they are shipped: their pages count as their memory.
cargo build --profile dist -p skep-agent -p skep-operator -p skep-clustermesh-apiserver -p skep -p skep-cni --bins
selected() { [[ $1 == "${BENCH:-}"* ]]; }
! selected statedb || cargo bench --no-run -p skep-statedb
target="${CARGO_TARGET_DIR:-target}"
out="$target/bench"
mkdir -p "$out"
out=$(cd "$out" && pwd)
[ -n "${BENCH:-}" ] || rm -f "$out"/*.json
failed=0
measure() { # name, arguments…
	local name=$1
	shift
	selected "$name" || return 0
	echo "== $name"
	timeout 180 "$target/release/lb-benchmark" "$@" --json "$out/$name.json" || {
		echo "bench: $name failed" >&2
		failed=1
	}
}
measure services-50000x1 --services 50000 --backends-per-service 1 --maps bpf --iterations 3
measure services-50000x5 --services 50000 --backends-per-service 5 --maps bpf --iterations 2
measure services-10000x20 --services 10000 --backends-per-service 20 --maps bpf --iterations 2
measure flip flip
measure maglev maglev
measure hive hive
measure sockets sockets --rounds 30
measure packets packets
measure endpoints endpoints
for case in plugin labels names fleet; do
	measure "pods-$case" pods "$case" --programs "$target/dist"
done
measure policies-maps policies maps
measure policies-packets policies packets
measure traffic traffic
measure flows flows --skep "$target/dist/skep"
measure agent agent --agent "$target/dist/skep-agent"
measure mesh mesh --agent "$target/dist/skep-agent"
measure mesh-history mesh --agent "$target/dist/skep-agent" --history 4 --seconds 5
# What TLS and waiting for the disk cost.
measure mesh-tls-disk mesh --agent "$target/dist/skep-agent" --tls --disk "$out" --seconds 10
measure allocation allocation
for case in operator exporter kvstoremesh clusters; do
	measure "programs-$case" programs "$case" --programs "$target/dist"
done
measure programs-kvstoremesh-tls-disk programs kvstoremesh --programs "$target/dist" --tls --disk "$out"
if selected statedb; then
	echo "== statedb"
	timeout 180 cargo bench -q -p skep-statedb -- --json "$out/statedb.json" || failed=1
fi
echo
echo "== Summary"
results=()
for file in "$out"/{services-*,flip,maglev,hive,sockets,packets,endpoints,pods-*,policies-*,traffic,flows,agent,mesh,mesh-*,allocation,programs-*}.json; do
	[ ! -f "$file" ] || results+=("$file")
done
"$target/release/lb-benchmark" summary "${results[@]}" --json "$out/summary.json"
echo "JSON: $out/*.json"
exit $failed
