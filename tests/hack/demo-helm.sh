#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the chart with helm in a lab, changes its values during traffic, and uninstalls it: demo-helm.sh [NODES]
set -euo pipefail
cd "$(dirname "$0")/../.."
nodes=${1:-3} lab=demo-helm
if [ "$(id -u)" -ne 0 ]; then
	echo "demo-helm: making network namespaces and containers needs root" >&2
	exit 1
fi
if [ -z "${SKEP_BUILT:-}" ]; then
	echo "== Building (the first time takes a few minutes)"
	cargo build --bin skep-agent --bin skep-operator --bin skep-clustermesh-apiserver --bin skep --bin skep-cni --bin skep-init --bin skep-lab
fi
target="${CARGO_TARGET_DIR:-target}/debug"
PATH=$(realpath "$target"):$PATH
work=$(mktemp -d)
trap 'skep-lab --name $lab down; rm -rf "$work"' EXIT

say() { printf '\n== %s\n' "$*"; }
# Waits until a command succeeds.
wait_for() { # what, command…
	local what=$1
	for _ in $(seq 600); do
		if "${@:2}" >/dev/null 2>&1; then return; fi
		sleep 0.2
	done
	echo "demo-helm: not within 120 s: $what" >&2
	kubectl get pods --all-namespaces -o wide >&2
	exit 1
}
ready() { # kind, name: all of its pods are of its present template, and ready
	kubectl --namespace kube-system rollout status "$1/$2" --timeout=1s
}

say "A cluster of $nodes nodes with containerd; helm install"
skep-lab --name $lab up --nodes "$nodes" --install
skep-lab --name $lab kubeconfig c1 >"$work/kubeconfig"
export KUBECONFIG=$work/kubeconfig
wait_for "the operator is ready" ready deployment cilium-operator
kubectl get nodes,pods --all-namespaces -o wide
helm --namespace kube-system list

say "Pods and a service"
pod() { # name, label, node, arguments
	cat <<-EOF
		apiVersion: v1
		kind: Pod
		metadata: {name: $1, namespace: default, labels: {app: $2}}
		spec:
		  nodeName: $3
		  terminationGracePeriodSeconds: 1
		  containers:
		    - name: main
		      image: localhost/skep-lab/tools:1
		      command: [/usr/bin/skep-lab, echo, --name, $1$4]
	EOF
}
{
	pod client client c1-n1 ""
	echo ---
	pod shop-0 shop c1-n1 ", --tcp, '8080'"
	echo ---
	pod shop-1 shop "c1-n$nodes" ", --tcp, '8080'"
	cat <<-EOF
		---
		apiVersion: v1
		kind: Service
		metadata: {name: shop, namespace: default}
		spec: {selector: {app: shop}, ports: [{port: 80, targetPort: 8080}]}
	EOF
} | kubectl apply -f -
for name in client shop-0 shop-1; do
	wait_for "pod $name is ready" kubectl wait --for=condition=Ready "pod/$name" --timeout=1s
done
kubectl get pods,ciliumendpoints -o wide
service=$(kubectl get service shop -o jsonpath='{.spec.clusterIP}')
call() { kubectl exec client -- skep-lab call "$service:80" "$@"; }
wait_for "the service answers" call --count 10
call --count 20

say "Upgrade with changed values, while the client calls the service"
before=$(kubectl --namespace kube-system get pods -l k8s-app=cilium -o jsonpath='{.items[*].metadata.name}')
touch "$work/goes-on"
while [ -e "$work/goes-on" ]; do call --seconds 2 --pause 5; done >"$work/calls" 2>&1 &
calls=$!
# With cni.uninstall, agents that end afterwards take the CNI configuration away, for the last step.
helm --namespace kube-system upgrade skep deploy/helm/skep --reuse-values \
	--set rollOutCiliumPods=true --set debug.enabled=true --set cni.uninstall=true >/dev/null
wait_for "all agents have the new values" ready daemonset cilium
wait_for "the operator is ready" ready deployment cilium-operator
rm "$work/goes-on"
wait $calls || true
after=$(kubectl --namespace kube-system get pods -l k8s-app=cilium -o jsonpath='{.items[*].metadata.name}')
echo "agents before: $before"
echo "agents after:  $after"
awk '/answered/ { answered += $1; failed += $3 } END { printf "calls: %d answered, %d failed\n", answered, failed; exit !(answered > 0 && failed == 0) }' "$work/calls"

say "Uninstall"
kubectl delete pod/client pod/shop-0 pod/shop-1 service/shop
helm --namespace kube-system uninstall skep
gone() { ! kubectl get pods --all-namespaces --no-headers 2>/dev/null | grep -q .; }
wait_for "all pods are gone" gone
left=$(kubectl get daemonsets,deployments,jobs,configmaps,secrets,serviceaccounts,services,roles,rolebindings,clusterroles,clusterrolebindings \
	--all-namespaces -l app.kubernetes.io/part-of=cilium -o name
	kubectl --namespace kube-system get daemonsets,deployments,secrets -o name)
for number in $(seq "$nodes"); do
	left+=$(skep-lab --name $lab exec "c1-n$number" -- sh -c 'ls /run/skep-lab/'$lab'/containerd/c1-n'"$number"'/root/etc/cni/net.d')
done
if [ -n "$left" ]; then
	echo "demo-helm: left: $left" >&2
	exit 1
fi
echo "nothing is left"
