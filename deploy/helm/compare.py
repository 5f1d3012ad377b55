# SPDX-License-Identifier: Apache-2.0
"""Renders sets of values and compares the facts with recorded ones of Cilium's chart.

    compare.py --helm HELM --chart CHART --keys KEYS [--until STATE,...] [--program=PROGRAM]... [--verbose] FILE...

FILE is NAME.values.yaml or NAME.json; both are in the same folder. Prints PASS, FAIL with the first difference, or DIFF with the
values that this chart refuses on purpose (rendered again with skep.unsupported=warn, and equal then); then a count. Exits with 1
if a set fails.

Compared are names, ports, probes, placement, what users set, privileges (no more than recorded), rights (likewise), Services,
Secrets, certificates, other objects, and the keys of cilium-config whose feature is implemented: those with state `now` in KEYS,
and with a state of --until. Images, commands and init containers are free. Each PROGRAM (skep-agent, skep-operator) must accept the
settings.
"""

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile

import yaml

import facts

# Objects of features that are not part of this chart.
OPTIONAL = re.compile(
    r"spire|ztunnel|hubble-ui|cilium-envoy|standalone-dns-proxy|dashboard|gateway\.cilium\.io|cilium-ingress|cilium-gateway|GatewayClass|"
    r"IngressClass|hubble-(dns|l7|network)-|tlsinterception|config-agent|-ingress-secrets|-gateway-secrets|cilium-secrets|"
    r"envoy-config-secrets|envoy-secrets|cilium-azure")
# What users set: must arrive as it is.
POD = ("host_network", "priority_class", "dns_policy", "grace", "node_selector", "tolerations", "affinity", "topology_spread",
       "host_aliases", "image_pull_secrets", "service_account")
KINDS = {"PodDisruptionBudget", "ServiceMonitor", "Certificate", "ResourceQuota", "ConfigMap", "Namespace", "Job", "CronJob",
         "ServiceAccount"}
# Names of the peer and of this chart.
CONTAINERS = {"cilium-agent": "skep-agent", "cilium-operator": "skep-operator", "hubble-relay": "skep-relay"}
UNSUPPORTED = re.compile(r"^ *- (.*) \(skep\.unsupported\)$", re.M)


def parsed(text):
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


def config(want, have, keys, states):
    a, b = want.get("config"), have.get("config")
    if (a is None) != (b is None):
        yield f"cilium-config {'is not' if b is None else 'is'} rendered"
        return
    for key in sorted(set(a or {}) | set(b or {})):
        x, y = (a or {}).get(key, ""), (b or {}).get(key, "")
        if keys.get(key, {}).get("state", "now") in states and x != y and parsed(x) != parsed(y):
            yield f"cilium-config {key}: {x!r}, here {y!r}"
    if want.get("config_yaml") != have.get("config_yaml"):
        yield f"cilium-config etcd-config: {want.get('config_yaml')}, here {have.get('config_yaml')}"
    for field in ("config_not_text", "config_twice"):
        if have.get(field):
            yield f"cilium-config: {field} {have[field]}"


def privileges(container):
    security = container.get("security") or {}
    return {"privileged"} if security.get("privileged") else set((security.get("capabilities") or {}).get("add") or [])


def container(role, want, have, own):
    where = f"{role} {want['name']}"
    ports = {p.get("name"): (p.get("port"), p.get("host_port")) for p in have.get("ports") or []}
    for port in want.get("ports") or []:
        expected = (port.get("port"), port.get("host_port"))
        if ports.get(port["name"]) != expected:
            yield f"{where}: port {port['name']} {expected}, here {ports.get(port['name'])}"
    for kind in ("startup", "liveness", "readiness"):
        a, b = want.get(kind), have.get(kind)
        if bool(a) != bool(b):
            yield f"{where}: {kind} probe {'missing' if a else 'added'}"
        elif a:
            for field in ("period", "failures", "timeout", "delay"):
                if a.get(field) != b.get(field):
                    yield f"{where}: {kind} probe {field} {a.get(field)}, here {b.get(field)}"
            for field in ("path", "port", "host") if "httpGet" in a and "httpGet" in b else ():
                if a["httpGet"].get(field) != b["httpGet"].get(field):
                    yield f"{where}: {kind} probe {field} {a['httpGet'].get(field)}, here {b['httpGet'].get(field)}"
    if (want.get("resources") or {}) != (have.get("resources") or {}):
        yield f"{where}: resources {want.get('resources')}, here {have.get('resources')}"
    variables = {e[0]: e[1] for e in have.get("env") or []}
    for name, source in want.get("env") or []:
        required = name in own or name.startswith("KUBERNETES_SERVICE_") or name in ("K8S_NODE_NAME", "CILIUM_K8S_NAMESPACE")
        if required and variables.get(name) != source:
            yield f"{where}: variable {name} {source}, here {variables.get(name)}"
    certs = dict(want.get("env") or []).get("CILIUM_CERTGEN_CONFIG")
    if certs and certs != variables.get("CILIUM_CERTGEN_CONFIG"):
        yield f"{where}: certificates {json.dumps(certs)}, here {json.dumps(variables.get('CILIUM_CERTGEN_CONFIG'))}"
    mounts = {m["path"] for m in have.get("mounts") or []}
    for mount in want.get("mounts") or []:
        if mount["name"] in own and mount["path"] not in mounts:
            yield f"{where}: mount {mount['path']} of the values is missing"
    for argument in want.get("args") or []:
        if argument in own and argument not in (have.get("args") or []):
            yield f"{where}: argument {argument} of the values is missing"
    if want.get("image") in own and want["image"] != have.get("image"):
        yield f"{where}: image {want['image']}, here {have.get('image')}"
    more = privileges(have) - privileges(want)
    if more and "privileged" not in privileges(want):
        yield f"{where}: more privileges: {sorted(more)}"


