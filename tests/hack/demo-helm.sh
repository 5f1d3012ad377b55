#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs two clusters with helm in a lab of containers, meshes them with kvstoremesh and certificates of jobs, tests the connectivity,
# changes values during traffic, uninstalls: demo-helm.sh [NODES]
# NODES is the number of nodes of each cluster. PROGRAMS is a folder of built programs, such as target/dist; CONNECTIVITY are the tests
# of `skep connectivity test`, all with the value `.`.
set -euo pipefail
cd "$(dirname "$0")/../.."
nodes=${1:-2} lab=demo-helm
if [ "$(id -u)" -ne 0 ]; then
	echo "demo-helm: making network namespaces and containers needs root" >&2
	exit 1
fi
if [ -z "${PROGRAMS:-}" ]; then
	echo "== Building (the first time takes a few minutes)"
	cargo build --bin skep-agent --bin skep-operator --bin skep-clustermesh-apiserver --bin skep --bin skep-cluster --bin skep-probe \
		--bin skep-cni --bin skep-init --bin skep-lab --bin skep-certgen
fi
PATH=$(realpath "${PROGRAMS:-${CARGO_TARGET_DIR:-target}/debug}"):$PATH
work=$(mktemp -d)
trap 'skep-lab --name $lab down; rm -rf "$work"' EXIT

say() { printf '\n== %s\n' "$*"; }
# Waits until a command succeeds.
wait_for() { # what, command…
	local what=$1 end=$((SECONDS + 180))
	while [ $SECONDS -lt $end ]; do
		if "${@:2}" >/dev/null 2>&1; then return; fi
		sleep 0.2
	done
	echo "demo-helm: not within 180 s: $what" >&2
	for cluster in c1 c2; do on $cluster get pods --all-namespaces -o wide >&2; done
	exit 1
}
on() { kubectl --context "$lab-$1" "${@:2}"; }
release() { helm --kube-context "$lab-$1" --namespace kube-system "${@:2}"; }
# All pods of a workload are of its present template, and ready.
ready() { # cluster, workload
	on "$1" --namespace kube-system rollout status "$2" --timeout=1s
}

# Memory of the programs of all pods, without pages of files, in MiB: the largest of each program.
memory() {
	for status in /proc/[0-9]*/status; do
		grep -qs "skep-lab/$lab/" "${status%status}cgroup" || continue
		awk '$1 == "Name:" { name = $2 } $1 == "RssAnon:" { kib = $2 } END { if (name ~ /^(skep-|etcd$)/ && name != "skep-lab") print name, kib }' \
			"$status" 2>/dev/null || true
	done | awk '$2 > most[$1] { most[$1] = $2 } { count[$1]++ } END { for (name in most) printf "%-26s %d processes, at most %.1f MiB\n", name, count[name], most[name] / 1024 }' | sort
}

say "Two clusters of $nodes nodes with containerd; helm install"
skep-lab --name $lab up --clusters 2 --nodes "$nodes" --install
for cluster in c1 c2; do
	skep-lab --name $lab kubeconfig $cluster >"$work/$cluster"
done
export KUBECONFIG=$work/c1:$work/c2
for cluster in c1 c2; do
	wait_for "the operator of $cluster is ready" ready $cluster deployment/cilium-operator
done

say "Cluster mesh"
# Jobs make the certificates, and an authority for each cluster.
for cluster in c1 c2; do
	skep clustermesh enable --context $lab-$cluster --service-type NodePort
	wait_for "the mesh's API server of $cluster is ready" ready $cluster deployment/clustermesh-apiserver
	on $cluster get pods --all-namespaces -o wide
done
skep clustermesh connect --context $lab-c1 --destination-context $lab-c2 --allow-mismatching-ca
for cluster in c1 c2; do
	skep clustermesh status --context $lab-$cluster --wait
done

say "Memory of the pods"
memory

say "Connectivity"
# The world is a machine behind the router of the lab.
skep-lab --name $lab exec beyond -- ip address add 10.250.0.3/24 dev eth0
skep-lab --name $lab exec beyond -- skep-probe serve 80 >/dev/null 2>&1 &
skep connectivity test --context $lab-c1 --external-ip 10.250.0.2 --external-other-ip 10.250.0.3 --external-cidr 10.250.0.0/24 \
	--external-target 10.250.0.2 --test "${CONNECTIVITY:-^no-policies,^pod-to,^client-ingress,^echo-ingress,^host-entity,fqdns,^health,^no-unexpected}"
