#!/usr/bin/env python3
"""Writes what goes with the binary: the licences of the crates in it (THIRD-PARTY-LICENSES.txt) and a bill of materials
(redlockd.cdx.json, CycloneDX 1.5). The same lock file gives the same files: no time, no random id.

    packaging/dist.py DIRECTORY
"""

import json
import pathlib
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = "x86_64-unknown-linux-gnu"
LICENCE_FILES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE")


def crates():
    """The crates of others that are built for the binary, without those for tests and build scripts."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", TARGET]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    seen, open_ends = set(), [root]
    while open_ends:
        at = open_ends.pop()
        if at in seen:
            continue
        seen.add(at)
        used = (d["pkg"] for d in nodes[at]["deps"] if any(kind["kind"] is None for kind in d["dep_kinds"]))
        open_ends.extend(used)
    found = [packages[at] for at in seen if packages[at]["source"]]
    return packages[root], sorted(found, key=lambda package: (package["name"], package["version"]))


def texts(package):
    """The licence files of a crate, by name."""
    folder = pathlib.Path(package["manifest_path"]).parent
    files = (f for f in folder.iterdir() if f.is_file() and f.name.upper().startswith(LICENCE_FILES))
    return {f.name: f.read_text(encoding="utf-8", errors="replace").strip() for f in sorted(files)}


def licences(found):
    """Each crate with its licence, then each text once with the crates that have it."""
    lines, by_text = ["The crates in the binary of redlockd, and their licences.", ""], {}
    for package in found:
        name = f"{package['name']} {package['version']}"
        lines.append(f"{name}: {package['license'] or 'see its licence file'} ({package['repository'] or 'crates.io'})")
        for text in texts(package).values():
            by_text.setdefault(text, []).append(name)
    for text, names in sorted(by_text.items(), key=lambda pair: pair[1]):
        lines += ["", "=" * 100, ", ".join(dict.fromkeys(names)), "=" * 100, "", text]
    return "\n".join(lines) + "\n"


def bill(root, found):
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    sums = {(p["name"], p["version"]): p.get("checksum") for p in lock["package"]}

    def component(package):
        entry = {
            "type": "library",
            "name": package["name"],
            "version": package["version"],
            "bom-ref": f"pkg:cargo/{package['name']}@{package['version']}",
            "purl": f"pkg:cargo/{package['name']}@{package['version']}",
        }
        if package["license"]:
            entry["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        checksum = sums.get((package["name"], package["version"]))
        if checksum:
            entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        return entry

    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**component(root), "type": "application"}},
        "components": [component(package) for package in found],
    }


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    root, found = crates()
    (out / "THIRD-PARTY-LICENSES.txt").write_text(licences(found), encoding="utf-8")
    (out / "redlockd.cdx.json").write_text(json.dumps(bill(root, found), indent=1) + "\n", encoding="utf-8")
    print(f"{len(found)} crates: {out}/THIRD-PARTY-LICENSES.txt, {out}/redlockd.cdx.json")


main()
