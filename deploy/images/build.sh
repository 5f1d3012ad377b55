#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the images of the programs, offline: build.sh [--programs FOLDER] [--out FOLDER] [IMAGE...]
#
# FOLDER has the programs (target/dist, made by `make dist`). Each IMAGE (agent, operator, clustermesh-apiserver, certgen, connectivity; all by default) becomes
# OUT/IMAGE.tar, an OCI archive for `ctr image import`, OUT/IMAGE.digest, and OUT/IMAGE.cdx.json, its bill of materials (CycloneDX).
# The same programs give the same digest: files have the time of the last commit, or SOURCE_DATE_EPOCH.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."
target=${CARGO_TARGET_DIR:-target}
programs=$target/dist out=$target/images images=()
while [ $# -gt 0 ]; do
	case "$1" in
	--programs) programs=$2 && shift ;;
	--out) out=$2 && shift ;;
	*) images+=("$1") ;;
	esac
	shift
done
[ "${#images[@]}" -gt 0 ] || images=(agent operator clustermesh-apiserver certgen connectivity)
version=$(sed -n 's/^appVersion: //p' deploy/helm/skep/Chart.yaml)
date=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
if ! command -v buildah >/dev/null; then
	echo "build.sh: buildah is missing; install the package buildah" >&2
	exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Storage of its own: images of this machine are left alone.
storage=(--root "$work/storage" --runroot "$work/run" --storage-driver vfs)

# Copies a program and the libraries that it loads.
program() { # root, file, path in the image
	if [ ! -x "$2" ]; then
		echo "build.sh: $2 is missing; make dist builds it" >&2
		exit 1
	fi
	install -D -m 755 "$2" "$1$3"
	# A statically linked program has none: `ldd` and `grep` fail.
	{ ldd "$2" 2>/dev/null | grep -o '/[^ ]*' || true; } | while read -r library; do
		[ -e "$1$library" ] || install -D -m 755 "$(readlink -f "$library")" "$1$library"
	done
}

for image in "${images[@]}"; do
	root=$work/$image
	mkdir -p "$root/etc" "$root/usr/bin" "$root/tmp" "$root/var/run/cilium" "$root/var/lib/cilium" "$out"
	printf 'root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n' >"$root/etc/passwd"
	printf 'root:x:0:\nnonroot:x:65532:\n' >"$root/etc/group"
	printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
	crates=() files=()
	case "$image" in
	agent)
		for name in skep-agent skep skep-init; do
			program "$root" "$programs/$name" "/usr/bin/$name"
		done
		program "$root" "$programs/skep-cni" /opt/cni/bin/cilium-cni
		# For scripts of Cilium's users.
		ln -s skep "$root/usr/bin/cilium-dbg"
		ln -s skep "$root/usr/bin/cilium"
		crates=(skep-agent skep skep-init skep-cni)
		if [ -x /usr/lib/cni/loopback ]; then
			program "$root" /usr/lib/cni/loopback /cni/loopback
			files=(/usr/lib/cni/loopback)
		fi
		;;
	operator)
		program "$root" "$programs/skep-operator" /usr/bin/skep-operator
		crates=(skep-operator)
		;;
	clustermesh-apiserver)
		program "$root" "$programs/skep-clustermesh-apiserver" /usr/bin/skep-clustermesh-apiserver
		program "$root" "$(command -v etcd)" /usr/bin/etcd
		cat >"$root/var/lib/cilium/etcd-config.yaml" <<-EOF
			endpoints:
			- https://127.0.0.1:2379
			trusted-ca-file: /var/lib/cilium/etcd-secrets/ca.crt
			key-file: /var/lib/cilium/etcd-secrets/tls.key
			cert-file: /var/lib/cilium/etcd-secrets/tls.crt
		EOF
		crates=(skep-clustermesh-apiserver)
		files=("$(command -v etcd)")
		;;
	certgen)
		program "$root" "$programs/skep-certgen" /usr/bin/skep-certgen
		# The command of the chart's jobs, as Cilium's image has it.
		ln -s skep-certgen "$root/usr/bin/cilium-certgen"
		crates=(skep-certgen)
		;;
	connectivity)
		program "$root" "$programs/skep-probe" /usr/bin/skep-probe
		crates=(skep-cluster)
		;;
	*)
		echo "build.sh: there is no image $image" >&2
		exit 1
		;;
	esac
	find "$root" -type d -exec chmod 755 {} +
	# Any user: sockets, histories, the settings that the init container writes.
	chmod 1777 "$root/tmp"
	chmod 777 "$root/var/run/cilium"
	mapfile -t libraries < <(find "$root/lib" "$root/lib64" "$root/usr/lib" -type f 2>/dev/null | sed "s|^$root||" | sort)
	python3 "$here/sbom.py" --name "$image" --version "$version" --time "$date" "${crates[@]}" -- "${files[@]}" "${libraries[@]}" >"$out/$image.cdx.json"
	install -D -m 644 "$out/$image.cdx.json" "$root/usr/share/sbom/$image.cdx.json"

	buildah "${storage[@]}" build --quiet --timestamp "$date" --file "$here/$image.Containerfile" --tag "localhost/skep/$image:$version" "$root" >/dev/null
	rm -f "$out/$image.tar"
	buildah "${storage[@]}" push --quiet --digestfile "$out/$image.digest" "localhost/skep/$image:$version" "oci-archive:$out/$image.tar:localhost/skep/$image:$version"
	printf '%-22s %5d KiB  %s\n' "$image" $(($(du -sk --apparent-size "$root" | cut -f1))) "$(cat "$out/$image.digest")"
done