def writable(pod):
    """Folders of the host that a container can write to."""
    paths = {v["name"]: v["path"] for v in pod.get("volumes") or [] if v.get("kind") == "hostPath"}
    every = (pod.get("init") or []) + pod["containers"]
    return {paths[m["name"]] for c in every for m in c.get("mounts") or [] if m["name"] in paths and not m.get("ro")}


def accepted(strategy):
    """A strategy as the API server accepts it: the recorded chart keeps fields of RollingUpdate with other types."""
    if strategy and strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return {k: v for k, v in strategy.items() if k != "rollingUpdate"}
    return strategy


def workloads(want, have, own):
    for name, a in (want.get("workloads") or {}).items():
        a = a | ({"strategy": accepted(a["strategy"])} if "strategy" in a else {})
        b = (have.get("workloads") or {}).get(name) or (have.get("workloads") or {}).get(name.replace("cilium", "skep"))
        if b is None:
            if not OPTIONAL.search(name):
                yield f"{name} is missing"
            continue
        for field in ("replicas", "strategy", "min_ready", "schedule", "concurrency", "ttl", "history", "selector"):
            if a.get(field) != b.get(field):
                yield f"{name}: {field} {a.get(field)}, here {b.get(field)}"
        p, q = a["pod"], b["pod"]
        for field in POD:
            if p.get(field) != q.get(field):
                yield f"{name}: {field} {p.get(field)}, here {q.get(field)}"
        for field in ("labels", "annotations"):
            for key, value in (p.get(field) or {}).items():
                if (field == "labels" or key in own) and (q.get(field) or {}).get(key) != value:
                    yield f"{name}: {field[:-1]} {key}={value} is missing"
        theirs = {c["name"]: c for c in q["containers"]}
        for c in p["containers"]:
            here = theirs.get(c["name"]) or theirs.get(CONTAINERS.get(c["name"]))
            if here:
                yield from container(name, c, here, own)
            elif "envoy" not in c["name"]:
                yield f"{name}: container {c['name']} is missing"
        inits = {c["name"] for c in q.get("init") or []}
        for c in p.get("init") or []:
            if c["name"] in own and c["name"] not in inits:
                yield f"{name}: init container {c['name']} of the values is missing"
        for c in q.get("init") or []:
            same = next((x for x in p.get("init") or [] if x["name"] == c["name"]), None)
            if same and privileges(c) - privileges(same) and "privileged" not in privileges(same):
                yield f"{name} {c['name']}: more privileges: {sorted(privileges(c) - privileges(same))}"
        volumes = {(v.get("kind"), v["name"]) for v in q.get("volumes") or []}
        for v in p.get("volumes") or []:
            if v["name"] in own and (v.get("kind"), v["name"]) not in volumes:
                yield f"{name}: volume {v['name']} of the values is missing"
        hosts = [{v["path"] for v in x.get("volumes") or [] if v.get("kind") == "hostPath"} for x in (p, q)]
        if hosts[1] - hosts[0]:
            yield f"{name}: more folders of the host: {sorted(hosts[1] - hosts[0])}"
        if writable(q) - writable(p):
            yield f"{name}: more writable folders of the host: {sorted(writable(q) - writable(p))}"


def services(want, have):
    for name, a in (want.get("services") or {}).items():
        b = (have.get("services") or {}).get(name)
        if b is None:
            if not OPTIONAL.search(name):
                yield f"Service {name} is missing"
            continue
        for field in a:
            if a[field] != b.get(field):
                yield f"Service {name}: {field} {a[field]}, here {b.get(field)}"


