#!/usr/bin/env python3
"""Adds up the test cases of a meson test run: prints "PASSED FAILED", and on the standard error
which tests failed and the lines of their output that say why.

A doctest binary counts as many as it has cases; another test, a crash or a time-out counts as one.
"""
import json
import re
import sys

SUMMARY = re.compile(r"test cases:\s*(\d+)\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed")

TELLING = re.compile(r"SUMMARY: |runtime error: |ERROR: |FATAL|TEST CASE: |^  #[0-4] |Error:|^FAILED")
SHOWN = 15


def tell(test: dict) -> None:
    print(f"FAILED {test['name']}: {test['result']}", file=sys.stderr)
    output = (test.get("stdout") or "") + (test.get("stderr") or "")
    telling = [line for line in output.splitlines() if TELLING.search(line)]
    for line in telling[:SHOWN]:
        print(f"    {line.strip()[:200]}", file=sys.stderr)


def main(path: str) -> None:
    passed = failed = 0
    try:
        with open(path, encoding="utf-8") as log:
            for line in log:
                test = json.loads(line)
                good = test["result"] in ("OK", "EXPECTEDFAIL")
                if test["result"] == "SKIP":
                    continue
                summary = SUMMARY.search(test.get("stdout") or "")
                ok, bad = (int(summary[2]), int(summary[3])) if summary else (int(good), 0)
                if not good:
                    bad = max(bad, 1)
                    tell(test)
                passed += ok
                failed += bad
    except OSError as error:
        print(f"no test ran: {error}", file=sys.stderr)
        failed += 1
    print(passed, failed)


main(sys.argv[1])
