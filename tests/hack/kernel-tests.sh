#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the tests in which the kernel has a say on another kernel, in a virtual machine without disk and network.
#
# usage: tests/hack/kernel-tests.sh KERNEL-IMAGE [MODULES-DIR [TEST…]]
#
#   KERNEL-IMAGE  a bzImage, such as /boot/vmlinuz-6.1.0-18-amd64
#   MODULES-DIR   its modules, such as /lib/modules/6.1.0-18-amd64; not needed if bridges, veth, VXLAN, tc filters
#                 and socket diagnosis are built in
#   TEST…         only these of the tests that tests/hack/kernel-tests-init.sh lists
#
# Needs qemu-system-x86_64 and a statically linked busybox, and downloads nothing. Environment:
#
#   ACCEL   kvm or tcg (slow, works everywhere); kvm if /dev/kvm can be used
#   MEMORY  of the machine; 4G
#   TIME    seconds until the machine is switched off; 3600
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() {
	echo "kernel-tests: $*" >&2
	exit 2
}

[ -n "${1:-}" ] || fail "usage: $0 KERNEL-IMAGE [MODULES-DIR [TEST…]]"
kernel=$(realpath "$1")
modules=${2:+$(realpath "$2")}
shift $(($# > 1 ? 2 : 1))
[ -f "$kernel" ] || fail "no kernel image $kernel"
[ -z "$modules" ] || [ -d "$modules/kernel" ] || fail "no modules in $modules"
for program in qemu-system-x86_64 busybox bpftool etcd ethtool ip iperf3 ldd strip; do
	command -v "$program" >/dev/null || fail "$program is not installed"
done
busybox=$(command -v busybox)
! ldd "$busybox" >/dev/null 2>&1 || fail "$busybox is not statically linked (package busybox-static)"
if [ -z "${ACCEL:-}" ]; then
	ACCEL=tcg
	[ ! -w /dev/kvm ] || ACCEL=kvm
fi

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
work=$target/kernel-tests
rm -rf "$work"
mkdir -p "$work"
# The root of the machine, big; the log stays.
root=$work/root
trap 'rm -rf "$root" "$work/initramfs" "$work/collect"' EXIT

echo "== Building"
cargo build --bins -p skep-agent -p skep -p skep-clustermesh-apiserver -p skep-lab -p run-scripts
cargo build -p skep-loadbalancer-reconciler --example frontends -p skep-k8s-apiserver --example kube-apiserver
# Cargo hands every test to the runner, in the directory that the test expects.
cat >"$work/collect" <<-'EOF'
	#!/bin/sh
	echo "$CARGO_PKG_NAME $PWD $1" >>"$KERNEL_TESTS_LIST"
EOF
chmod +x "$work/collect"
host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
env "CARGO_TARGET_${host}_RUNNER=$work/collect" KERNEL_TESTS_LIST="$work/tests" cargo test --quiet \
	-p skep-bpf-sys -p skep-bpf-programs -p skep-datapath-socketlb -p run-packets -p skep-datapath-loader -p skep-datapath-conntrack -p skep-endpoint \
	-p run-scripts -p skep-faults -p skep-lab -p skep-e2e --lib --bins --tests

echo "== Filling the machine"
# Everything is where it is on this machine: tests know paths.
put() { # file…
	local file
	for file in "$@"; do
		mkdir -p "$root${file%/*}"
		cp -L "$file" "$root$file"
	done
}
program() { # executable…, with the libraries it needs and without symbols
	local file library
	for file in "$@"; do
		put "$file"
		strip "$root$file"
		while read -r library; do
			[ -e "$root$library" ] || put "$library"
		done < <(ldd "$file" | grep -o '/[^ ]*')
	done
}
mkdir -p "$root"/{bin,dev,etc,proc,run,sys,tmp,var}
mkdir -p "$root$PWD"
git ls-files -z | xargs -0 tar -c | tar -x -C "$root$PWD"
mapfile -t tests < <(cut -d ' ' -f 3 "$work/tests")
program "${tests[@]}" "$target"/debug/{skep-agent,skep,skep-clustermesh-apiserver,skep-lab,run-scripts,examples/{frontends,kube-apiserver}} \
	"$(command -v bpftool)" "$(command -v etcd)" "$(command -v ethtool)" "$(command -v ip)" "$(command -v iperf3)"
# Tests compare the layouts of maps with the compiled programs.
put "$target"/debug/build/skep-bpf-programs-*/out/*.o
cp "$busybox" "$root/bin/busybox"
cp tests/hack/kernel-tests-init.sh "$root/init"
chmod 755 "$root/init"
{
	echo "repository=$PWD"
	echo "programs=$target/debug"
	echo "wanted='$*'"
} >"$root/etc/kernel-tests"
cp "$work/tests" "$root/etc/kernel-tests-list"
if [ -n "$modules" ]; then
	for module in act_bpf bridge cls_bpf dummy inet_diag ip6_udp_tunnel ipv6 llc sch_ingress stp tcp_diag udp_diag udp_tunnel veth \
		vxlan; do
		find "$modules/kernel" -name "$module.ko*"
	done | while read -r module; do
		to=$root/lib/modules/${modules##*/}/${module#"$modules"/}
		mkdir -p "${to%/*}"
		case $module in
		*.xz) xz -dc "$module" >"${to%.xz}" ;;
		*.zst) zstd -dcq "$module" >"${to%.zst}" ;;
		*.gz) gzip -dc "$module" >"${to%.gz}" ;;
		*) cp "$module" "$to" ;;
		esac
	done
fi
(cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null) >"$work/initramfs"
du -sh "$work/initramfs"

echo "== Booting $kernel ($ACCEL)"
cpu=host
[ "$ACCEL" = kvm ] || cpu=max
# A kernel that panics reboots, and a machine that reboots ends. The other parameters spare an emulated machine: telling the
# time by devices is slow, and the check of the timer fails where the emulator waits for a processor.
timeout "${TIME:-3600}" qemu-system-x86_64 -accel "$ACCEL" -cpu "$cpu" -smp 2 -m "${MEMORY:-4G}" -nic none \
	-display none -monitor none -serial stdio -no-reboot -kernel "$kernel" -initrd "$work/initramfs" \
	-append "console=ttyS0 quiet panic=-1 rootfstype=ramfs tsc=reliable mitigations=off no_timer_check" </dev/null | sed -u 's,\r$,,' | tee "$work/log" || fail "the machine was switched off"
result=$(sed -n 's/^kernel-tests: //p' "$work/log" | tail -n 1)
[ -n "$result" ] || fail "the machine did not get to the end; $work/log"
echo "log: $work/log"
[[ $result == *" 0 failed" ]]
