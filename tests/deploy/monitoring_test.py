#!/usr/bin/env python3
"""Dashboard, rules and their documentation, without a server: form, promtool, the rules' own tests.
tests/e2e/dashboards_test.py runs them on a live one."""

import glob
import json
import os
import re
import subprocess
import unittest

import yaml

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PROMETHEUS = os.path.join(ROOT, "deploy", "prometheus")
GRAFANA = os.path.join(ROOT, "deploy", "grafana")
RULE_TESTS = sorted(glob.glob(os.path.join(ROOT, "tests", "prometheus", "*_test.yml")))
ROWS = ["Status", "Rate, errors, latency", "Stages", "Queue, batch size, coalescing",
        "TFLOPS against peak, PCIe", "GPU", "Correctness", "Process", "Who may call"]


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def alerts():
    groups = yaml.safe_load(read(os.path.join(PROMETHEUS, "alert_rules.yml")))["groups"]
    return [rule for group in groups for rule in group["rules"]]


class RulesTest(unittest.TestCase):
    def promtool(self, *args):
        done = subprocess.run(["promtool", *args], capture_output=True, text=True, timeout=120,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_promtool_accepts_the_configuration(self):
        self.promtool("check", "config", os.path.join(PROMETHEUS, "prometheus.yml"))
        for name in ("recording_rules.yml", "alert_rules.yml"):
            self.promtool("check", "rules", os.path.join(PROMETHEUS, name))

    def test_the_rules_do_what_their_tests_say(self):
        self.assertEqual(len(RULE_TESTS), 2)
        self.promtool("test", "rules", *RULE_TESTS)

    def test_every_alert_is_tested_firing_and_not(self):
        firing, silent = set(), set()
        for path in RULE_TESTS:
            for test in yaml.safe_load(read(path))["tests"]:
                # Whoever of the series does not fire shows that an alert stays silent, too.
                instances = {match for series in test["input_series"]
                             for match in re.findall(r'(?:instance|job)="(\w+)"', series["series"])}
                for check in test["alert_rule_test"]:
                    name = check["alertname"]
                    if not check["exp_alerts"]:
                        silent.add(name)
                        continue
                    firing.add(name)
                    fires = {value for alert in check["exp_alerts"]
                             for value in alert["exp_labels"].values()}
                    if instances - fires:
                        silent.add(name)
        names = {alert["alert"] for alert in alerts()}
        self.assertGreater(len(names), 12)
        self.assertEqual((names - firing, names - silent), (set(), set()))
        self.assertEqual(firing | silent, names)

    def test_every_alert_leads_to_its_section(self):
        operations = read(os.path.join(ROOT, "docs", "OPERATIONS.md"))
        for alert in alerts():
            name = alert["alert"]
            self.assertEqual(alert["annotations"]["runbook"],
                             f"docs/OPERATIONS.md#{name.lower()}", name)
            section = re.search(rf"(?ms)^### {name}\n(.*?)^##", operations)
            self.assertIsNotNone(section, f"docs/OPERATIONS.md has no section {name}")
            for part in ("**Means**", "**Look at**", "**Do**"):
                self.assertIn(part, section[1], name)
            self.assertIn(alert["labels"]["severity"], ("page", "ticket"), name)
            self.assertIn("summary", alert["annotations"], name)


class DashboardTest(unittest.TestCase):
    def setUp(self):
        self.dashboard = json.loads(read(os.path.join(GRAFANA, "dashboards", "tcgemm.json")))
        self.panels = [p for p in self.dashboard["panels"] if p["type"] != "row"]

    def test_rows(self):
        rows = [p["title"] for p in self.dashboard["panels"] if p["type"] == "row"]
        self.assertEqual(rows, ROWS)
        self.assertGreater(len(self.panels), 40)

    def test_ids_are_unique_and_nothing_overlaps(self):
        self.assertEqual(len({p["id"] for p in self.dashboard["panels"]}),
                         len(self.dashboard["panels"]))
        taken = {}
        for panel in self.dashboard["panels"]:
            at = panel["gridPos"]
            self.assertLessEqual(at["x"] + at["w"], 24, panel["title"])
            for x in range(at["x"], at["x"] + at["w"]):
                for y in range(at["y"], at["y"] + at["h"]):
                    self.assertNotIn((x, y), taken, f"{panel['title']} on {taken.get((x, y))}")
                    taken[(x, y)] = panel["title"]

    def test_every_panel_says_what_it_is_and_what_nothing_means(self):
        for panel in self.panels:
            title = panel["title"]
            self.assertTrue(panel["description"].endswith("."), title)
            self.assertTrue(panel["fieldConfig"]["defaults"]["noValue"], title)
            sources = [panel["datasource"], *(t["datasource"] for t in panel["targets"])]
            for source in sources:
                self.assertEqual(source, {"type": "prometheus", "uid": "${datasource}"}, title)
            if panel["type"] == "heatmap":
                self.assertEqual(panel["targets"][0]["format"], "heatmap", title)
            elif panel["type"] != "table":
                self.assertIn("unit", panel["fieldConfig"]["defaults"], title)

    def test_variables(self):
        variables = {v["name"]: v for v in self.dashboard["templating"]["list"]}
        self.assertEqual(list(variables), ["datasource", "instance", "peak"])
        used = set(re.findall(r"\$(\w+)", " ".join(
            t["expr"] for p in self.panels for t in p["targets"])))
        self.assertEqual(used, {"instance", "peak", "__rate_interval"})
        # Nothing but "All" and what there is; no name of somebody's machine is stored.
        self.assertEqual(variables["instance"]["options"], [])

    def test_a_dashboard_shows_every_alert_and_every_metric(self):
        text = json.dumps(self.dashboard)
        table = "".join(read(os.path.join(ROOT, "server", "http", name))
                        for name in ("metrics.cc", "gpu_metrics.cc"))
        metrics = set(re.findall(r'"((?:tcgemm|process)_[a-z_]+)"', table))
        self.assertGreater(len(metrics), 25)
        self.assertEqual({m for m in metrics if m not in text}, set())
        self.assertIn('alertname=~\\"Tcgemm.+\\"', text)
        self.assertTrue(all(a["alert"].startswith("Tcgemm") for a in alerts()))

    def test_it_is_provisioned(self):
        folder = os.path.join(GRAFANA, "provisioning")
        source = yaml.safe_load(read(os.path.join(folder, "datasources", "prometheus.yml")))
        self.assertEqual(source["datasources"][0]["type"], "prometheus")
        provider = yaml.safe_load(read(os.path.join(folder, "dashboards", "tcgemm.yml")))
        self.assertEqual(provider["providers"][0]["type"], "file")


if __name__ == "__main__":
    unittest.main()