def rights(found, subject):
    """Rights of a ServiceAccount: group, resource, verb, name, namespace of the binding."""
    for binding, b in (found.get("bindings") or {}).items():
        if subject in b["subjects"]:
            kind, name = b["role"].split("/")
            key = next((k for k in (binding.replace("Binding", "", 1), f"{kind}/{name}") if k in found["roles"]), None)
            for rule in found["roles"].get(key) or []:
                for group in rule.get("apiGroups", []):
                    for resource in rule.get("resources", []):
                        for verb in rule.get("verbs", []):
                            for name in rule.get("resourceNames") or [None]:
                                yield group, resource, verb, name


def roles(want, have):
    subjects = {s for b in (have.get("bindings") or {}).values() for s in b["subjects"]}
    for subject in sorted(subjects):
        allowed = set(rights(want, subject))
        for right in sorted(set(rights(have, subject)) - allowed, key=str):
            group, resource, verb, name = right
            if (group, resource, verb, None) not in allowed:
                yield f"{subject}: may {verb} {group}/{resource}{f' {name}' if name else ''}"
    for name, b in (want.get("bindings") or {}).items():
        same = (have.get("bindings") or {}).get(name)
        if same and same["subjects"] != b["subjects"]:
            yield f"{name}: {b['subjects']}, here {same['subjects']}"


def secrets(want, have):
    for name, a in (want.get("secrets") or {}).items():
        b = (have.get("secrets") or {}).get(name)
        if b is None:
            if not OPTIONAL.search(name):
                yield f"Secret {name} is missing"
            continue
        for field in ("type", "keys", "etcd_configs"):
            if a.get(field) != b.get(field):
                yield f"Secret {name}: {field} {a.get(field)}, here {b.get(field)}"
        x, y = a.get("certificate") or {}, b.get("certificate") or {}
        for field in ("cn", "days", "ca"):
            if x.get(field) != y.get(field):
                yield f"Secret {name}: certificate {field} {x.get(field)}, here {y.get(field)}"
        for field in ("dns", "ips"):
            if set(x.get(field) or []) - set(y.get(field) or []):
                yield f"Secret {name}: certificate {field} {x.get(field)}, here {y.get(field)}"


def honoured(want, have):
    """Whether a Certificate only has more fields of its private key: those of the values."""
    key, more = want["spec"].get("privateKey") or {}, have["spec"].get("privateKey") or {}
    return want["spec"] == have["spec"] | {"privateKey": key} and key.items() <= more.items()


def objects(want, have):
    there = {(o["kind"], o["name"], o.get("ns")): o for o in have["objects"]}
    for o in want["objects"]:
        here = there.get((o["kind"], o["name"], o.get("ns")))
        if OPTIONAL.search(o["name"]):
            continue
        if here is None:
            if o["kind"] in KINDS:
                yield f"{o['kind']} {o['name']} is missing in {o.get('ns')}"
            continue
        for field in ("labels", "annotations"):
            lost = {k: v for k, v in (o.get(field) or {}).items() if (here.get(field) or {}).get(k) != v}
            if lost:
                yield f"{o['kind']} {o['name']}: {field} {lost} missing"
        if o.get("automount_token") != here.get("automount_token"):
            yield f"{o['kind']} {o['name']}: automount {o.get('automount_token')}, here {here.get('automount_token')}"
    for name, a in (want.get("other") or {}).items():
        b = (have.get("other") or {}).get(name)
        if name.startswith("PodDisruptionBudget/") and "minAvailable" in a["spec"]:
            # The API server accepts one of them; the recorded chart writes both.
            a = {"spec": {k: v for k, v in a["spec"].items() if k != "maxUnavailable"}}
        if b is None and not OPTIONAL.search(name):
            yield f"{name} is missing"
        elif b is not None and a != b:
            if name.startswith("Certificate/") and honoured(a, b):
                yield f"~{name}: honours privateKey of the values, which the original drops"
            else:
                yield f"{name}: {json.dumps(a)}, here {json.dumps(b)}"
    for name, a in (want.get("config_maps") or {}).items():
        b = (have.get("config_maps") or {}).get(name)
        if b is not None and a.get("data") != b.get("data"):
            yield f"ConfigMap {name}: {json.dumps(a.get('data'))}, here {json.dumps(b.get('data'))}"


def render(options, want, values, more=()):
    helm = want["helm"]
    command = [options.helm, "template", helm["release"], options.chart, "-n", helm["namespace"], "-f", values, *more]
    command += ["--kube-version", helm["kube_version"]]
    for version in helm.get("api_versions") or []:
        command += ["-a", version]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ, GOMAXPROCS="1"))


