#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks what a build of the whole workspace hides: that each crate builds by itself with each of its features, that
# crates without BPF programs build where there is no clang, and that no crate sees what it should not depend on.
set -euo pipefail
cd "$(dirname "$0")/../.."

# Crates that load BPF programs, or contain a program that does: these alone need clang and libbpf.
loads=(skep-bpf-programs skep-socketlb skep-datapath-loader skep-conntrack skep-agent skep-e2e skep-faults lb-benchmark run-packets)

# package: dependencies that must not appear below it. Development dependencies do not count. (skep has axum by its
# client of etcd.)
guards="
skep: skep-bpf-programs libbpf-sys libbpf-rs kube skep-listen
run-scripts: skep-bpf-programs libbpf-sys libbpf-rs
skep-agent: skep-loadbalancer-suites skep-clustermesh-suites skep-k8s-apiserver libtest-mimic
skep-hive: kube axum serde_json
skep-listen: skep-hive skep-hive-script axum hyper rustls
skep-hive-script: skep-listen skep-shell rustyline hyper
skep-shell: skep-hive-script skep-listen hyper rustls
skep-statedb: kube
skep-k8s-types: skep-k8s-client skep-hive skep-statedb kube tokio
skep-k8s-client: skep-hive skep-statedb kube
skep-k8s-reflectors: skep-node skep-bpf-sys kube
skep-k8s-crds: skep-statedb kube axum
skep-agent: schemars cel
skep-operator: skep-bpf-sys skep-bpf-maps skep-node skep-k8s-apiserver
skep-clustermesh-apiserver: skep-bpf-sys skep-bpf-maps skep-node skep-k8s-apiserver
skep-operator-leader: skep-statedb kube axum
skep-operator-api: kube skep-bpf-sys
skep-operator-ces: kube axum skep-bpf-sys skep-node
skep-operator-gc: kube axum skep-bpf-sys skep-node
skep-identity-labels: skep-hive skep-statedb skep-k8s-types kube tokio
skep-identity-cache: kube etcd-client axum skep-bpf-sys skep-node
skep-operator-identity: kube axum skep-k8s-apiserver skep-bpf-sys skep-node etcd-client
skep-operator-kvstore: kube etcd-client tonic skep-kvstore-etcd skep-k8s-apiserver skep-bpf-sys skep-node
skep-logging: kube axum
skep-operator-ipam: skep-bpf-sys skep-bpf-maps skep-statedb kube axum
skep-datapath-config: skep-bpf-sys skep-bpf-maps skep-k8s-types skep-k8s-client axum
skep-monitor: skep-bpf-programs kube axum
skep-datapath-loader: kube axum skep-loadbalancer-sources
skep-conntrack: kube axum
skep-datapath-rings: skep-hive skep-statedb skep-bpf-programs
skep-limiter: skep-statedb kube axum etcd-client
skep-nat-stats: kube axum skep-bpf-programs
skep-ip-masq-agent: kube axum skep-bpf-programs
skep-endpoint-hooks: skep-hive skep-statedb skep-bpf-programs
skep-endpoint: kube skep-bpf-programs skep-datapath-loader
skep-monitor-events: skep-hive skep-bpf-programs tokio aya
skep-kvstore: etcd-client tonic axum kube
skep-kvstore-etcd: kube
skep-kvstore-store: skep-kvstore-etcd etcd-client tonic axum kube
skep-clustermesh: kube skep-loadbalancer-sources skep-bpf-maps
skep-clustermesh-cli: kube skep-loadbalancer-model skep-bpf-maps
skep-kvstoremesh: kube skep-loadbalancer-model skep-bpf-maps
skep-clustermesh-export: kube etcd-client axum skep-loadbalancer-model skep-bpf-maps
skep-clustermesh-types: skep-kvstore skep-statedb tokio etcd-client tonic kube axum
skep-operator-mesh: skep-loadbalancer-model skep-k8s-apiserver skep-bpf-sys kube
skep-mcsapi-coredns: skep-clustermesh skep-statedb kube axum
skep-identity: skep-hive skep-statedb skep-kvstore skep-k8s-types skep-bpf-sys tokio
skep-endpoint-watcher: kube axum skep-k8s-crds etcd-client
skep-ipcache: skep-k8s-types skep-k8s-client skep-node kube axum etcd-client
skep-node-manager: kube axum etcd-client skep-kvstore
skep-operator-nodeipam: skep-loadbalancer-model skep-k8s-apiserver skep-bpf-sys axum kube
skep-operator-secrets: skep-loadbalancer-model skep-k8s-apiserver skep-bpf-sys axum kube
skep-dynamic-config: skep-k8s-crds skep-k8s-apiserver axum kube
skep-operator-lbipam: skep-loadbalancer-model skep-k8s-apiserver skep-bpf-sys axum kube
skep-loadbalancer-model: skep-k8s-types skep-k8s-client kube serde_norway notify axum skep-bpf-sys skep-bpf-maps
skep-loadbalancer-sources: skep-bpf-maps skep-loadbalancer-reconciler
skep-loadbalancer-reconciler: axum notify skep-loadbalancer-sources kube
"

failed=0
below() { # package: names of all packages that it links or builds with
	cargo tree --quiet --package "$1" --edges normal,build --prefix none --format '{p}' | cut -d' ' -f1 | sort -u
}
while IFS=: read -r package banned; do
	[ -n "$package" ] || continue
	found=$(below "$package" | grep -xF "$(printf '%s\n' $banned)" || true)
	if [ -n "$found" ]; then
		echo "crates.sh: $package must not depend on" $found >&2
		cargo tree --quiet --package "$package" --edges normal,build --invert "$(head -n1 <<<"$found")" >&2 || true
		failed=1
	fi
done <<<"$guards"
for package in $(cargo metadata --no-deps --format-version 1 | grep -o '"path+file[^"]*' | sed 's/.*[#/]\([^@]*\)@.*/\1/' | sort -u); do
	case " ${loads[*]} " in *" $package "*) continue ;; esac
	if below "$package" | grep -qxF skep-bpf-programs; then
		echo "crates.sh: $package depends on skep-bpf-programs, so it does not build without clang" >&2
		failed=1
	fi
done
# One crate speaks to the Kubernetes API; all others see its trait.
kube=$(git ls-files '*/Cargo.toml' | grep -vx cells/k8s/client/Cargo.toml | xargs grep -lE '^kube(-[a-z]+)?\b' || true)
if [ -n "$kube" ]; then
	echo "crates.sh: only cells/k8s/client may depend on kube, not" $kube >&2
	failed=1
fi
[ "$failed" -eq 0 ] || exit 1

excluded=()
included=()
for package in "${loads[@]}"; do
	excluded+=(--exclude "$package")
	included+=(--package "$package")
done
# A compiler that does not exist stands in for a machine without clang.
CLANG=/nonexistent/clang cargo hack check --quiet --workspace --each-feature --no-dev-deps "${excluded[@]}"
cargo hack check --quiet --each-feature --no-dev-deps "${included[@]}"
