#!/usr/bin/env python3
"""Turns what the tests in the machine left into lines to read and a log like meson's.

    report.py RESULTS_FOLDER TESTLOG.json     exit code 0 = every test passed

RESULTS_FOLDER has NAME.log, NAME.status and NAME.seconds for each test, NAME.log alone for one that
never ended.
"""
import json
import pathlib
import re
import sys

SUMMARY = re.compile(r"test cases:\s*(\d+)")


def text_of(path: pathlib.Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def main(folder: str, testlog: str) -> int:
    logs = sorted(pathlib.Path(folder).glob("*.log"), key=lambda path: path.stat().st_mtime)
    all_good = bool(logs)
    with open(testlog, "w", encoding="utf-8") as out:
        for log in logs:
            output = text_of(log)
            status = text_of(log.with_suffix(".status")).strip()
            seconds = text_of(log.with_suffix(".seconds")).strip()
            result = {"0": "OK", "124": "TIMEOUT", "137": "TIMEOUT", "": "INTERRUPT"}.get(status, "FAIL")
            all_good &= result == "OK"
            cases = SUMMARY.search(output)
            count = f"{cases[1]} test cases" if cases else ""
            print(f"{log.stem:<14} {result:<9} {seconds or '?':>4} s  {count}")
            if result != "OK":
                print(f"--- {log}:", *output.splitlines()[-40:], sep="\n")
            entry = {"name": log.stem, "result": result, "stdout": output}
            out.write(json.dumps(entry) + "\n")
    return 0 if all_good else 1


sys.exit(main(*sys.argv[1:]))
