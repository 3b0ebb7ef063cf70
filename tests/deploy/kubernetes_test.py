#!/usr/bin/env python3
"""deploy/kubernetes: what kustomize makes of it, against the API's own model and against the server.

kubernetes_test.py --write writes the copy of the Prometheus rules that the operator wants.
"""

import copy
import functools
import os
import re
import sys
import tempfile
import unittest

import kubernetes.client
import yaml

import deployed
import kustomize

RULES = deployed.path("kubernetes", "components", "monitoring", "rules.yaml")
# Debian's client is of Kubernetes 1.22; autoscaling/v2 is v2beta2 under its final name.
MODELS = {"v1": "V1", "apps/v1": "V1", "policy/v1": "V1", "networking.k8s.io/v1": "V1",
          "autoscaling/v2": "V2beta2"}
CUSTOM = {"ServiceMonitor", "PrometheusRule"}


class Readable(yaml.SafeDumper):
    """Texts of several lines stay that."""


def _text(dumper, text):
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Readable.add_representer(str, _text)


def prometheus_rule():
    """The text of rules.yaml, made of the rules' own files."""
    groups = [group for name in ("recording_rules.yml", "alert_rules.yml")
              for group in deployed.load("prometheus", name)["groups"]]
    resource = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule",
                "metadata": {"name": "tcgemm",
                             "labels": {"app.kubernetes.io/name": "tcgemm",
                                        "app.kubernetes.io/component": "server"}},
                "spec": {"groups": groups}}
    return ("# Made of deploy/prometheus by tests/deploy/kubernetes_test.py --write: change it there.\n"
            + yaml.dump(resource, Dumper=Readable, sort_keys=False, width=1000))


def check_model(value, kind, where):
    """Every key and type of `value` as the API's model has it, and what the model requires."""
    listed = re.fullmatch(r"list\[(.+)\]", kind)
    mapped = re.fullmatch(r"dict\(str, (.+)\)", kind)
    simple = {"str": str, "int": int, "bool": bool, "float": (int, float)}
    if listed:
        assert isinstance(value, list), f"{where} must be a list"
        for i, item in enumerate(value):
            check_model(item, listed[1], f"{where}[{i}]")
    elif mapped:
        assert isinstance(value, dict), f"{where} must be a map"
        for key, item in value.items():
            check_model(item, mapped[1], f"{where}.{key}")
    elif kind in simple:
        assert isinstance(value, simple[kind]), f"{where} must be {kind}, is {value!r}"
        assert kind == "bool" or not isinstance(value, bool), f"{where} must be {kind}"
    elif kind == "object":  # a number or a name, like a port
        assert isinstance(value, (str, int)), f"{where} must be a number or a string"
    else:
        check_object(value, getattr(kubernetes.client, kind), where)


def check_object(value, model, where):
    assert isinstance(value, dict), f"{where} must be a {model.__name__}"
    names = {json: python for python, json in model.attribute_map.items()}
    for key, item in value.items():
        assert key in names, f"{where}: {model.__name__} has no field {key}"
        check_model(item, model.openapi_types[names[key]], f"{where}.{key}")
    # Its constructor refuses what lacks a required field.
    model(**{names[key]: item for key, item in value.items()})


@functools.cache
def _builds():
    return {name: kustomize.build(deployed.path("kubernetes", *name.split("/")))
            for name in ("base", "overlays/gpu")}


def builds():
    """{folder: resources}, the caller's to change."""
    return copy.deepcopy(_builds())


def labels_of(selector):
    return selector.get("matchLabels", selector)


