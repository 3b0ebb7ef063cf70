"""A real Prometheus with the repository's configuration, and the repository's dashboard and rules."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request

import yaml

import harness

DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy")
DASHBOARD = os.path.join(DEPLOY, "grafana", "dashboards", "tcgemm.json")
RULE_FILES = ("recording_rules.yml", "alert_rules.yml")

# What a test cannot wait for, in seconds; "for" becomes 2 s. Rates need a few scrapes. Only durations
# change: thresholds, labels and the names of the records stay.
SHORT = {"5m": "8s", "10m": "8s", "15m": "10s", "30m": "10s", "1h": "10s",
         "6h": "12s", "1d": "10s", "1w": "15s"}


def shortened(rules):
    """The text of a rule file with SHORT durations in [ranges] and offsets, and 2 s for 'for:'."""
    short = re.sub(r"(?<=\[)\d+[smhdw](?=\])|(?<=offset )\d+[smhdw]\b",
                   lambda match: SHORT[match[0]], rules)
    return re.sub(r"(?<=for: )\d+[smhdw]\b", "2s", short)


def read(*path):
    with open(os.path.join(DEPLOY, *path), encoding="utf-8") as file:
        return file.read()


def panels():
    """Every panel of the dashboard that is not a row."""
    return [p for p in json.loads(read("grafana", "dashboards", "tcgemm.json"))["panels"]
            if p["type"] != "row"]


def panel_expressions():
    """[(panel/refId, PromQL)] as Grafana would send them."""
    found = []
    for panel in panels():
        for target in panel["targets"]:
            expression = target["expr"]
            for variable, value in (("$__rate_interval", "8s"), ("$instance", ".*"),
                                    ("$peak", "989")):
                expression = expression.replace(variable, value)
            found.append((f"{panel['title']}/{target['refId']}", expression))
    return found


def rules(change=lambda text: text):
    """Every rule of the repository, as dictionaries."""
    return [rule for name in RULE_FILES
            for group in yaml.safe_load(change(read("prometheus", name)))["groups"]
            for rule in group["rules"]]


def as_condition(expression):
    """An alert's expression that has a sample, 0 or 1, wherever it could fire: comparisons only say
    yes or no, and absent(X) is X. Empty then means that a selector matches nothing."""
    expression = re.sub(r"^absent\((.*)\)$", r"\1", expression.strip())
    return re.sub(r"(?<![<>=!])(==|!=|<=|>=|<|>)(?![=~])", r"\1 bool", expression)


class Prometheus:
    """Scrapes `target` every second. Use as a context manager."""

    def __init__(self, target):
        self.folder = tempfile.mkdtemp(prefix="tcgemm-prometheus-")
        config = re.sub(r"(scrape|evaluation)_interval: \w+", r"\1_interval: 1s",
                        read("prometheus", "prometheus.yml"))
        self._write("prometheus.yml", config)
        for name in RULE_FILES:
            self._write(name, shortened(read("prometheus", name)))
        self._write("targets.yml", f'- targets: ["{target}"]\n')
        self.log = ""
        self._started = threading.Event()
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={self.folder}/prometheus.yml",
             f"--storage.tsdb.path={self.folder}/data", "--web.listen-address=127.0.0.1:0"],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._started.wait(30):
            raise AssertionError(f"Prometheus did not start:\n{self.log}")

    def _write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)

    def _read(self):
        for line in self.process.stderr:
            self.log += line
            match = re.search(r'"Listening on" address=(\S+)', line)
            if match:
                self.address = match[1]
            if "Server is ready" in line:
                self._started.set()

    def get(self, path, **parameters):
        """The data of an API call; an AssertionError with Prometheus' words if it fails."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def query(self, expression, **parameters):
        """[(labels, value)] of an instant query."""
        result = self.get("query", query=expression, **parameters)["result"]
        return [(sample["metric"], float(sample["value"][1])) for sample in result]

    def value(self, expression, **parameters):
        samples = self.query(expression, **parameters)
        if len(samples) != 1:
            raise AssertionError(f"{expression} gives {samples}")
        return samples[0][1]

    def wait_scrapes(self, count):
        def scrapes():
            return sum(value for _, value in self.query("count_over_time(up[1h])"))

        wanted = scrapes() + count
        harness.wait_until(lambda: scrapes() >= wanted, timeout=count + 20, pause=0.2,
                           what=f"{count} scrapes")

    def wait_firing(self, *names):
        harness.wait_until(lambda: set(names) <= self.firing(), timeout=40, pause=0.2,
                           what=f"{names} firing")

    def firing(self):
        return {alert["labels"]["alertname"] for alert in self.get("alerts")["alerts"]
                if alert["state"] == "firing"}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(30)
        self._reader.join(10)
        self.process.stderr.close()
        shutil.rmtree(self.folder, ignore_errors=True)
