#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Shows the faults of docs/install.md that need a cluster, in a lab of three nodes with containerd: a second installation, an image that is
# missing, an upgrade that is killed, rollback, a read-only folder of plugins, uninstall while pods run, with and without cni.uninstall.
# PROGRAMS is a folder of built programs, such as target/dist; without it they are built.
set -euo pipefail
cd "$(dirname "$0")/../.."
lab=install-faults
if [ "$(id -u)" -ne 0 ]; then
	echo "install-faults: making network namespaces and containers needs root" >&2
	exit 1
fi
if [ -z "${PROGRAMS:-}" ]; then
	cargo build --bin skep-agent --bin skep-operator --bin skep-clustermesh-apiserver --bin skep --bin skep-cluster --bin skep-probe \
		--bin skep-cni --bin skep-init --bin skep-lab --bin skep-certgen
fi
PATH=$(realpath "${PROGRAMS:-${CARGO_TARGET_DIR:-target}/debug}"):$PATH
work=$(mktemp -d)
trap 'skep-lab --name $lab down; rm -rf "$work"' EXIT

say() { printf '\n== %s\n' "$*"; }
on() { kubectl "$@"; }
system() { kubectl --namespace kube-system "$@"; }
release() { helm --namespace kube-system "$@"; }
fail() {
	echo "install-faults: $*" >&2
	on get pods --all-namespaces -o wide >&2 || true
	exit 1
}
wait_for() { # what, command…
	local end=$((SECONDS + 240))
	while [ $SECONDS -lt $end ]; do
		if "${@:2}" >/dev/null 2>&1; then return; fi
		sleep 0.5
	done
	fail "not within 240 s: $1"
}
# A command fails and says something.
refused() { # text, command…
	if "${@:2}" >"$work/said" 2>&1; then fail "not refused: ${*:2}"; fi
	grep -F -- "$1" "$work/said" | head -n 1 || { cat "$work/said" >&2 && fail "does not say: $1"; }
}
agents_ready() { system rollout status daemonset/cilium --timeout=1s; }
ready() { agents_ready && system rollout status deployment/cilium-operator --timeout=1s; }
upgrade() { release upgrade cilium deploy/helm/skep --reuse-values "$@"; }
pod() { # name, node
	cat <<-EOF
		apiVersion: v1
		kind: Pod
		metadata: {name: $1, namespace: default}
		spec:
		  nodeName: $2
		  terminationGracePeriodSeconds: 1
		  containers:
		    - name: main
		      image: localhost/skep-lab/tools:1
		      command: [/usr/bin/skep-lab, echo, --name, $1, --tcp, "8080"]
	EOF
}
is_ready() { on wait --for=condition=Ready "pod/$1" --timeout=1s; }
call() { on exec client -- skep-lab call "$server:8080" "$@"; }
works() { call --count 10 | grep "^10 answered, 0 failed"; }

skep-lab --name $lab up --nodes 3 --install
skep-lab --name $lab kubeconfig c1 >"$work/c1"
export KUBECONFIG=$work/c1
wait_for "the release is ready" ready
pod client c1-n1 | on apply -f -
pod server c1-n2 | on apply -f -
wait_for "client" is_ready client
wait_for "server" is_ready server
server=$(on get pod server -o jsonpath='{.status.podIP}')
wait_for "the pods talk" works

say "A second installation"
refused "cannot reuse a name that is still in use" release install cilium deploy/helm/skep
refused "cannot be imported into the current release" release install second deploy/helm/skep
works

say "An image is missing"
upgrade --set image.tag=missing --set image.useDigest=false >/dev/null 2>&1
images() { system get pods -l k8s-app=cilium -o jsonpath='{range .items[*]}{.status.initContainerStatuses[*].state.waiting.reason}{"\n"}{end}'; }
has_no_image() { [ "$(images | grep -c Image)" = 2 ]; }
wait_for "two agents have no image" has_no_image
system get pods -l k8s-app=cilium -o wide
skep status >"$work/status" 2>&1 || true
grep "pods of DaemonSet cilium are not ready" "$work/status" || fail "skep status finds nothing"
grep "is not running" "$work/status"
[ "$(system get pods -l k8s-app=cilium --no-headers | grep -c 1/1)" = 1 ] || fail "the third node has no agent"
works
say "Rollback"
release rollback cilium
wait_for "agents of the earlier revision are ready" ready
works

say "An upgrade is killed"
upgrade --set debug.enabled=true --set rollOutCiliumPods=true --wait >/dev/null 2>&1 &
upgrade=$!
pending() { [ -n "$(release list --pending --short)" ]; }
wait_for "the upgrade goes on" pending
kill -KILL $upgrade
wait $upgrade || true
refused "another operation (install/upgrade/rollback) is in progress" upgrade --set debug.enabled=false
works
release rollback cilium
wait_for "agents are ready" ready
upgrade --set debug.enabled=false --set rollOutCiliumPods=true >/dev/null 2>&1
wait_for "the next upgrade works" ready
works

say "The folder of plugins is read-only"
plugins=/run/skep-lab/$lab/containerd/c1-n1/rootfs/opt/cni/bin
skep-lab --name $lab exec c1-n1 -- sh -ec "mount --bind $plugins $plugins; mount -o remount,ro,bind $plugins"
agent() { system get pods -l k8s-app=cilium --field-selector spec.nodeName=c1-n1 -o "$@"; }
system delete pod "$(agent jsonpath='{.items[0].metadata.name}')"
stays() { agent json >"$work/agent" && grep -q CrashLoopBackOff "$work/agent"; }
wait_for "the agent stays at an init container" stays
agent json | python3 -c '
import json, sys
for pod in json.load(sys.stdin)["items"]:
    for one in pod["status"]["initContainerStatuses"]:
        if not one.get("ready"): print("not ready:", one["name"])' | head -n 1
works
skep-lab --name $lab exec c1-n1 -- umount $plugins
wait_for "the agent starts once it can be written" ready

say "Uninstalled while pods run"
release get values cilium -o json >"$work/values.json"
release uninstall cilium
no_agents() { [ -z "$(system get pods -o name)" ]; }
wait_for "agents are gone" no_agents
works
gone() { [ -z "$(on get pods -o name --field-selector "metadata.name=$1")" ]; }
on delete pod server --wait=false
begun=$SECONDS
wait_for "a pod ends without an agent" gone server
echo "pod server ended after $((SECONDS - begun)) s"

say "Installed again, then uninstalled with cni.uninstall=true"
release install cilium deploy/helm/skep --values "$work/values.json" >/dev/null 2>&1
wait_for "the release is ready" ready
pod server c1-n2 | on apply -f -
wait_for "server" is_ready server
server=$(on get pod server -o jsonpath='{.status.podIP}')
wait_for "the pod of before talks" works
upgrade --set cni.uninstall=true --set rollOutCiliumPods=true >/dev/null 2>&1
wait_for "agents have the value" ready
release uninstall cilium
wait_for "agents are gone" no_agents
works
on delete pod server --wait=false
sleep 5
on get pods -o wide
if gone server; then fail "pod server ended without a CNI configuration"; fi
for node in c1-n1 c1-n2 c1-n3; do
	echo '{"cniVersion":"1.0.0","name":"cilium","plugins":[{"type":"cilium-cni"}]}' \
		>/run/skep-lab/$lab/containerd/$node/rootfs/etc/cni/net.d/05-cilium.conflist
done
wait_for "the pod ends with a configuration" gone server
on delete pod client --wait=false
wait_for "the other pod ends" gone client
echo "all faults are as docs/install.md says"
