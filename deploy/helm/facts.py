# SPDX-License-Identifier: Apache-2.0
"""Turns the manifests of `helm template` into facts: names, numbers and settings, without the text of the chart.

    facts.py [VALUES] <MANIFESTS

The format is that of the facts in `testdata`: objects, the data of ConfigMap cilium-config, and by kind workloads, roles, bindings,
services, secrets (no values; certificates as names and days), ConfigMaps and other specs. Strings of VALUES are kept word for word;
other scripts and expressions are replaced by a mark.
"""

import base64
import ipaddress
import json
import re
import subprocess
import sys
from datetime import datetime

import yaml

WORKLOADS = {"DaemonSet", "Deployment", "StatefulSet", "Job", "CronJob"}
# ConfigMaps whose content is a setting made of values.
PARSED = {
    ("hubble-relay-config", "config.yaml"),
    ("clustermesh-remote-users", "users.yaml"),
    ("ip-masq-agent", "config"),
    ("cilium-flowlog-config", "flowlogs.yaml"),
    ("cilium-dynamic-metrics-config", "dynamic-metrics.yaml"),
}
HASH = re.compile(r"(-generate-certs)-[0-9a-f]{10}$")


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Loads what Kubernetes loads: dates are text, and the last of two equal keys counts."""


class Mapping(dict):
    """A mapping, and its keys that are there twice."""

    twice = ()


def mapping(loader, node):
    out, twice = Mapping(), []
    loader.flatten_mapping(node)
    for key, value in node.value:
        key = loader.construct_object(key, deep=True)
        if key in out:
            twice.append(key)
        out[key] = loader.construct_object(value, deep=True)
    out.twice = tuple(twice)
    return out


Loader.add_constructor("tag:yaml.org,2002:map", mapping)
Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: node.value)


def documents(text):
    return [d for d in yaml.load_all(text, Loader=Loader) if isinstance(d, dict) and d.get("kind")]


def strings(value):
    """All strings of a tree of values."""
    if isinstance(value, dict):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, str):
        yield value
        yield value.strip()


def pick(source, fields):
    """Fields under other names, if they are there."""
    return {name: source[field] for field, name in fields.items() if source.get(field) is not None}


def certificate(pem):
    """Subject, names, days and usages of a certificate, by openssl; None if it is none."""
    command = ["openssl", "x509", "-noout", "-subject", "-issuer", "-dates", "-nameopt", "multiline,utf8", "-dateopt", "iso_8601",
               "-ext", "subjectAltName,extendedKeyUsage,basicConstraints"]
    run = subprocess.run(command, input=pem, capture_output=True, check=False)
    if run.returncode:
        return None
    text = run.stdout.decode()
    common = re.findall(r"commonName\s+= (.*)", text)
    start, end = (datetime.fromisoformat(re.search(f"{n}=(.*)", text).group(1).replace("Z", "")) for n in ("notBefore", "notAfter"))
    out = {"cn": common[0] if common else None, "issuer": common[-1] if common else None, "days": (end - start).days}
    names = re.findall(r"DNS:([^,\s]+)", text)
    addresses = [str(ipaddress.ip_address(a)) for a in re.findall(r"IP Address:([^,\s]+)", text)]
    if names:
        out["dns"] = names
    if addresses:
        out["ips"] = addresses
    words = {"TLS Web Server Authentication": "serverAuth", "TLS Web Client Authentication": "clientAuth"}
    usages = [short for long, short in words.items() if long in text]
    if usages:
        out["usages"] = usages
    if "CA:TRUE" in text:
        out["ca"] = True
    return out


class Facts:
    """Facts of one rendering; `own` are the strings of its values."""

    def __init__(self, own=()):
        self.own = set(own)

    def text(self, value):
        if isinstance(value, str) and not {value, value.strip()} & self.own and re.search(r"\n|; |\|\||&& | \| ", value):
            return "<script>"
        return value

    def labels(self, labels):
        return {k: v for k, v in (labels or {}).items() if k != "helm.sh/chart"}

    def annotations(self, annotations):
        return {k: "<sha256>" if re.fullmatch(r"[0-9a-f]{64}", str(v)) else self.text(v) for k, v in (annotations or {}).items()}

    def variable(self, variable):
        name, source = variable["name"], variable.get("valueFrom")
        if not source:
            value = variable.get("value", "")
            if name == "CILIUM_CERTGEN_CONFIG":
                return [name, {"yaml": yaml.safe_load(value)}]
            return [name, {"value": self.text(value)}]
        if "fieldRef" in source:
            return [name, {"field": source["fieldRef"]["fieldPath"]}]
        if "resourceFieldRef" in source:
            return [name, {"resource": source["resourceFieldRef"]["resource"]}]
        for kind, word in (("configMapKeyRef", "config_map"), ("secretKeyRef", "secret")):
            if kind in source:
                out = {word: f"{source[kind]['name']}/{source[kind]['key']}"}
                if source[kind].get("optional"):
                    out["optional"] = True
                return [name, out]
        return [name, source]

    def action(self, handler):
        if not handler:
            return None
        if "exec" in handler:
            return {"exec": [self.text(word) for word in handler["exec"]["command"]]}
        kind = next(k for k in ("httpGet", "grpc", "tcpSocket", "sleep") if k in handler)
        out = dict(handler[kind] or {})
        if "httpHeaders" in out:
            out["httpHeaders"] = {h["name"]: h["value"] for h in out["httpHeaders"]}
        return {kind: out}

    def probe(self, probe):
        times = {"initialDelaySeconds": "delay", "periodSeconds": "period", "timeoutSeconds": "timeout",
                 "failureThreshold": "failures", "successThreshold": "successes"}
        return self.action({k: v for k, v in probe.items() if k not in times}) | pick(probe, times)

    def container(self, container):
        out = {"name": container["name"], "image": container.get("image"), "pull": container.get("imagePullPolicy")}
        for field in ("command", "args"):
            if container.get(field):
                out[field] = [self.text(word) for word in container[field]]
        if container.get("env"):
            out["env"] = [self.variable(e) for e in container["env"]]
        if container.get("envFrom"):
            out["env_from"] = container["envFrom"]
        if container.get("ports"):
            fields = {"name": "name", "containerPort": "port", "hostPort": "host_port", "protocol": "protocol"}
            out["ports"] = [pick(p, fields) for p in container["ports"]]
        for field, name in (("startupProbe", "startup"), ("livenessProbe", "liveness"), ("readinessProbe", "readiness")):
            if container.get(field):
                out[name] = self.probe(container[field])
        life = container.get("lifecycle") or {}
        for field, name in (("postStart", "post_start"), ("preStop", "pre_stop")):
            if life.get(field):
                out[name] = self.action(life[field])
        if container.get("volumeMounts"):
            out["mounts"] = []
            for mount in container["volumeMounts"]:
                one = {"name": mount["name"], "path": mount["mountPath"]}
                if mount.get("readOnly"):
                    one["ro"] = True
                out["mounts"].append(one | pick(mount, {"mountPropagation": "propagation", "subPath": "sub_path"}))
        for field, name in (("securityContext", "security"), ("resources", "resources"), ("restartPolicy", "restart")):
            if container.get(field):
                out[name] = container[field]
        return out

    def volume(self, volume):
        out = {"name": volume["name"]}
        for kind in volume.keys() - {"name"}:
            spec = volume[kind] or {}
            out["kind"] = kind
            if kind == "hostPath":
                out |= {"path": spec["path"]} | pick(spec, {"type": "type"})
            elif kind != "emptyDir" or spec:
                out["spec"] = spec
        return out

    def pod(self, template):
        meta, spec = template.get("metadata") or {}, template.get("spec") or {}
        out = {}
        if self.labels(meta.get("labels")):
            out["labels"] = self.labels(meta.get("labels"))
        if meta.get("annotations"):
            out["annotations"] = self.annotations(meta["annotations"])
        fields = {"hostNetwork": "host_network", "hostPID": "host_pid", "hostUsers": "host_users", "serviceAccountName": "service_account",
                  "automountServiceAccountToken": "automount_token", "priorityClassName": "priority_class", "dnsPolicy": "dns_policy",
                  "restartPolicy": "restart", "terminationGracePeriodSeconds": "grace", "nodeSelector": "node_selector",
                  "tolerations": "tolerations", "affinity": "affinity", "hostAliases": "host_aliases",
                  "topologySpreadConstraints": "topology_spread", "imagePullSecrets": "image_pull_secrets",
                  "securityContext": "security", "shareProcessNamespace": "share_process_namespace", "activeDeadlineSeconds": "deadline"}
        out |= {k: v for k, v in pick(spec, fields).items() if v not in ({}, [])}
        if spec.get("initContainers"):
            out["init"] = [self.container(c) for c in spec["initContainers"]]
        out["containers"] = [self.container(c) for c in spec.get("containers") or []]
        if spec.get("volumes"):
            out["volumes"] = [self.volume(v) for v in spec["volumes"]]
        return out

    def workload(self, document):
        spec, out = document.get("spec") or {}, {}
        if document["kind"] == "CronJob":
            out = {"schedule": spec.get("schedule"), "concurrency": spec.get("concurrencyPolicy"),
                   "history": [spec.get("successfulJobsHistoryLimit"), spec.get("failedJobsHistoryLimit")]}
            spec = spec["jobTemplate"]["spec"]
        out |= pick(spec, {"replicas": "replicas", "minReadySeconds": "min_ready", "updateStrategy": "strategy", "strategy": "strategy",
                           "serviceName": "service", "volumeClaimTemplates": "claims", "ttlSecondsAfterFinished": "ttl",
                           "backoffLimit": "backoff", "podManagementPolicy": "pod_management"})
        selector = (spec.get("selector") or {}).get("matchLabels")
        if selector:
            out["selector"] = self.labels(selector)
        out["pod"] = self.pod(spec["template"])
        return out

    def service(self, document):
        spec = document.get("spec") or {}
        out = {"type": spec.get("type", "ClusterIP")}
        out |= pick(spec, {"clusterIP": "cluster_ip", "internalTrafficPolicy": "internal_policy", "externalTrafficPolicy": "external_policy",
                           "sessionAffinity": "session_affinity", "loadBalancerClass": "lb_class", "loadBalancerIP": "lb_ip",
                           "loadBalancerSourceRanges": "lb_source_ranges", "allocateLoadBalancerNodePorts": "lb_node_ports",
                           "ipFamilyPolicy": "ip_family_policy", "ipFamilies": "ip_families",
                           "publishNotReadyAddresses": "publish_not_ready", "selector": "selector"})
        fields = {"name": "name", "port": "port", "targetPort": "target", "nodePort": "node_port", "protocol": "protocol",
                  "appProtocol": "app_protocol"}
        out["ports"] = [pick(p, fields) for p in spec.get("ports") or []]
        return out

    def secret(self, document):
        name, data = document["metadata"]["name"], document.get("data") or {}
        out = {"type": document.get("type", "Opaque"), "keys": sorted(data | (document.get("stringData") or {}))}
        key = "tls.crt" if "tls.crt" in data else "ca.crt"
        if key in data:
            found = certificate(base64.b64decode(data[key]))
            if found:
                out["certificate"] = found
        if name in ("cilium-clustermesh", "cilium-kvstoremesh"):
            out["etcd_configs"] = {k: yaml.safe_load(base64.b64decode(v)) for k, v in data.items()
                                   if not re.search(r"\.etcd-client(-ca)?\.(crt|key)$", k)}
        return out

    def config_map(self, document):
        name, data = document["metadata"]["name"], document.get("data") or {}
        out = {"keys": sorted(data)}
        for key, value in data.items():
            if (name, key) in PARSED:
                out.setdefault("data", {})[key] = yaml.safe_load(value)
            elif {value, str(value).strip()} & self.own:
                out.setdefault("data", {})[key] = value
        return out

    def config(self, document, facts):
        data = document.get("data") or {}
        facts["config"] = {k: v if isinstance(v, str) else "" if v is None else json.dumps(v) for k, v in sorted(data.items())}
        if "etcd-config" in data:
            facts["config_yaml"] = {"etcd-config": yaml.safe_load(facts["config"]["etcd-config"])}
            facts["config"]["etcd-config"] = "<yaml>"
        numbers = {k: type(v).__name__ for k, v in data.items() if not isinstance(v, str)}
        if numbers:
            facts["config_not_text"] = numbers
        if getattr(data, "twice", ()):
            facts["config_twice"] = sorted(data.twice)

    def scrub(self, value):
        """Specs of other kinds, without expressions and long texts."""
        if isinstance(value, dict):
            words = ("expression", "message", "messageExpression", "description")
            return {k: "<expression>" if k in words else self.scrub(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.scrub(v) for v in value]
        return self.text(value)

    def all(self, found):
        facts, namespaces = {"objects": []}, {}
        for document in found:
            meta, kind = document.get("metadata") or {}, document["kind"]
            name, namespace = HASH.sub(r"\1-<hash>", meta.get("name", "")), meta.get("namespace")
            entry = {"kind": kind, "name": name, "api": document.get("apiVersion")}
            if namespace:
                entry["ns"] = namespace
            if self.labels(meta.get("labels")):
                entry["labels"] = self.labels(meta.get("labels"))
            if meta.get("annotations"):
                entry["annotations"] = self.annotations(meta["annotations"])
            facts["objects"].append(entry)
            key = f"{kind}/{name}"
            if namespaces.setdefault(key, namespace) != namespace:
                key = f"{kind}/{namespace}/{name}"
            short = key.split("/", 1)[1]
            if kind == "ConfigMap" and name == "cilium-config":
                self.config(document, facts)
            elif kind == "ConfigMap":
                facts.setdefault("config_maps", {})[short] = self.config_map(document)
            elif kind == "Secret":
                facts.setdefault("secrets", {})[short] = self.secret(document)
            elif kind in WORKLOADS:
                facts.setdefault("workloads", {})[key] = self.workload(document)
            elif kind == "Service":
                facts.setdefault("services", {})[short] = self.service(document)
            elif kind in ("ClusterRole", "Role"):
                rules = [{k: sorted(v) for k, v in rule.items()} for rule in document.get("rules") or []]
                facts.setdefault("roles", {})[key] = rules
            elif kind in ("ClusterRoleBinding", "RoleBinding"):
                role = document["roleRef"]
                subjects = [f"{s['kind']}/{s.get('namespace', '')}/{s['name']}" for s in document.get("subjects") or []]
                facts.setdefault("bindings", {})[key] = {"role": f"{role['kind']}/{role['name']}", "subjects": subjects}
            elif kind == "ServiceAccount":
                if document.get("automountServiceAccountToken") is not None:
                    entry["automount_token"] = document["automountServiceAccountToken"]
            elif kind != "Namespace":
                rest = {k: v for k, v in document.items() if k not in ("apiVersion", "kind", "metadata")}
                facts.setdefault("other", {})[key] = self.scrub(rest)
        facts["objects"].sort(key=lambda o: (o["kind"], o.get("ns", ""), o["name"]))
        return facts


def main():
    values = {}
    if len(sys.argv) > 1:
        with open(sys.argv[1], encoding="utf-8") as file:
            values = yaml.safe_load(file) or {}
    print(json.dumps(Facts(strings(values)).all(documents(sys.stdin.read())), indent=1))


if __name__ == "__main__":
    main()