skep connectivity test --context $lab-c1 --cleanup

say "Pods of one service in both clusters"
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
		---
	EOF
}
for cluster in c1 c2; do
	{
		pod client client $cluster-n1 ""
		pod shop-$cluster shop "$cluster-n$nodes" ", --tcp, '8080'"
		cat <<-EOF
			apiVersion: v1
			kind: Service
			metadata: {name: shop, namespace: default, annotations: {service.cilium.io/global: "true"}}
			spec: {selector: {app: shop}, ports: [{port: 80, targetPort: 8080}]}
		EOF
	} | on $cluster apply -f -
	for name in client shop-$cluster; do
		wait_for "pod $name of $cluster is ready" on $cluster wait --for=condition=Ready "pod/$name" --timeout=1s
	done
done
on c1 get pods,ciliumendpoints -o wide
service=$(on c1 get service shop -o jsonpath='{.spec.clusterIP}')
call() { on c1 exec client -- skep-lab call "$service:80" "$@"; }
both() { call --count 20 >"$work/answers" && grep -q shop-c1 "$work/answers" && grep -q shop-c2 "$work/answers"; }
wait_for "pods of both clusters answer" both
cat "$work/answers"

say "Upgrade with changed values, while the client calls the service"
agents() { on c1 --namespace kube-system get pods -l k8s-app=cilium -o jsonpath='{.items[*].metadata.name}'; }
echo "agents before: $(agents)"
touch "$work/goes-on"
while [ -e "$work/goes-on" ]; do call --seconds 2 --pause 5; done >"$work/calls" 2>&1 &
calls=$!
for cluster in c1 c2; do
	release $cluster upgrade cilium deploy/helm/skep --reuse-values --set rollOutCiliumPods=true --set debug.enabled=true >/dev/null 2>&1
	wait_for "all agents of $cluster have the new values" ready $cluster daemonset/cilium
	wait_for "the operator of $cluster is ready" ready $cluster deployment/cilium-operator
done
rm "$work/goes-on"
wait $calls || true
echo "agents after:  $(agents)"
awk '/answered/ { answered += $1; failed += $3 }
	END { printf "calls: %d answered, %d failed\n", answered, failed; exit !(answered > 0 && failed == 0) }' "$work/calls"

say "Uninstall"
left=""
for cluster in c1 c2; do
	on $cluster delete pod/client pod/shop-$cluster service/shop
	# Pods of the chart that have a network of their own go while there are agents to disconnect them.
	skep clustermesh disable --context $lab-$cluster
	no_mesh() { ! on $cluster --namespace kube-system get pods -l k8s-app=clustermesh-apiserver --no-headers 2>/dev/null | grep -q .; }
	wait_for "the mesh's API server of $cluster is gone" no_mesh
	release $cluster uninstall cilium
	gone() { ! on $cluster get pods --all-namespaces --no-headers 2>/dev/null | grep -q .; }
	wait_for "all pods of $cluster are gone" gone
	# Certificates of jobs are deleted with the ServiceAccount of the job.
	no_secrets() { [ -z "$(on $cluster --namespace kube-system get secrets -o name)" ]; }
	wait_for "all Secrets of $cluster are gone" no_secrets
	kinds=daemonsets,deployments,jobs,cronjobs,configmaps,secrets,serviceaccounts,services,roles,rolebindings,clusterroles,clusterrolebindings
	left+=$(on $cluster get $kinds --all-namespaces -l app.kubernetes.io/part-of=cilium -o name
		on $cluster --namespace kube-system get daemonsets,deployments,secrets -o name)
done
if [ -n "$left" ]; then
	printf 'demo-helm: left:\n%s\n' "$left" >&2
	exit 1
fi
echo "nothing is left in the API servers"
# As after Cilium: pods of a node keep their network until there is another agent.
echo "on node c1-n1:"
find /run/skep-lab/$lab/containerd/c1-n1/rootfs/etc/cni /run/skep-lab/$lab/containerd/c1-n1/rootfs/opt/cni -type f
skep-lab --name $lab exec c1-n1 -- skep cleanup --force --bpf-state | tail -n 1
skep-lab --name $lab exec c1-n1 -- find /sys/fs/bpf -type f
