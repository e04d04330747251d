#!/usr/bin/env python3
"""Runs every benchmark at a small size and reads its JSON. No figure is judged here: a loaded
machine is slow, but a ratio is always a finite number above zero."""

import json
import math
import subprocess
import sys

DEADLINE_SECONDS = 120
BENCHES = {
    "apply": ["apply", "--master-mib", "4", "--rounds", "1"],
    "transport-tcp": ["transport", "--fabric", "tcp", "--rounds", "1"],
    "transport-shm": ["transport", "--fabric", "shm", "--rounds", "1"],
    "pushpull-tcp": ["pushpull", "--fabric", "tcp", "--rounds", "1", "--model-mib", "4",
                     "--partition-mib", "1", "--servers", "2", "--workers", "2"],
    "pushpull-shm": ["pushpull", "--fabric", "shm", "--rounds", "1", "--model-mib", "4",
                     "--partition-mib", "1", "--servers", "2", "--workers", "2"],
    "adam-shm": ["pushpull", "--fabric", "shm", "--rounds", "1", "--model-mib", "4",
                     "--partition-mib", "1", "--workers", "2", "--optimizer", "adam"],
    "contention-shm": ["contention", "--fabric", "shm", "--rounds", "1", "--model-mib", "4", "--partition-mib", "1"],
    "small-tcp": ["small", "--fabric", "tcp", "--rounds", "1"],
    "small-shm": ["small", "--fabric", "shm", "--rounds", "1"],
    "checksum-tcp": ["checksum", "--fabric", "tcp", "--rounds", "1"],
    "latency-tcp": ["latency", "--fabric", "tcp", "--rounds", "1"],
    "latency-shm": ["latency", "--fabric", "shm", "--rounds", "1"],
}


def refuse_constant(text):
    raise ValueError(f"{text} is no JSON")


def check(bench, document):
    assert document["bench"] == bench, document["bench"]
    assert document["machine"]["cores"] > 0
    assert document["cases"], "no case"
    for case in document["cases"]:
        assert case["name"] and case["unit"], case
        for field in ("value", "limit", "ratio", "min", "max"):
            assert math.isfinite(case[field]) and case[field] > 0, (field, case)
        assert case["min"] <= case["value"] <= case["max"], case


def main():
    program, which = sys.argv[1:]
    arguments = BENCHES[which]
    run = subprocess.run([program, "--json", *arguments], stdout=subprocess.PIPE, text=True,
                         timeout=DEADLINE_SECONDS, check=False)
    if run.returncode != 0:
        sys.exit(f"leeway-bench {which} exits {run.returncode}")
    check(arguments[0], json.loads(run.stdout, parse_constant=refuse_constant))


if __name__ == "__main__":
    main()
