#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the reference of the commands of programs, as Markdown: commands.py PROGRAM..."""

import os
import re
import subprocess
import sys


def show(program, path):
    result = subprocess.run([program, *path, "--help"], stdin=subprocess.DEVNULL, capture_output=True,
                            text=True, env={"PATH": os.environ["PATH"]}, check=True)
    text = result.stdout.rstrip()
    name = " ".join(["skep", *path])
    if len(path) > 1 and f"Usage: {name}" not in text:
        return  # The help of the command above.
    print(f"\n## {name}\n\n```\n{text}\n```")
    listed = re.search(r"^Commands:\n((?:  .*\n|\n(?=  ))+)", text + "\n", re.M)
    for command in re.findall(r"^  (\S+)", listed[1], re.M) if listed else []:
        if command != "help":
            show(program, [*path, command])


for number, program in enumerate(sys.argv[1:]):
    if number:
        print("\n# Commands of clusters")
    show(program, [])
