#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# Checks the documentation: each relative link names a file, with its heading; each page below docs is at most two
# links from docs/README.md.
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INDEX = ROOT / "docs/README.md"


def anchors(page: Path) -> set[str]:
    """Anchors of headings, as GitHub makes them."""
    found: Counter[str] = Counter()
    names = set(re.findall(r'<a id="([^"]+)">', prose(page)))
    for heading in re.findall(r"^#+ +(.+)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return names


def prose(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", link)]


def main() -> int:
    tracked = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    pages = [ROOT / name for name in tracked.stdout.split()]
    errors = []
    targets: dict[Path, set[Path]] = {}
    for page in pages:
        targets[page] = set()
        for link in links(page):
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            targets[page].add(target)
            if not target.exists():
                errors.append(f"{page.relative_to(ROOT)}: no file {name}")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                errors.append(f"{page.relative_to(ROOT)}: no heading #{anchor} in {target.relative_to(ROOT)}")
    near = targets.get(INDEX, set()) | {INDEX}
    near |= {target for page in near for target in targets.get(page, ())}
    errors += [f"{page.relative_to(ROOT)}: not within two links of docs/README.md"
               for page in pages if page.is_relative_to(ROOT / "docs") and page not in near]
    print("\n".join(sorted(errors)), file=sys.stderr, end="\n" if errors else "")
    return bool(errors)


sys.exit(main())
