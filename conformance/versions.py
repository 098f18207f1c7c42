"""The part of docs/conformance.md that says what changed between versions of a library.

The rows of an older version are in conformance/results/versions, in a file such as sb3-2.0.0.json; those of the newest
are in conformance/results.
"""

import json

from conformance.explanation import UNKNOWN

LIBRARIES = {"sb3": "SB3", "skrl": "skrl", "rsl_rl": "rsl_rl"}  # the name of the files, and the heading of the column

HEAD = """
## What changed between versions

The same measurement of older versions. The table has the rows that differ between two of them; all others that were
measured are equal. A change came with one of the versions between the two that are named.
"""


def numbers(version):
    """(2, 9, 2) of "2.9.2"."""
    return tuple(int(part) for part in version.split("."))


def load(folder, name):
    """{version: {(detail, title): row}} of a library, from the oldest version to the newest."""
    found = {}
    for file in [folder / f"{name}.json", *folder.glob(f"versions/{name}-*.json")]:
        saved = json.loads(file.read_text())
        found[saved["version"]] = {(row["detail"], row["title"]): row for row in saved["rows"]}
    return {version: found[version] for version in sorted(found, key=numbers)}


def changes(versions, key, cell):
    """[[word, first version, last version]] of a row in the versions that have measured it.

    cell: a function from a row to its word in the table."""
    spans = []
    for version, rows in versions.items():
        row = rows.get(key)
        if row is None or row["result"] == UNKNOWN:
            continue
        word = cell(row)
        if spans and spans[-1][0] == word:
            spans[-1][2] = version
        else:
            spans.append([word, version, version])
    return spans


def describe(span):
    """Such as "1.8.0 to 2.7.0: float32"."""
    word, first, last = span
    return f"{first}: {word}" if first == last else f"{first} to {last}: {word}"


def lines(folder, cell, anchor):
    """The lines of the part; folder: conformance/results. cell and anchor: the page's functions."""
    found = [HEAD.strip(), "", "| column | versions |", "|---|---|"]
    libraries = {heading: load(folder, name) for name, heading in LIBRARIES.items()}
    found += [f"| {heading} | {', '.join(versions)} |" for heading, versions in libraries.items()]
    found += ["", "| column | detail | in these versions |", "|---|---|---|"]
    for heading, versions in libraries.items():
        *_, newest = versions.values()
        for key in newest:
            spans = changes(versions, key, cell)
            if len(spans) > 1:
                detail, title = key
                words = "; ".join(describe(span) for span in spans)
                found.append(f"| {heading} | {anchor(detail)}: {title} | {words} |")
    return found
