#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests the images: test.sh [--programs FOLDER]. The same programs give the same digest, each program starts in its image, the
# archive of the agent's image, with compressed layers as in a registry, has less than 40 MB (of programs of `make dist`), and the
# bill of materials names what is in it.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
programs=${CARGO_TARGET_DIR:-$here/../../target}/dist limit=40000
if [ "${1:-}" = --programs ]; then
	programs=$2 limit=200000
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
fail() {
	echo "FAIL $*"
	failed=1
}

# Times, and the order of files in the folder, must not show.
cp -r "$programs" "$work/again"
find "$work/again" -exec touch {} +
"$here/build.sh" --programs "$programs" --out "$work/first"
"$here/build.sh" --programs "$work/again" --out "$work/second" >/dev/null
for image in agent operator clustermesh-apiserver certgen connectivity; do
	cmp -s "$work/first/$image.digest" "$work/second/$image.digest" || fail "$image: another digest from the same programs"
	python3 - "$work/first/$image" <<-'EOF' || fail "$image: layers cannot be unpacked"
		import json, os, sys, tarfile
		archive = tarfile.open(sys.argv[1] + ".tar")
		blob = lambda digest: archive.extractfile("blobs/" + digest.replace(":", "/"))
		manifest = json.load(blob(json.load(archive.extractfile("index.json"))["manifests"][0]["digest"]))
		for layer in manifest["layers"]:
		    tarfile.open(fileobj=blob(layer["digest"]), mode="r:*").extractall(sys.argv[1])
		files = [os.path.join(base, f) for base, _, names in os.walk(sys.argv[1]) for f in names]
		size = sum(os.lstat(f).st_size for f in files)
		open(sys.argv[1] + ".size", "w").write(str(size // 1000))
		bill = json.load(open(os.path.join(sys.argv[1], "usr/share/sbom", os.path.basename(sys.argv[1]) + ".cdx.json")))
		assert any(c["name"].startswith("skep") for c in bill["components"]), "no crates"
	EOF
	for path in usr/bin/skep-agent usr/bin/skep usr/bin/skep-init opt/cni/bin/cilium-cni usr/bin/skep-operator usr/bin/skep-clustermesh-apiserver usr/bin/etcd usr/bin/skep-certgen; do
		[ ! -x "$work/first/$image/$path" ] || chroot "$work/first/$image" "/$path" --version >/dev/null 2>&1 </dev/null || fail "$image: /$path does not start"
	done
done
for image in agent operator clustermesh-apiserver certgen connectivity; do
	printf '%-22s %6d kB compressed, %6d kB of files\n' "$image" $(($(stat -c %s "$work/first/$image.tar") / 1000)) "$(cat "$work/first/$image.size")"
done
size=$(($(stat -c %s "$work/first/agent.tar") / 1000))
[ "$size" -lt "$limit" ] || fail "agent: $size kB, the limit is $limit"
[ "$failed" -eq 0 ] && echo "images: all passed"
exit "$failed"
