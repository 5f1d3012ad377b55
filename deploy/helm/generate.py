# SPDX-License-Identifier: Apache-2.0
"""Makes what follows of the values of the chart: generate.py [--check] [--docs FOLDER]

- `skep/values.schema.json`: types and words of all values;
- `skep/files/known.json`: all values with their defaults, and those without effect: for the notes of an installation;
- `helm-values.md` in FOLDER (docs/reference), the table of values.

Sources: comments in `skep/values.yaml`, the keys that values set (`skep/files/config.yaml`), and pages of FOLDER: what the programs
do with each key (cilium-settings.md), and the help of their settings. With --check: fails if a file is out of date; the page is
not compared if FOLDER is given.
"""

import argparse
import json
import os
import re
import sys

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
CHART = os.path.join(HERE, "skep")
DOCS = os.path.join(HERE, "..", "..", "docs", "reference")
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object", type(None): "null"}
# Descriptions of values that many components have: by the last part of the path.
COMMON = {
    "image.override": "The whole reference of the image, in place of the other fields.",
    "image.repository": "Repository of the image.",
    "image.tag": "Tag of the image; by default the version of the chart.",
    "image.digest": "Digest of the image.",
    "image.useDigest": "Use the digest.",
    "image.pullPolicy": "When the image is pulled.",
    "image.suffix": "Suffix of the repository.",
    "podDisruptionBudget.enabled": "Create a PodDisruptionBudget.",
    "podDisruptionBudget.minAvailable": "Pods that must stay available; takes precedence over `maxUnavailable`.",
    "podDisruptionBudget.maxUnavailable": "Pods that may be unavailable.",
    "podDisruptionBudget.unhealthyPodEvictionPolicy": "Eviction of pods that are not ready.",
    "serviceMonitor.enabled": "Create a ServiceMonitor.",
    "serviceMonitor.labels": "Labels of the ServiceMonitor.",
    "serviceMonitor.annotations": "Annotations of the ServiceMonitor.",
    "serviceMonitor.namespace": "Namespace of the ServiceMonitor.",
    "serviceMonitor.jobLabel": "Label whose value is the job.",
    "serviceMonitor.trustCRDsExist": "Do not check that the definition of ServiceMonitors is there.",
    "serviceMonitor.tlsConfig": "TLS of scrapes.",
    "interval": "Interval of scrapes.",
    "scrapeTimeout": "Timeout of scrapes.",
    "relabelings": "Changes of the labels of targets.",
    "metricRelabelings": "Changes of the labels of metrics.",
    "metricsService": "Create a Service for metrics.",
    "create": "Create the object.",
    "automount": "Mount the token of the ServiceAccount.",
    "name": "Name of the object.",
    "annotations": "Annotations of objects.",
    "labels": "Labels of objects.",
    "podAnnotations": "Annotations of pods.",
    "podLabels": "Labels of pods.",
    "podSecurityContext": "Security context of pods.",
    "securityContext": "Security context of containers.",
    "resources": "Requests and limits of containers.",
    "tolerations": "Tolerations of pods.",
    "affinity": "Affinity of pods.",
    "nodeSelector": "Node labels that pods require.",
    "kubernetes.io/os": "Node label that pods require.",
    "topologySpreadConstraints": "Spread of pods over nodes.",
    "priorityClassName": "Priority class of pods.",
    "dnsPolicy": "DNS policy of pods.",
    "terminationGracePeriodSeconds": "Seconds that pods have to stop.",
    "minReadySeconds": "Seconds that a pod must be ready to count as available.",
    "replicas": "Number of pods.",
    "rollOutPods": "Restart pods when their ConfigMap changes.",
    "updateStrategy.type": "Strategy of updates.",
    "maxUnavailable": "Pods that may be unavailable in an update.",
    "maxSurge": "Additional pods in an update.",
    "extraArgs": "More arguments of the program.",
    "extraEnv": "More variables of containers.",
    "extraVolumes": "More volumes of pods.",
    "extraVolumeMounts": "More mounts of containers.",
    "extraHostPathMounts": "More folders of the host.",
    "extraContainers": "More containers.",
    "extraInitContainers": "More init containers.",
    "initContainers": "More init containers.",
    "lifecycle": "Lifecycle hooks of the container.",
    "failureThreshold": "Failures after which the probe fails.",
    "periodSeconds": "Period of the probe.",
    "initialDelaySeconds": "Delay of the probe after the start of the container.",
    "timeoutSeconds": "Timeout of the probe.",
    "readinessProbe": "Fields of the readiness probe.",
    "existingSecret": "Secret with the certificate, in place of a generated one.",
    "cert": "Certificate in base64 PEM.",
    "key": "Key in base64 PEM.",
    "extraDnsNames": "More DNS names of the certificate.",
    "extraIpAddresses": "More addresses of the certificate.",
    "certValidityDuration": "Days that certificates are valid.",
    "certManagerIssuerRef": "Issuer of cert-manager.",
    "schedule": "Schedule of the CronJob.",
    "subject": "Subject of certificates by cert-manager.",
    "privateKey": "Private key of certificates by cert-manager.",
    "k8sServiceHostRef.key": "Key of the ConfigMap.",
    "k8sServiceHostRef.name": "Name of the ConfigMap.",
    "mtls.enabled": "Require certificates of clients.",
    "secretsNamespace.name": "Namespace of Secrets.",
    "secretsNamespace.sync": "Copy Secrets to that namespace.",
    "metrics.port": "Port of metrics.",
    "prometheus.port": "Port of metrics.",
    "prometheus.enabled": "Serve metrics.",
    "metrics.enabled": "Serve metrics.",
    "healthPort": "Port of the health check.",
    "etcdQPS": "Maximum rate of requests to etcd per second.",
    "service.type": "Type of the Service.",
    "service.annotations": "Annotations of the Service.",
    "service.labels": "Labels of the Service.",
    "externalTrafficPolicy": "External traffic policy of the Service.",
    "internalTrafficPolicy": "Internal traffic policy of the Service.",
    "loadBalancerClass": "Load balancer class of the Service.",
    "loadBalancerIP": "Address of the load balancer.",
    "loadBalancerSourceRanges": "Networks that may use the load balancer.",
    "mode": "Mode.",
    "enabled": "Enable the feature.",
    "port": "Port.",
    "nodePort": "Node port of the Service.",
    "label": "Label of dashboards.",
    "labelValue": "Value of the label of dashboards.",
    "namespace": "Namespace of the objects.",
    "hostUsers": "User namespace of the host, with Kubernetes 1.33 or later.",
}
# A comment that begins so says that a value, or a group of values, has no effect.
WITHOUT_EFFECT = re.compile(r"^(?:.*\. )?(No effect|Not supported|Not part of this chart)", re.I)


