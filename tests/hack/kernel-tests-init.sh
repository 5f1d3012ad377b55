#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
#
# First process of the machine that tests/hack/kernel-tests.sh starts: makes it look like an ordinary host, runs the tests and
# ends it. The host has cgroup version 2 alone, and no BPF file system mounted.
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s /bin
export PATH=/bin HOME=/root RUST_BACKTRACE=0
mkdir -p /root /sbin
ln -s /bin/modprobe /sbin/modprobe
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ln -s /run /var/run
mount --make-rshared /
depmod 2>/dev/null
ip link set lo up
echo root:x:0:0::/root:/bin/sh >/etc/passwd
# repository, programs, wanted
# shellcheck disable=SC1091
. /etc/kernel-tests
# shellcheck disable=SC2154
# What tests run comes before the applets of busybox, which know less.
export PATH="/usr/sbin:/usr/bin:$PATH:$programs" CARGO_TARGET_DIR="${programs%/debug}"
# The machine may be emulated.
export SKEP_TEST_SLOWNESS=4
uname -a

passed=0
failed=0
run() { # name, command…
	name=$1
	shift
	case " ${wanted:-$name} " in
	*" $name "*) ;;
	*) return ;;
	esac
	echo "== $name"
	if "$@"; then
		passed=$((passed + 1))
		echo "== $name: passed"
	else
		failed=$((failed + 1))
		echo "== $name: FAILED"
	fi
}

# All test programs of a package, one test at a time. As everywhere, only a second failure in a row is a failure: the
# machine may be slow, and waiting has limits.
package() {
	good=0
	while read -r of directory program; do
		[ "$of" = "$1" ] || continue
		echo "-- ${program##*/}"
		cd "$directory" || return 1
		export CARGO_MANIFEST_DIR="$directory"
		{
			"$program" --test-threads=1
			echo $? >/run/tests.status
		} 2>&1 | tee /run/tests.log
		[ "$(cat /run/tests.status)" != 0 ] || continue
		again=$(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' /run/tests.log)
		# shellcheck disable=SC2086
		[ -n "$again" ] && "$program" --test-threads=1 --exact $again || good=1
	done </etc/kernel-tests-list
	return $good
}

scripts() { # hive
	# shellcheck disable=SC2154
	set -- run-scripts --hive "$1" --maps bpf --time 60s "$repository/cells/loadbalancer/suites/testdata/$1"/*.txtar
	"$@" >/run/scripts.log 2>&1
	status=$?
	cat /run/scripts.log
	[ $status != 0 ] || return 0
	again=$(sed -n 's/^FAIL //p' /run/scripts.log)
	# shellcheck disable=SC2086
	[ -n "$again" ] && run-scripts --hive "$3" --maps bpf --time 60s $again
}

wait_for() { # seconds, command…
	seconds=$1
	shift
	while ! "$@"; do
		[ "$seconds" -gt 0 ] || return 1
		seconds=$((seconds - 1))
		sleep 1
	done
}

is_well() {
	[ "$(skep status --brief 2>/dev/null)" = OK ]
}

is_served() {
	skep-lab call 10.96.0.1:80 && skep-lab call --transport udp 10.96.0.1:80
}

start_agent() {
	skep-agent --enable-k8s=false --lb-state-file=/run/state.json --k8s-node-name=here \
		--kube-proxy-replacement=true >>/run/agent.log 2>&1 &
	agent=$!
	wait_for 60 is_well
}

# The agent on the bare host: everything where it is by default.
host() {
	ip address add 10.244.0.1/32 dev lo
	skep-lab echo --name backend --tcp 8080 --udp 8080 &
	cat >/run/state.json <<-EOF
		{"services": [{"metadata": {"name": "web", "namespace": "default"}, "spec": {
		  "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"],
		  "ports": [{"name": "tcp", "port": 80, "protocol": "TCP", "targetPort": 8080},
		            {"name": "udp", "port": 80, "protocol": "UDP", "targetPort": 8080}]}}],
		 "endpoints": [{"metadata": {"name": "web-1", "namespace": "default",
		    "labels": {"kubernetes.io/service-name": "web"}}, "addressType": "IPv4",
		  "endpoints": [{"addresses": ["10.244.0.1"], "conditions": {"ready": true}}],
		  "ports": [{"name": "tcp", "port": 8080, "protocol": "TCP"},
		            {"name": "udp", "port": 8080, "protocol": "UDP"}]}]}
	EOF
	start_agent && wait_for 30 is_served && skep status && skep bpf lb list && skep service list &&
		grep -q ' /sys/fs/bpf bpf ' /proc/mounts &&
		kill -9 "$agent" && is_served && start_agent && is_served && skep status --verbose
	good=$?
	kill "$agent"
	wait "$agent"
	[ $good = 0 ] || cat /run/agent.log
	grep -E 'WARN|ERROR' /run/agent.log
	return $good
}

demo() {
	skep-lab --name demo demo && return
	tail -n 20 /run/skep-lab/demo*/logs/*
	return 1
}

run host host
run bpf-sys package skep-bpf-sys
run bpf package skep-bpf-programs
run socketlb package skep-datapath-socketlb
run packets package run-packets
run loader package skep-datapath-loader
run conntrack package skep-datapath-conntrack
run endpoint package skep-endpoint
run scripts-loadbalancer scripts loadbalancer
run scripts-redirectpolicy scripts redirectpolicy
run scripts-healthserver scripts healthserver
run scripts package run-scripts
run faults package skep-faults
run lab package skep-lab
run demo demo
run e2e package skep-e2e
echo "kernel-tests: $passed passed, $failed failed"
reboot -f