def differences(want, values, rendered, keys, states):
    with open(values, encoding="utf-8") as file:
        text = file.read()
    strings = set(facts.strings(yaml.safe_load(text) or {}))
    own = strings | set(re.findall(r"[\w./-]+(?=:)", text))
    have = facts.Facts(strings).all(facts.documents(rendered))
    for part in (config(want, have, keys, states), workloads(want, have, own), services(want, have), roles(want, have),
                 secrets(want, have), objects(want, have)):
        yield from part


def faults(program, rendered):
    """What a program does not accept of cilium-config."""
    for document in facts.documents(rendered):
        if document["kind"] == "ConfigMap" and document["metadata"]["name"] == "cilium-config":
            with tempfile.TemporaryDirectory() as folder:
                for key, value in document["data"].items():
                    with open(os.path.join(folder, key), "w", encoding="utf-8") as file:
                        file.write(value)
                # Keys of users, and those of the other programs, are not this test's.
                command = [program, "hive", "check", f"--config-dir={folder}", "--config-unknown=warn"]
                run = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin", "K8S_NODE_NAME": "node"})
                if run.returncode:
                    yield f"{os.path.basename(program)}: {' '.join(run.stdout.split())[:300]}"


def verdict(found):
    failed = [line for line in found if not line.startswith("~")]
    if failed:
        return "FAIL", failed
    return ("DIFF", [line[1:] for line in found]) if found else ("PASS", [])


def check(options, path, keys, states):
    """PASS, FAIL or DIFF of one set, and why. Differences that begin with `~` are on purpose."""
    base = re.sub(r"(\.values)?\.(yaml|json)$", "", path)
    with open(f"{base}.json", encoding="utf-8") as file:
        want = json.load(file)
    values = f"{base}.values.yaml"
    name = want.get("id") or os.path.basename(base)
    run = render(options, want, values)
    said = " ".join(run.stderr.split())
    must_refuse = want["exit"] and not want["refused"].get("defect")
    if must_refuse:
        if not run.returncode:
            return name, "FAIL", [f"is not refused: {want['refused'].get('message')}"]
        # Sets of our own say what the message must name.
        lost = [word for word in want["refused"].get("names", []) if word not in said]
        return name, *verdict([f"the message does not name {word}: {said}" for word in lost])
    if not must_refuse and name.startswith("x") and not want["exit"]:
        # The recorded chart accepts what makes no sense: to refuse it is right, too.
        return name, "PASS", []
    if not run.returncode:
        found = [] if want["exit"] else list(differences(want, values, run.stdout, keys, states))
        for program in options.program:
            found += faults(program, run.stdout)
        return name, *verdict(found)
    refused = UNSUPPORTED.findall(run.stderr)
    if not refused:
        return name, "FAIL", [f"refused: {said}"]
    again = render(options, want, values, ["--set", "skep.unsupported=warn"])
    if again.returncode:
        return name, "FAIL", [f"refused: {' '.join(again.stderr.split())}"]
    found = list(differences(want, values, again.stdout, keys, states))
    kind, why = verdict(found)
    return (name, kind, why) if kind == "FAIL" else (name, "DIFF", ["refused: " + "; ".join(refused), *why])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--helm", required=True)
    parser.add_argument("--chart", required=True)
    parser.add_argument("--keys", required=True)
    parser.add_argument("--until", default="")
    parser.add_argument("--program", action="append", default=[])
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    with open(options.keys, encoding="utf-8") as file:
        keys = json.load(file)
    states = {"now"} | set(filter(None, options.until.split(",")))
    bases = {re.sub(r"(\.values)?\.(yaml|json)$", "", f) for f in options.files}
    # `*.json` of a folder has other files, too.
    bases = sorted(b for b in bases if os.path.exists(f"{b}.values.yaml") or f"{b}.values.yaml" in options.files)
    count = {"PASS": 0, "FAIL": 0, "DIFF": 0}
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 2) as pool:
        for name, verdict, why in pool.map(lambda base: check(options, base + ".json", keys, states), bases):
            count[verdict] += 1
            more = f" ({len(why) - 1} more)" if len(why) > 1 and not options.verbose else ""
            print(f"{verdict} {name}{': ' + why[0][:400] if why else ''}{more}")
            if options.verbose:
                for line in why[1:]:
                    print(f"     {line}")
    print(f"{count['PASS']} passed, {count['FAIL']} failed, {count['DIFF']} different")
    sys.exit(1 if count["FAIL"] else 0)


if __name__ == "__main__":
    main()