class KubernetesTest(unittest.TestCase):
    def each(self, kind):
        """(build, resource) of a kind, one in each build."""
        for name, resources in builds().items():
            found = [r for r in resources if r["kind"] == kind]
            self.assertEqual(len(found), 1, f"{name}: {kind}")
            yield name, found[0]

    def one(self, build, kind):
        found, = (r for r in builds()[build] if r["kind"] == kind)
        return found

    def container(self, deployment):
        container, = deployment["spec"]["template"]["spec"]["containers"]
        return container

    def server_configuration(self, build, deployment):
        """What the server makes of its file, its arguments and its environment."""
        data = self.one(build, "ConfigMap")["data"]
        container = self.container(deployment)
        argument, = container["args"]
        mount, = container["volumeMounts"]
        name = argument.removeprefix(f"--config={mount['mountPath']}/")
        env = {**deployed.variables(container["image"].rsplit(":", 1)[1]),
               **{v["name"]: v["value"] for v in container["env"]}}
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(data[name])
            file.flush()
            return deployed.configuration([f"--config={file.name}"], env)

    def test_every_file_is_used(self):
        used = set()
        for where, _, names in os.walk(deployed.path("kubernetes")):
            if "kustomization.yaml" in names:
                text = deployed.read(os.path.relpath(where, deployed.DEPLOY), "kustomization.yaml")
                used |= {os.path.join(where, n) for n in names if re.search(rf"\b{n}\b", text)
                         or n == "kustomization.yaml"}
        there = {os.path.join(where, n) for where, _, names in os.walk(deployed.path("kubernetes"))
                 for n in names}
        self.assertEqual(there - used, set())

    def test_the_api_knows_every_field(self):
        seen = set()
        for name, resources in builds().items():
            for resource in resources:
                kind = resource["kind"]
                seen.add(kind)
                if kind not in CUSTOM:
                    model = getattr(kubernetes.client, MODELS[resource["apiVersion"]] + kind)
                    check_object(resource, model, f"{name}: {kind}")
        self.assertEqual(seen - CUSTOM, {"Deployment", "Service", "PodDisruptionBudget",
                                         "NetworkPolicy", "ConfigMap", "HorizontalPodAutoscaler"})

    def test_the_check_of_fields_can_fail(self):
        for change, words in (
                (lambda d: d["spec"].update(replica=2), "no field replica"),
                (lambda d: d["spec"].update(replicas="2"), "must be int"),
                (lambda d: d["spec"].pop("selector"), "selector"),
                (lambda d: self.container(d)["livenessProbe"]["httpGet"].pop("port"), "port")):
            deployment = self.one("base", "Deployment")
            change(deployment)
            with self.assertRaisesRegex((AssertionError, ValueError), words):
                check_object(deployment, kubernetes.client.V1Deployment, "it")

    def test_selectors_match(self):
        for build, deployment in self.each("Deployment"):
            labels = deployment["spec"]["template"]["metadata"]["labels"]
            pod_selectors = [deployment["spec"]["selector"]]
            pod_selectors += [c["labelSelector"] for c in
                              deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]]
            for kind, key in (("Service", "selector"), ("PodDisruptionBudget", "selector"),
                              ("NetworkPolicy", "podSelector")):
                pod_selectors.append(self.one(build, kind)["spec"][key])
            for selector in pod_selectors:
                wanted = labels_of(selector)
                self.assertTrue(wanted)  # an empty one takes every pod of the namespace
                self.assertLessEqual(wanted.items(), labels.items())
        service = self.one("overlays/gpu", "Service")
        monitor = self.one("overlays/gpu", "ServiceMonitor")
        self.assertLessEqual(monitor["spec"]["selector"]["matchLabels"].items(),
                             service["metadata"]["labels"].items())
        # The rules want job="tcgemm".
        self.assertEqual(service["metadata"]["labels"][monitor["spec"]["jobLabel"]], "tcgemm")
        target = self.one("overlays/gpu", "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
        self.assertEqual(target, {"apiVersion": "apps/v1", "kind": "Deployment", "name": "tcgemm"})

    def test_ports_match_the_server(self):
        for build, deployment in self.each("Deployment"):
            config = self.server_configuration(build, deployment)
            ports = {p["name"]: p["containerPort"] for p in self.container(deployment)["ports"]}
            self.assertEqual(ports, {"grpc": int(config["listen"][0].rsplit(":", 1)[1]),
                                     "metrics": int(config["metrics-listen"].rsplit(":", 1)[1])})
            service = self.one(build, "Service")["spec"]
            self.assertEqual(service["clusterIP"], "None")
            self.assertEqual({p["targetPort"]: p["port"] for p in service["ports"]}, ports)
            allowed = [p["port"] for rule in self.one(build, "NetworkPolicy")["spec"]["ingress"]
                       for p in rule["ports"]]
            self.assertEqual(allowed, list(ports))
        endpoint, = self.one("overlays/gpu", "ServiceMonitor")["spec"]["endpoints"]
        self.assertIn(endpoint["port"], ports)

    def test_probes_ask_for_pages_that_exist(self):
        with open(os.path.join(deployed.ROOT, "server", "http", "http_server.cc"),
                  encoding="utf-8") as file:
            pages = set(re.findall(r'path == "(/\w+)"', file.read()))
        for _, deployment in self.each("Deployment"):
            container = self.container(deployment)
            for probe, page in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"),
                                ("readinessProbe", "/readyz")):
                self.assertEqual(container[probe]["httpGet"], {"path": page, "port": "metrics"})
                self.assertIn(page, pages)

    def test_the_drain_fits_the_grace_period_and_the_budgets_fit_the_memory(self):
        for build, deployment in self.each("Deployment"):
            config = self.server_configuration(build, deployment)
            container = self.container(deployment)
            command = container["lifecycle"]["preStop"]["exec"]["command"]
            self.assertEqual(command[0], "sleep")
            pause = float(command[1]) + deployed.longest_drain_s(config)
            pod = deployment["spec"]["template"]["spec"]
            self.assertGreater(pod["terminationGracePeriodSeconds"], pause + 5)
            self.assertGreater(deployed.number(config["drain-delay"]), 0)
            memory = container["resources"]["limits"]["memory"]
            self.assertEqual(container["resources"]["requests"]["memory"], memory)
            self.assertLess(deployed.host_budgets(config), 0.75 * deployed.number(memory))
            self.assertLessEqual(config["cpu-threads"],
                                 int(container["resources"]["requests"]["cpu"]))

    def test_pods_are_hardened(self):
        user = re.search(r"USER (\d+):(\d+)", deployed.read("Dockerfile"))
        for _, deployment in self.each("Deployment"):
            pod = deployment["spec"]["template"]["spec"]
            self.assertEqual(pod["securityContext"],
                             {"runAsNonRoot": True, "runAsUser": int(user[1]),
                              "runAsGroup": int(user[2]),
                              "seccompProfile": {"type": "RuntimeDefault"}})
            self.assertIs(pod["automountServiceAccountToken"], False)
            self.assertIs(pod["enableServiceLinks"], False)
            self.assertEqual(self.container(deployment)["securityContext"],
                             {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                              "capabilities": {"drop": ["ALL"]}})

    def test_the_gpu_overlay(self):
        deployment = self.one("overlays/gpu", "Deployment")
        container = self.container(deployment)
        self.assertEqual(container["image"], "registry.example.com/tcgemm:cuda")
        self.assertEqual(container["resources"]["limits"]["nvidia.com/gpu"], "1")
        self.assertEqual(self.server_configuration("overlays/gpu", deployment)["device"], "cuda")
        # Both would otherwise fight over the number.
        self.assertNotIn("replicas", deployment["spec"])
        # The base is untouched by what was built of it.
        self.assertEqual(self.container(self.one("base", "Deployment"))["image"], "tcgemm:cpu")
        self.assertEqual({r["metadata"]["namespace"] for r in builds()["overlays/gpu"]}, {"tcgemm"})

    def test_the_volume_is_the_generated_map(self):
        for build, deployment in self.each("Deployment"):
            volume, = deployment["spec"]["template"]["spec"]["volumes"]
            self.assertEqual(volume["configMap"]["name"],
                             self.one(build, "ConfigMap")["metadata"]["name"])
            self.assertEqual(self.container(deployment)["volumeMounts"][0]["name"], volume["name"])

    def test_the_autoscaler_reads_what_the_adapter_makes(self):
        rule, = deployed.load("kubernetes", "components", "autoscaling", "adapter_rule.yaml")["rules"]
        metric, = self.one("overlays/gpu", "HorizontalPodAutoscaler")["spec"]["metrics"]
        self.assertEqual(metric["pods"]["metric"]["name"], rule["name"]["as"])
        series = re.match(r"\w+", rule["seriesQuery"])[0]
        with open(os.path.join(deployed.ROOT, "server", "http", "metrics.cc"),
                  encoding="utf-8") as file:
            self.assertIn(f'"{series}"', file.read())

    def test_the_operators_rules_are_the_rules(self):
        with open(RULES, encoding="utf-8") as file:
            self.assertEqual(file.read(), prometheus_rule(),
                             "run tests/deploy/kubernetes_test.py --write")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        with open(RULES, "w", encoding="utf-8") as out:
            out.write(prometheus_rule())
    else:
        deployed.main()
