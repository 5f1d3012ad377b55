#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the crates of the workspace may depend on, and which of them a change affects.

workspace.py guards            checks the order of domains and the bans; prints the order
workspace.py promised          packages that docs/embedding.md promises
workspace.py affected [BASE]   packages that the changes since BASE (origin/main, or main) affect
"""

import json
import os
import re
import subprocess
import sys

# A domain depends on itself and on domains of earlier lines; never on another one of its own line.
ORDER = [
    ["base/net"],
    ["hive", "bpf"],
    ["base"],
    ["k8s", "kvstore"],
    ["node/local"],
    ["datapath"],
    ["identity"],
    ["node", "loadbalancer"],
    ["policy"],
    ["endpoint"],
    ["clustermesh"],
    ["operator"],
    ["binaries"],
    ["tests"],
]

# Library: the only crates that declare it.
ONLY = {
    "kube": ["skep-k8s-client", "skep-cluster"],
    "kube-client": ["skep-k8s-client", "skep-cluster"],
    "kube-core": ["skep-k8s-client", "skep-cluster"],
    "etcd-client": ["skep-kvstore-etcd", "skep-clustermesh-apiserver"],
    "libbpf-rs": ["skep-bpf-programs", "run-packets"],
    "libbpf-sys": ["skep-bpf-programs"],
}

# Package: what must not be linked into it, at any depth.
LINKS_NO = {
    "skep-init": ["tokio", "hyper", "libbpf-sys", "skep-hive"],
    "skep-cni": ["tokio", "hyper", "libbpf-sys", "skep-hive"],
    "skep": ["skep-bpf-programs", "libbpf-rs", "libbpf-sys", "kube", "skep-listen"],
    "run-scripts": ["skep-bpf-programs", "libbpf-rs", "libbpf-sys"],
    "skep-agent": [
        "skep-loadbalancer-suites",
        "skep-clustermesh-suites",
        "skep-k8s-memory",
        "libtest-mimic",
        "schemars",
        "cel",
    ],
    "skep-operator": ["skep-bpf-sys", "skep-bpf-maps", "skep-k8s-memory"],
    "skep-clustermesh-apiserver": ["skep-bpf-sys", "skep-bpf-maps", "skep-k8s-memory"],
    "skep-hive": ["kube", "axum", "serde_json"],
    "skep-k8s-memory": ["http", "hyper", "rustls", "ring", "tokio-tungstenite", "cel", "chrono"],
    "skep-statedb": ["kube"],
}

# The programs need clang and libbpf; only these crates may.
NEEDS_CLANG = {"datapath", "binaries", "tests"}

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))


def output(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


class Workspace:
    def __init__(self):
        metadata = json.loads(output("cargo", "metadata", "--no-deps", "--format-version", "1", "--locked"))
        self.packages = {package["name"]: package for package in metadata["packages"]}
        self.folders = {
            name: os.path.relpath(os.path.dirname(package["manifest_path"]), ROOT)
            for name, package in self.packages.items()
        }

    def domain(self, name):
        parts = self.folders[name].split("/")
        if parts[0] != "cells":
            return parts[0]
        below = "/".join(parts[1:3])
        return below if below in ("base/net", "node/local") else parts[1]

    def dependencies(self, name, dev):
        kinds = (None, "build", "dev") if dev else (None, "build")
        return {d["name"] for d in self.packages[name]["dependencies"] if d["kind"] in kinds}


def guards(workspace):
    rank = {domain: line for line, domains in enumerate(ORDER) for domain in domains}
    found = []
    for name in sorted(workspace.packages):
        domain = workspace.domain(name)
        if domain not in rank:
            found.append(f"{name}: domain {domain} has no place in the order of domains")
            continue
        for dependency in sorted(workspace.dependencies(name, dev=False)):
            owners = ONLY.get(dependency)
            if owners and name not in owners:
                found.append(f"{name} must not depend on {dependency}; only {', '.join(owners)} may")
            if dependency not in workspace.packages:
                continue
            other = workspace.domain(dependency)
            if other != domain and rank.get(other, -1) >= rank[domain]:
                found.append(f"{name} must not depend on {dependency}: {other} does not come before {domain}")
            if dependency == "skep-bpf-programs" and domain not in NEEDS_CLANG:
                found.append(f"{name} must not depend on {dependency}: it would need clang")
    for name, banned in LINKS_NO.items():
        tree = output("cargo", "tree", "--quiet", "--locked", "--package", name, "--edges", "normal,build",
                      "--prefix", "none", "--format", "{p}")
        linked = {line.split(" ")[0] for line in tree.splitlines()}
        found += [f"{name} must not link {b}: cargo tree -p {name} -i {b}" for b in banned if b in linked]
    for line in found:
        print(f"guards: {line}", file=sys.stderr)
    if found:
        sys.exit(1)
    print(" → ".join(", ".join(domains) for domains in ORDER))


def promised(workspace):
    with open(os.path.join(ROOT, "docs/embedding.md"), encoding="utf-8") as page:
        text = page.read()
    named = set(re.findall(r"\bskep-[a-z0-9-]+", text))
    crates = {re.sub("_", "-", c) for c in re.findall(r"\bskep_[a-z0-9_]+", text)}
    return sorted((named | crates) & set(workspace.packages))


def affected(workspace, base):
    changed = output("git", "diff", "--name-only", base).split() + output(
        "git", "ls-files", "--others", "--exclude-standard").split()
    direct = set()
    for path in changed:
        owner = max(
            (n for n, folder in workspace.folders.items() if path.startswith(folder + "/")),
            key=lambda n: len(workspace.folders[n]),
            default=None,
        )
        if owner:
            direct.add(owner)
        elif path.startswith("bpf/"):
            direct.add("skep-bpf-programs")
        elif path in ("Cargo.toml", "Cargo.lock"):
            return set(workspace.packages)
    reached, queue = set(), list(direct)
    while queue:
        name = queue.pop()
        if name not in reached:
            reached.add(name)
            queue += [n for n in workspace.packages if name in workspace.dependencies(n, dev=True)]
    # End-to-end tests and faults run the programs, which they do not link.
    if "skep-agent" in reached:
        reached |= {"skep-e2e", "skep-faults"}
    return reached


def main():
    workspace = Workspace()
    match sys.argv[1:]:
        case ["guards"]:
            guards(workspace)
        case ["promised"]:
            print("\n".join(promised(workspace)))
        case ["affected", *base]:
            default = "origin/main" if output("git", "branch", "-r", "--list", "origin/main") else "main"
            print("\n".join(sorted(affected(workspace, base[0] if base else default))))
        case _:
            sys.exit(__doc__)


main()
