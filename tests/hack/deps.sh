#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the system packages that building needs, and only those that are missing; with --tests also what tests need,
# with --bench what measurements need, with --checks the cargo commands of `make check` (built from crates.io).
set -euo pipefail

# program or file -> Debian/Ubuntu package
missing=()
need_program() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }
need_header() {
	for dir in /usr/include "/usr/include/$(uname -m)-linux-gnu" /usr/local/include; do
		[ -e "$dir/$1" ] && return 0
	done
	missing+=("$2")
}
# Any clang of version 14 or later compiles the BPF programs.
if ! command -v clang >/dev/null 2>&1 && ! ls /usr/bin/clang-[0-9]* >/dev/null 2>&1; then
	missing+=(clang-19)
fi
if ! command -v clang-format >/dev/null 2>&1 && ! ls /usr/bin/clang-format-[0-9]* >/dev/null 2>&1; then
	missing+=(clang-format-19)
fi
need_program make make
need_program cc gcc
need_program pkg-config pkg-config
# etcd-client compiles the protocol when it is built.
need_program protoc protobuf-compiler
need_header google/protobuf/descriptor.proto libprotobuf-dev
# Meshed clusters of a lab share their state through it.
need_program etcd etcd-server
if [ "${1:-}" = --tests ]; then
	need_program bpftool bpftool
	# The keys of a lab.
	need_program etcdctl etcd-client
	need_program ip iproute2
	# Traffic between places of a lab; checksums in software, so that captured packets have them.
	need_program iperf3 iperf3
	need_program ethtool ethtool
fi
if [ "${1:-}" = --bench ]; then
	need_program ip iproute2
	# What services are compared with.
	need_program nft nftables
fi
need_header libelf.h libelf-dev
need_header zlib.h zlib1g-dev
need_header bpf/bpf_helpers.h libbpf-dev
need_header linux/bpf.h linux-libc-dev

if [ "${#missing[@]}" -gt 0 ]; then
	if ! command -v apt-get >/dev/null 2>&1; then
		echo "deps: this system has no apt-get; install the equivalents of: ${missing[*]}" >&2
		exit 1
	fi
	sudo=""
	if [ "$(id -u)" -ne 0 ]; then
		sudo=sudo
	fi
	echo "deps: installing ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	$sudo apt-get update -q
	# Older releases carry other clang versions; fall back to the default one.
	if ! $sudo apt-get install -y -q --no-install-recommends "${missing[@]}"; then
		$sudo apt-get install -y -q --no-install-recommends "${missing[@]/%-19/}"
	fi
fi

if ! command -v cargo >/dev/null 2>&1; then
	echo "deps: cargo is missing; install Rust 1.90 or later (https://rustup.rs)" >&2
	exit 1
fi

if [ "${1:-}" = --checks ]; then
	for command in cargo-deny@0.20.2 cargo-hack@0.6.46; do
		if ! command -v "${command%@*}" >/dev/null 2>&1; then
			echo "deps: installing $command"
			# A target folder of its own: its dependencies are built with other features than ours.
			build=$(mktemp -d)
			CARGO_TARGET_DIR="$build" cargo install --quiet --locked --no-default-features "$command"
			rm -rf "$build"
		fi
	done
fi
