#!/usr/bin/env python3
"""docs/settings.md from the programs' own declarations.

settings_page.py PROGRAM           prints the page; PROGRAM is the built leeway-run
settings_page.py PROGRAM --check   fails when docs/settings.md says something else
"""
import os
import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/settings.md"
LINE = re.compile(r'^(\w+) = "(.*?)"  # (.*) \(default\)$')
HEAD = """# Settings

Made by `tests/tools/settings_page.py build/install/bin/leeway-run > docs/settings.md`.

A setting has one name in a job file, in the environment (`LEEWAY_<NAME IN CAPITALS>`) and as
`--set name=value`; file < environment < flag. What is wrong stops the program with file, line, key and the
nearest valid one. `leeway-run --print-config` prints a job file with all of them and says who set each.
"""
JOB = """
## Of the job

At the top level of the job file. The scheduler hands them to every server and worker. A program gives
values of its own for some (`learning_rate`); what the person who starts the job sets wins.
"""
RUN = """
## Of leeway-run

In the table `[run]` of the job file; each also has a flag, `--log-dir` for `log_dir`.
"""
TAIL = """
`--listen` gives the scheduler a fixed address. While a job runs, `LOG_DIR/job.env` (readable by its owner only)
holds `LEEWAY_SCHEDULER` and `LEEWAY_TOKEN` for `leeway-admin`:

```
set -a; . leeway-logs/TIME/job.env; leeway-admin status
```

## Faults to try

`--inject FAULT`, repeatable; obeyed in the first start of a job only, not after a restart.

| fault | what happens |
|---|---|
| `slow:worker=W,factor=F` | W's steps take F times as long |
| `kill:worker=W,at_step=N` | SIGKILL between the pushes of step N |
| `kill:server=S,at_step=N` | SIGKILL when S has applied clock N |
| `pause:worker=W,at_step=N,seconds=T` | W stands still for T seconds before step N |
| `nonfinite:worker=W,at_step=N` | one gradient of step N is infinite |
"""


def rows(lines):
    yield "| name | default | takes | why change it |"
    yield "|---|---|---|---|"
    for line in lines:
        match = LINE.match(line)
        if not match:
            continue
        name, default, rest = match.groups()
        unit, _, reason = rest.rpartition("; ") if rest.count("; ") == 1 else rest.partition("; ")
        unit = unit.replace("|", "\\|")
        yield f"| `{name}` | {f'`{default}`' if default else ''} | {unit} | {reason} |"


def page(program):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("LEEWAY_")}
    text = subprocess.run([program, "--print-config", "--", "true"], capture_output=True, text=True,
                          check=True, env=clean).stdout
    job, _, run = text.partition("[run]\n")
    return (HEAD + JOB + "\n" + "\n".join(rows(job.splitlines())) + "\n" + RUN + "\n"
            + "\n".join(rows(run.splitlines())) + "\n" + TAIL)


wanted = page(sys.argv[1])
if "--check" in sys.argv:
    if PAGE.read_text(encoding="utf-8") != wanted:
        sys.exit(f"docs/settings.md is out of date: tests/tools/settings_page.py {sys.argv[1]} > docs/settings.md")
    print("settings: docs/settings.md says what the programs say")
else:
    print(wanted, end="")
