"""See `run`."""

import contextlib
import re
import subprocess
import sys
import traceback

import monitoring
import pages
import server

failed = 0


def version():
    """Of the exporter and of promtool, which are what can be old or new."""

    def ask(program):
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        return re.search(r"version (\d+\.\d+\.\d+)", done.stdout + done.stderr)[1]

    return f"postgres_exporter-{ask('prometheus-postgres-exporter')}/prometheus-{ask('promtool')}"


@contextlib.contextmanager
def report(what):
    """A line for each check. One that fails does not end the others."""
    global failed
    try:
        yield
    except Exception as error:  # whatever it is, it is told
        failed += 1
        traceback.print_exc()
        why = " ".join(str(error).split())[:300] or type(error).__name__
        print(f"not ok operations {VERSION} - {what}: {why}", flush=True)
    else:
        print(f"ok operations {VERSION} - {what}", flush=True)


VERSION = version()
server.make_base(pages.role_blocks())
try:
    monitoring.check_values(report)
    monitoring.check_alerts(report)
    pages.check(report)
finally:
    server.drop_all()
sys.exit(1 if failed else 0)
