# SPDX-License-Identifier: Apache-2.0
"""Gives every value of the chart a wrong type: wrong_types.py --helm HELM --chart CHART. Each must be refused, by a message with
its path and the type that is allowed. Prints what is not, and a count.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile

# A value of each type of JSON, for where it is not allowed.
WRONG = {"string": "wrong", "array": ["wrong"], "object": {"wrong": True}, "boolean": True, "number": 7.5}


def allowed(node):
    if "enum" in node:
        return {{str: "string", bool: "boolean", type(None): "null"}.get(type(word), "number") for word in node["enum"]}
    types = node.get("type", [])
    return set([types] if isinstance(types, str) else types)


def paths(node, path=()):
    """All values with a type, as (path, types); values without one take anything."""
    for name, below in (node.get("properties") or {}).items():
        types = allowed(below)
        if types:
            yield (*path, name), types
        yield from paths(below, (*path, name))


def wrong(types):
    # Helm's own decoder makes numbers of all kinds alike.
    names = {"number" if name == "integer" else name for name in types}
    return [WRONG[name] for name in WRONG if name not in names]


def refusals(options, values):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values, file)
        file.flush()
        command = [options.helm, "template", "cilium", options.chart, "--values", file.name]
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ, GOMAXPROCS="1"))
    said = {}
    # Errors of one object are indented below it.
    for line in map(str.strip, run.stderr.splitlines()):
        if line.startswith("- at '"):
            path, text = line[len("- at '"):].split("': ", 1)
            said[path] = text
    return run.returncode, said


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--helm", required=True)
    parser.add_argument("--chart", required=True)
    options = parser.parse_args()
    with open(os.path.join(options.chart, "values.schema.json"), encoding="utf-8") as file:
        every = list(paths(json.load(file)))
    # One rendering has all values of a depth: helm names all that are refused.
    rounds = collections.defaultdict(dict)
    for path, types in every:
        for turn, value in enumerate(wrong(types)):
            here = rounds[len(path), turn]
            for part in path[:-1]:
                here = here.setdefault(part, {})
            here[path[-1]] = value
    known, failed, count = dict(every), [], 0
    for (depth, turn), values in sorted(rounds.items()):
        code, said = refusals(options, values)
        if not code:
            failed.append(f"values of depth {depth}, round {turn}: nothing is refused")
        for path, types in known.items():
            if len(path) != depth or turn >= len(wrong(types)):
                continue
            count += 1
            pointer = "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)
            text = said.get(pointer, "")
            value = json.dumps(wrong(types)[turn])
            if not text:
                failed.append(f"{'.'.join(path)}: {value} is not refused")
            elif not any(name in text for name in types) and "must be one of" not in text:
                failed.append(f"{'.'.join(path)}: {value}: the message has no type: {text}")
    for line in failed:
        print(f"FAIL {line}")
    print(f"types: {len(every)} values, {count} wrong ones, {len(failed)} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
