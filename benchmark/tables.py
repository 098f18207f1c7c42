"""Reads and writes small tables, files of CSV with a row for each task, program and seed."""

import csv
import io

from filelock import FileLock

from benchmark.results import replace_file


def read_rows(file):
    """The rows of a table, [{column: text}, ...]; an empty list where there is no such file."""
    if not file.exists():
        return []
    with file.open() as lines:
        return list(csv.DictReader(lines))


def put_row(file, columns, keys, row):
    """Writes a row, {column: value}, into a table, in place of the one with the same values of `keys`.

    Other items of `row` than `columns` are left out."""
    with FileLock(file.with_suffix(".lock")):  # several programs may write at once
        rows = {}
        for each in [*read_rows(file), row]:
            rows[tuple(str(each[key]) for key in keys)] = each
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())
        replace_file(file, text.getvalue().encode())
