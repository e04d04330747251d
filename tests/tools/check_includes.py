#!/usr/bin/env python3
"""Who may include whom: the table of ARCHITECTURE.md, enforced. Also what may lie at the top level."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEDULER_CLIENT = {"scheduler/client.h", "scheduler_types.h"}
# folder -> (folders whose every header it may include, single headers of others)
TABLE = {
    "common": (set(), set()),
    "kernels": ({"common"}, set()),
    "transport": ({"common"}, set()),
    "storage": ({"common"}, set()),
    "scheduler": ({"common", "storage"}, {"scheduler_types.h"}),
    "server": ({"common", "kernels", "transport", "storage"}, SCHEDULER_CLIENT),
    "worker": ({"common", "kernels", "transport", "storage"}, SCHEDULER_CLIENT),
    "examples": ({"common", "worker"}, {"kernels/backend.h"}),
}
TOP = {"meson.build", "meson_options.txt", "server", "worker", "transport", "kernels", "storage",
       "scheduler", "tests", "examples", "README.md", "common", "docs", "ARCHITECTURE.md",
       "CONTRIBUTING.md", "LICENSE"}
# What common/ must not touch: it has no I/O, no threads, no device, no fabric.
NOT_IN_COMMON = re.compile(r"<(thread|fstream|filesystem|rdma/|cuda|sys/socket|rocksdb|thrift)")
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')


def problems():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in files.stdout.split("\n"):
        path = pathlib.PurePosixPath(name)
        if not name:
            continue
        top = path.parts[0]
        if not top.startswith(".") and top not in TOP:
            yield f"{name}: nothing called '{top}' belongs at the top level"
        if top not in TABLE or path.suffix not in {".h", ".cc", ".cu", ".cuh"}:
            continue
        folders, headers = TABLE[top]
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            quote, header = match.groups()
            if top == "common" and NOT_IN_COMMON.search(line):
                yield f"{name}:{number}: common/ may not include <{header}>"
            if quote == "<":
                continue
            owner = header.split("/")[0]
            generated = "/" not in header and header == "scheduler_types.h"
            if header in headers or owner in folders or owner == top:
                continue
            if top == "scheduler" and "/" not in header:
                continue  # the other generated headers
            yield (f"{name}:{number}: {top}/ may not include "
                   f"{'the generated ' if generated else ''}{header}")


found = list(problems())
print("\n".join(found) if found else "includes: every folder keeps to its table")
sys.exit(1 if found else 0)