class Value:
    """A value or a group of values, as values.yaml has it."""

    def __init__(self, path, default, comment, tags, leaf):
        self.path, self.default, self.comment, self.tags, self.leaf = path, default, comment, tags, leaf

    def types(self):
        given = self.tags.get("type")
        if given:
            return given.split("|")
        return [TYPES[type(self.default)]] if "enum" not in self.tags else []


def parse(text):
    """All values in the order of the file, groups before their members."""
    defaults = yaml.safe_load(text)
    values, stack, comment, tags = [], [], [], {}
    for line in text.splitlines():
        bare = line.strip()
        if bare.startswith("#"):
            tag = re.match(r"# @(\w+) (.*)", bare)
            if tag:
                tags[tag.group(1)] = tag.group(2)
            else:
                comment.append(bare[1:].strip())
            continue
        key = re.match(r"( *)([\w./-]+):(?: |$)", line)
        if not bare:
            comment, tags = [], {}
            continue
        if not key or bare.startswith("- "):
            continue
        depth = len(key.group(1)) // 2
        if depth > len(stack):
            continue  # inside of a list or an object
        node = defaults
        for part in (parts := stack[:depth] + [key.group(2)]):
            node = node[part] if isinstance(node, dict) and part in node else KeyError
        if node is KeyError:
            continue
        stack = parts if isinstance(node, dict) and node else parts[:-1]
        values.append(Value(".".join(parts), node, " ".join(comment), tags, not (isinstance(node, dict) and node)))
        comment, tags = [], {}
    return values


def schema(values):
    root = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the chart skep", "type": "object", "properties": {}}
    for value in values:
        node, parts = root, split(value.path)
        for part in parts[:-1]:
            node = node["properties"][part]
        here = {}
        if value.comment:
            here["description"] = value.comment
        if value.leaf:
            types = value.types()
            if types and "any" not in types:
                here["type"] = types[0] if len(types) == 1 else types
            if "enum" in value.tags:
                here["enum"] = [None if word == "null" else word for word in value.tags["enum"].split("|")]
            if "range" in value.tags:
                here["minimum"], here["maximum"] = map(int, value.tags["range"].split("-"))
        else:
            here |= {"type": ["object", "null"], "properties": {}}
        node["properties"][parts[-1]] = here
    return root


def split(path):
    """Parts of a path; the label kubernetes.io/os is one."""
    parts = path.replace("kubernetes.io/os", "\0").split(".")
    return [p.replace("\0", "kubernetes.io/os") for p in parts]


def keys_of(config, values):
    """The keys of cilium-config that a value sets: directly, or by its tag."""
    keys = {value.path: value.tags["key"].split() for value in values if "key" in value.tags}
    for group in config:
        for form, members in group.items():
            for key, path in members.items() if form != "when" else ():
                keys.setdefault(path, []).append(key)
    return keys


def states_of(page):
    """What the programs do with each key."""
    states = {}
    for key, state in re.findall(r"^\| `([\w-]+)` \| [^|]* \| (.*) \|$", page, re.M):
        states.setdefault(key, []).append(state)
    return states


