"""The table of what changed between versions of a library."""

from conformance import versions
from conformance.explanation import NO, UNKNOWN, YES

KEY = "core 9", "the value is clipped"


def test_spans_join_versions_that_have_the_same_word_and_skip_those_that_are_not_measured():
    results = {"1.0": YES, "1.9": UNKNOWN, "1.10": YES, "2.0": NO}
    rows = {version: {KEY: {"result": result}} for version, result in results.items()}
    found = versions.changes(rows, KEY, lambda row: row["result"])
    assert [versions.describe(span) for span in found] == ["1.0 to 1.10: yes", "2.0: no"]


def test_versions_are_in_order():
    assert sorted(["1.10.0", "2.0.0", "1.9.0"], key=versions.numbers) == ["1.9.0", "1.10.0", "2.0.0"]
