"""Run the mutations in parallel, and print the test that fails for each: `make mutations`.

    make mutations ARGS="counting/children"      only mutations whose "module: name" contains the text

Exits with 1 if a mutation makes no test fail or could not be tried, and with 2 if no mutation was tried.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from tests.mutations import Mutation, failing_test, mutations


@dataclass(frozen=True)
class Result:
    """The result of one mutation: the test that failed ("": no test), and the seconds of the run."""

    mutation: Mutation
    detected_by: str
    took_s: float
    broken: str = ""
    """Why the mutation could not be tried; empty if it was tried."""

    def row(self) -> str:
        """Returns the lines of the table: how the mutation ended, and the test that failed or why it was not tried."""
        state = "BROKEN" if self.broken else "noticed" if self.detected_by else "SURVIVED"
        title = f"{self.mutation.module}: {self.mutation.name}"
        return f"{state:<9}{self.took_s:>6.1f} s  {title}\n{'':19}{self.broken or self.detected_by}".rstrip()


def try_mutation(mutation: Mutation) -> Result:
    """Try one mutation in a folder of its own."""
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            detected_by, broken = failing_test(mutation.tests, Path(folder), mutation), ""
        except Exception as error:  # the table reports it, and the other mutations run
            detected_by, broken = "", f"{type(error).__name__}: {error}"
    return Result(mutation, detected_by, time.monotonic() - started_s, broken)


def main() -> int:
    """Try the mutations. Returns the exit status, as the module's docstring says."""
    parser = argparse.ArgumentParser(
        prog="make mutations", description="Remove each guard, one at a time: a test must fail."
    )
    parser.add_argument("part", nargs="*", help="only mutations whose `module: name` contains this text")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2, help="how many run at once (the cores)")
    arguments = parser.parse_args()
    part = " ".join(arguments.part)
    selected = [mutation for mutation in mutations() if part in f"{mutation.module}: {mutation.name}"]
    if not selected:
        print(f"make mutations: no mutation contains {part!r}", file=sys.stderr)
        return 2
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:  # a test that always fails would notice every mutation
        if failed := failing_test(
            dict.fromkeys(test for mutation in selected for test in mutation.tests), Path(folder)
        ):
            print(f"make mutations: this fails with every guard in place: {failed}", file=sys.stderr)
            return 2
    with ThreadPoolExecutor(arguments.jobs) as threads:
        results = []
        for result in tqdm(threads.map(try_mutation, selected), total=len(selected), unit="mutation", disable=None):
            tqdm.write(result.row())
            results.append(result)
    noticed = sum(bool(result.detected_by) for result in results)
    print(f"{noticed} of {len(results)} noticed in {(time.monotonic() - started_s) / 60:.1f} min")
    return int(noticed < len(results))


if __name__ == "__main__":
    sys.exit(main())
