#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes generated/schema.txt: kinds, types and fields of the Kubernetes API.

Reads the sources of the k8s-openapi crate (argument: its src/v1_NN folder). One line is a kind (K), a
type (T) or a field of the type above it (F); columns are separated by tabs:

    K group version kind plural scope type
    T name description
    F json-name type flags description

A second argument, the src folder of the k8s-pb crate, gives the numbers that fields have in protobuf.

Types are string, integer, int64, number, boolean, time, microtime, bytes, quantity, intstr, any, the name of
another type, with the prefixes [] (list) and {} (map of string to). Flags: r = required, map=<keys> and
set = how lists merge; #<numbers> = field number in protobuf, after those of the messages it is nested in.
"""
import re, sys, os

root = sys.argv[1]
groups = {"apps", "autoscaling", "batch", "coordination", "core", "discovery", "events", "networking",
          "node", "policy", "rbac", "scheduling", "storage", "authentication", "authorization",
          "admissionregistration", "certificates", "flowcontrol"}
versions = {"v1", "v2", "v1beta1"}
SCALAR = {
    "std::string::String": "string", "i32": "integer", "i64": "int64", "f64": "number", "bool": "boolean",
    "crate::apimachinery::pkg::apis::meta::v1::Time": "time",
    "crate::apimachinery::pkg::apis::meta::v1::MicroTime": "microtime",
    "crate::apimachinery::pkg::api::resource::Quantity": "quantity",
    "crate::apimachinery::pkg::util::intstr::IntOrString": "intstr",
    "crate::apimachinery::pkg::runtime::RawExtension": "any",
    "crate::apimachinery::pkg::apis::meta::v1::FieldsV1": "any",
    "crate::ByteString": "bytes", "crate::serde_json::Value": "any",
    "crate::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSON": "any",
    "crate::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceSubresourceStatus": "any",
    "crate::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaPropsOrArray": "any",
    "crate::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaPropsOrBool": "any",
    "crate::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaPropsOrStringArray": "any",
}
KEYS = {("ServiceSpec", "ports"): "port,protocol", ("Container", "ports"): "containerPort,protocol",
        ("EphemeralContainer", "ports"): "containerPort,protocol",
        ("PodSpec", "topologySpreadConstraints"): "topologyKey,whenUnsatisfiable"}

NESTED = {"api": 2, "apimachinery": 0, "apiextensions_apiserver": 0, "kube_aggregator": 0}
messages = {}

def plain(name):
    return re.sub("r#|[_$-]", "", name).lower()

def read_messages(pb):
    for dp, _, fs in os.walk(pb):
        for f in fs:
            if not f.endswith(".rs"): continue
            rel = [p for p in os.path.relpath(os.path.join(dp, f), pb)[:-3].split("/") if p != "mod"]
            src = open(os.path.join(dp, f)).read()
            for m in re.finditer(r"pub struct (\w+) \{\n(.*?)\n\}", src, re.S):
                fields = re.findall(r'#\[prost\(([^)]*?)tag = "(\d+)"[^)]*\)\]\s*pub ([\w#]+):\s*(.*?),\n', m.group(2) + "\n", re.S)
                messages[(tuple(rel), plain(m.group(1)))] = [(plain(n), int(t), ty) for _, t, n, ty in fields]

def numbers(rel, name, wanted, prefix=()):
    """Numbers of the fields of a message; messages that JSON does not show are looked into."""
    found = {}
    for n, tag, ty in messages.get((rel, plain(name)), []):
        if n in wanted:
            found.setdefault(n, prefix + (tag,))
            continue
        m = re.fullmatch(r"::core::option::Option<(\w+)>", ty.strip())
        if m and len(prefix) < 2:
            for k, v in numbers(rel, m.group(1), wanted, prefix + (tag,)).items(): found.setdefault(k, v)
    return found

def short(path):
    p = path.replace("crate::", "").split("::")
    if p[0] == "api": return "%s.%s.%s" % (p[1], p[2], p[3])
    return "%s.%s.%s" % (p[-3], p[-2], p[-1])

def ty(t):
    t = t.strip()
    m = re.fullmatch(r"Option<(.*)>", t)
    if m: return ty(m.group(1))
    m = re.fullmatch(r"std::boxed::Box<(.*)>", t)
    if m: return ty(m.group(1))
    m = re.fullmatch(r"std::vec::Vec<(.*)>", t)
    if m: return "[]" + ty(m.group(1))
    m = re.fullmatch(r"std::collections::BTreeMap<std::string::String, (.*)>", t)
    if m: return "{}" + ty(m.group(1))
    if t in SCALAR: return SCALAR[t]
    if t.startswith("crate::"): return short(t)
    raise SystemExit("type " + t)

def camel(k):
    h, *t = k.strip("_").split("_")
    return h + "".join(p.capitalize() for p in t)

def first_sentence(d):
    d = " ".join(d.split()).replace("\\[", "[").replace("\\]", "]").replace("\t", " ")
    m = re.match(r"(.*?[^ .]\.)( |$)", d)
    d = m.group(1) if m else d
    if len(d) > 160: d = d[:157].rsplit(" ", 1)[0] + "..."
    return d

if len(sys.argv) > 2: read_messages(sys.argv[2])
kinds, types = [], []
files = []
for base in ("api", "apimachinery", "apiextensions_apiserver", "kube_aggregator"):
    for dp, _, fs in os.walk(os.path.join(root, base)):
        rel = os.path.relpath(dp, root).split("/")
        if base == "api":
            if len(rel) < 3 or rel[1] not in groups or rel[2] not in versions: continue
        for f in sorted(fs):
            if f != "mod.rs": files.append(os.path.join(dp, f))
for path in sorted(files):
    src = open(path).read()
    m = re.search(r"\npub struct (\w+) \{(.*?)\n\}", src, re.S)
    if not m: continue
    rel = os.path.relpath(path, root)[:-3].split("/")
    name = m.group(1)
    tname = short("::".join(rel[:-1] + [name]))
    if "crate::" + "::".join(rel[:-1] + [name]) in SCALAR: continue
    if tname.startswith("v1.Watch") or name == "List": continue
    head = src[:m.start()]
    desc = " ".join(l[4:] for l in head.splitlines() if l.startswith("/// "))
    jn = {}
    for a, b in re.findall(r'"([^"]+)" => Field::Key_(\w+),', src): jn[b] = a
    req = set()
    r = re.search(r'"required": \[(.*?)\]', src, re.S)
    if r: req = set(re.findall(r'"([^"]+)"', r.group(1)))
    flags = {}
    for f in re.findall(r"merge_strategies::list::set\(&mut self\.(\w+)", src): flags[f] = "set"
    for f, ks in re.findall(r"merge_strategies::list::map\(\s*&mut self\.(\w+),\s*other\.\w+,\s*&\[(.*?)\],", src, re.S):
        flags[f] = "map=" + ",".join(camel(k) for k in re.findall(r"lhs\.(\w+) ==", ks))
    for f in re.findall(r"merge_strategies::map::atomic\(&mut self\.(\w+)", src): flags[f] = "atomic"
    out, cur = [], []
    is_kind = "const KIND: &'static str" in src
    if is_kind:
        out.append(("apiVersion", "string", "", "Version of the schema of this object."))
        out.append(("kind", "string", "", "REST resource that this object represents."))
    for line in m.group(2).splitlines():
        line = line.strip()
        if line.startswith("///"): cur.append(line[3:].strip())
        elif line.startswith("pub "):
            f, t = re.fullmatch(r"pub (\w+): (.*),", line).groups()
            j = jn.get(f, f)
            fl = ["r"] if j in req else []
            if (name, j) in KEYS: fl.append("map=" + KEYS[(name, j)])
            elif f in flags: fl.append(flags[f])
            out.append((j, ty(t), " ".join(fl), first_sentence(" ".join(cur))))
            cur = []
    tags = numbers(tuple(rel[:-1]), name, {plain(f[0]) for f in out})
    out = [(j, t, " ".join(filter(None, [fl, "#" + ".".join(map(str, tags[plain(j)])) if plain(j) in tags else ""])), d)
           for j, t, fl, d in out]
    types.append((tname, first_sentence(desc), out))
    if is_kind:
        g = dict(re.findall(r"const (\w+): &'static str = \"([^\"]*)\"", src))
        if g.get("URL_PATH_SEGMENT"):
            scope = re.search(r"type Scope = crate::(\w+)ResourceScope", src).group(1)
            if scope in ("Namespace", "Cluster") and "ListableResource" in src or name in (
                    "SubjectAccessReview", "SelfSubjectAccessReview", "SelfSubjectRulesReview", "LocalSubjectAccessReview",
                    "TokenReview", "SelfSubjectReview"):
                kinds.append((g["GROUP"], g["VERSION"], g["KIND"], g["URL_PATH_SEGMENT"],
                              "N" if scope == "Namespace" else "C", tname))
print("# Generated by: python3 generate-schema.py <k8s-openapi>/src/v1_33 <k8s-pb>/src > generated/schema.txt")
for k in sorted(kinds): print("K\t" + "\t".join(k))
for n, d, fs in sorted(types):
    print("T\t%s\t%s" % (n, d))
    for f in fs: print("F\t" + "\t".join(f))
