# SPDX-License-Identifier: Apache-2.0
"""Bill of materials of an image, as CycloneDX JSON: sbom.py --name NAME --version VERSION --time SECONDS CRATE... -- FILE...

Components are the crates that CRATEs are linked from (`cargo tree`, digests of Cargo.lock), and the Debian packages of FILEs.
"""

import argparse
import hashlib
import json
import re
import subprocess
from datetime import datetime, timezone


def crates(roots):
    """Name and version of all crates that are linked."""
    found = set()
    for root in roots:
        command = ["cargo", "tree", "--offline", "--locked", "--package", root, "--edges", "normal", "--prefix", "none", "--format", "{p}"]
        for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
            match = re.match(r"(\S+) v(\S+)", line)
            if match:
                found.add(match.groups())
    return sorted(found)


def digests():
    """Digests of crates of the registry."""
    with open("Cargo.lock", encoding="utf-8") as file:
        blocks = file.read().split("[[package]]")
    pattern = re.compile(r'name = "(.*)"\nversion = "(.*)"\n(?:source = .*\n)?checksum = "(.*)"')
    return {m.group(1, 2): m.group(3) for m in map(pattern.search, blocks) if m}


def packages(files):
    """Debian packages that files are of."""
    found = set()
    for file in files:
        for path in (file, "/usr" + file):
            owner = subprocess.run(["dpkg-query", "--search", path], capture_output=True, text=True, check=False).stdout
            if owner:
                name = owner.split(": ")[0].split(",")[0]
                fields = subprocess.run(["dpkg-query", "--show", "--showformat=${Package} ${Version} ${Architecture}", name],
                                        capture_output=True, text=True, check=True).stdout
                found.add(tuple(fields.split()))
                break
    return sorted(found)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--time", type=int, required=True)
    parser.add_argument("words", nargs="*")
    options, files = parser.parse_known_args()
    roots, known, components = options.words, digests(), []
    if "--" in files:
        files.remove("--")
    for name, version in crates([w for w in roots if not w.startswith("/")]):
        component = {"type": "library", "name": name, "version": version, "purl": f"pkg:cargo/{name}@{version}"}
        if (name, version) in known:
            component["hashes"] = [{"alg": "SHA-256", "content": known[name, version]}]
        components.append(component)
    for name, version, architecture in packages([w for w in [*roots, *files] if w.startswith("/")]):
        components.append({"type": "library", "name": name, "version": version,
                           "purl": f"pkg:deb/debian/{name}@{version}?arch={architecture}"})
    document = {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"timestamp": datetime.fromtimestamp(options.time, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                     "component": {"type": "container", "name": f"skep/{options.name}", "version": options.version}},
        "components": components,
    }
    # The serial number follows of the contents: the same input, the same file.
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    document["serialNumber"] = f"urn:uuid:{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-8{digest[17:20]}-{digest[20:32]}"
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