def without_effect(values, keys, states):
    """Values without effect, and why."""
    found, groups = {}, {}
    for value in values:
        if WITHOUT_EFFECT.search(value.comment or ""):
            groups[value.path] = value.comment
        group = next((reason for path, reason in groups.items() if value.path == path or value.path.startswith(path + ".")), None)
        if not value.leaf:
            continue
        if group:
            found[value.path] = group
        elif value.path in keys and "used" not in value.tags:
            reasons = [state for key in keys[value.path] for state in states.get(key, [])]
            if reasons and all(r.startswith(("no effect", "unsupported")) for r in reasons):
                # "no effect: reason" and "unsupported; reported unless `x`: reason"
                found[value.path] = reasons[0].split(": ", 1)[-1]
    return found


def helps_of(*pages):
    """First sentence of the help of each setting."""
    helps = {}
    for page in pages:
        for key, text in re.findall(r"^\| `--([\w-]+)` (?:\|[^|]*){4}\| (.*) \|$", page, re.M):
            helps.setdefault(key, re.split(r"(?<=\.)\s", text)[0])
    return helps


def description(value, keys, helps):
    here = keys.get(value.path, [])
    texts = [value.comment] if value.comment else [helps[key] for key in here if key in helps][:1]
    if not texts:
        parts = split(value.path)
        texts = [COMMON[name] for name in (".".join(parts[-2:]), parts[-1]) if name in COMMON and not here][:1]
    if here:
        texts.append("Key " + ", ".join(f"`{key}`" for key in here) + ".")
    return " ".join(texts)


def table(values, keys, useless, helps):
    lines = ["<!-- Generated by deploy/helm/generate.py; do not edit. -->", "", "# Values of the Helm chart", "",
             "Names and defaults are those of Cilium's chart. A key is one of ConfigMap `cilium-config`;",
             "[cilium-settings.md](cilium-settings.md) says what the programs do with it. How to install: [install.md](../install.md).", "",
             "| Value | Default | Meaning |", "|---|---|---|"]
    for value in values:
        if not value.leaf:
            if value.comment:
                lines.append(f"| **`{value.path}`** | | {value.comment} |")
            continue
        default = json.dumps(value.default, ensure_ascii=False)
        default = default if len(default) <= 60 else "see values.yaml"
        text = description(value, keys, helps)
        if not WITHOUT_EFFECT.search(useless.get(value.path, "No effect")):
            text = f"{text} No effect: {useless[value.path]}."
        lines.append(f"| `{value.path}` | `{default}` | {text.strip()} |".replace("||", "| |"))
    return "\n".join(lines) + "\n"


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--docs", default=DOCS)
    options = parser.parse_args()
    page, settings, *helps = (os.path.join(options.docs, f"{name}.md") for name in ("helm-values", "cilium-settings", "skep-agent", "skep-operator"))

    values = parse(read(os.path.join(CHART, "values.yaml")))
    keys = keys_of(yaml.safe_load(read(os.path.join(CHART, "files", "config.yaml"))), values)
    useless = without_effect(values, keys, states_of(read(settings)))
    unknown = [path for path in keys if not path.startswith("derived.") and path not in {v.path for v in values}]
    if unknown:
        sys.exit(f"generate.py: files/config.yaml has values that values.yaml does not have: {' '.join(sorted(unknown))}")
    metrics = "".join(read(os.path.join(options.docs, f"{name}.md")) for name in ("metrics", "metrics-operator"))
    boards = read(os.path.join(CHART, "files", "dashboards.yaml"))
    named = {re.sub(r"_bucket$", "", name) for name in re.findall(r"cilium_\w+", boards)} - {"cilium_app"}
    lost = sorted(name for name in named if f"`{name}`" not in metrics)
    if lost:
        sys.exit(f"generate.py: files/dashboards.yaml has metrics that the programs do not have: {' '.join(lost)}")
    known = {
        "defaults": {v.path: v.default for v in values if v.leaf},
        "groups": {v.path: True for v in values if not v.leaf},
        # By path, as a list of parts: a label has dots.
        "noEffect": [[split(path), why.removeprefix("No effect: ")] for path, why in useless.items()],
    }
    made = {
        os.path.join(CHART, "values.schema.json"): json.dumps(schema(values), indent=1, ensure_ascii=False) + "\n",
        os.path.join(CHART, "files", "known.json"): json.dumps(known, indent=0, ensure_ascii=False) + "\n",
        page: table(values, keys, useless, helps_of(*map(read, helps))),
    }
    if options.docs != DOCS:
        with open(page, "w", encoding="utf-8") as file:
            file.write(made.pop(page))
    stale = [path for path, text in made.items() if not os.path.exists(path) or read(path) != text]
    if options.check and stale:
        sys.exit(f"generate.py: out of date: {' '.join(os.path.relpath(p) for p in stale)}; run deploy/helm/generate.py")
    for path in stale:
        with open(path, "w", encoding="utf-8") as file:
            file.write(made[path])


if __name__ == "__main__":
    main()
