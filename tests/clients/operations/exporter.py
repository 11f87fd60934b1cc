"""postgres_exporter with our queries, and promtool with what it said."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import urllib.request

import yaml

from server import until

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"
QUERIES = DOCS / "monitoring" / "queries.yaml"
COLLECTOR = DOCS / "monitoring" / "sql_exporter.yml"
ALERTS = DOCS / "monitoring" / "alerts.yml"

SAMPLE = re.compile(r"^(lock_ext\w*)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Exporter:
    """Runs as the role that docs/operations.md makes, against one database."""

    def __init__(self, database, user="lock_ext_monitor"):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/metrics"
        self.log = tempfile.TemporaryFile("w+")
        host, at = os.environ["PGHOST"], os.environ["PGPORT"]
        self.process = subprocess.Popen(
            [
                "prometheus-postgres-exporter",
                f"--web.listen-address=127.0.0.1:{port}",
                f"--extend.query-path={QUERIES}",
                "--disable-default-metrics",
                "--disable-settings-metrics",
                "--no-collector.database",
                "--no-collector.bgwriter",
            ],
            env={"DATA_SOURCE_NAME": f"host={host} port={at} user={user} dbname={database} sslmode=disable"},
            stdout=self.log,
            stderr=self.log,
        )
        until(self.answers, "the exporter answers")

    def answers(self):
        try:
            return self.text()
        except OSError:
            if self.process.poll() is not None:
                self.log.seek(0)
                raise RuntimeError(self.log.read()) from None
            return None

    def text(self):
        with urllib.request.urlopen(self.url, timeout=30) as answer:
            return answer.read().decode()

    def scrape(self):
        """Series by name and labels, which is a sorted tuple of pairs."""
        text = self.text()
        if "pg_exporter_last_scrape_error 0" not in text.replace(".0", ""):
            self.log.seek(0)
            raise AssertionError("a query failed in the exporter: " + self.log.read()[-2000:])
        series = {}
        for line in text.splitlines():
            if found := SAMPLE.match(line):
                name, labels, value = found.groups()
                series[name, tuple(sorted(LABEL.findall(labels or "")))] = float(value)
        return series

    def types(self):
        return dict(re.findall(r"^# TYPE (lock_ext\w*) (\w+)$", self.text(), re.MULTILINE))

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        self.log.close()


def value(series, name, /, **labels):
    """The one series of that name with these labels, whatever else it has."""
    found = [v for (n, has), v in series.items() if n == name and set(labels.items()) <= set(has)]
    assert len(found) == 1, f"{len(found)} series {name} {labels}"
    return found[0]


def promtool(*arguments):
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


GOOD, BAD = 60, 80  # minutes


def as_input(good, bad):
    """An hour of what was scraped in the good state, then 80 minutes of the bad one going on. The age of what is there grows by a minute a minute."""

    def run(samples, key, minutes):
        number = samples.get(key)
        if number is None or number != number:
            return f"_x{minutes}"
        ages = key[0].endswith("_seconds") and "remaining" not in key[0] and samples is bad and number > 0
        return f"{number:.17g}+{60 if ages else 0}x{minutes - 1}"

    series = []
    for key in sorted(good.keys() | bad.keys()):
        name, labels = key
        inside = ",".join(f"{k}={yaml.dump(v, default_style=chr(34)).strip()}" for k, v in labels)
        series.append({"series": f"{name}{{{inside}}}", "values": f"{run(good, key, GOOD)} {run(bad, key, BAD)}"})
    return series


def firing(good, bad, expected):
    """None if exactly the expected alerts fire in the bad state, and none was even pending in the good one; else what promtool says."""

    def test(expression, minute, names):
        samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)]
        return {"expr": expression, "eval_time": f"{minute}m", "exp_samples": samples}

    content = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": as_input(good, bad),
                "promql_expr_test": [
                    test(f"group by (alertname) (last_over_time(ALERTS[{GOOD - 1}m]))", GOOD - 1, []),
                    test(
                        f'group by (alertname) (last_over_time(ALERTS{{alertstate="firing"}}[{BAD - 1}m]))',
                        GOOD + BAD - 1,
                        expected,
                    ),
                ],
            }
        ],
    }
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        yaml.safe_dump(content, file)
        file.flush()
        status, said = promtool("test", "rules", file.name)
    return None if status == 0 else " ".join(said.split())
