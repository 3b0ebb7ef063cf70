#!/usr/bin/env python3
"""Dockerfile and compose files: form, pins, hardening, and that every name in them exists. There is no
engine here; the schema is that of Debian's docker-compose."""

import importlib.util
import json
import os
import re
import subprocess
import unittest
import unittest.mock

import jsonschema

import deployed


def merged(base, over):
    """What Compose makes of two files: maps are merged, the rest is replaced."""
    if not (isinstance(base, dict) and isinstance(over, dict)):
        return over
    return {key: merged(base[key], over[key]) if key in base and key in over else
            over.get(key, base.get(key)) for key in {**base, **over}}


def compose(*names):
    """compose.yaml with others on top, after Compose's own schema has accepted each."""
    package, = importlib.util.find_spec("compose").submodule_search_locations
    with open(os.path.join(package, "config", "compose_spec.json"), encoding="utf-8") as file:
        schema = json.load(file)
    schema["properties"]["name"] = {"type": "string"}  # younger than Debian's Compose
    whole = {}
    for name in ("compose.yaml", *names):
        one = deployed.load(name)
        jsonschema.Draft201909Validator(schema).validate(one)
        whole = merged(whole, one)
    return whole


class DockerfileTest(unittest.TestCase):
    def test_bases_are_pinned_and_can_be_replaced(self):
        defaults = dict(re.findall(r"(?m)^ARG (\w+)=(\S+)", deployed.read("Dockerfile")))
        self.assertEqual(defaults.pop("COMMIT"), "unknown")
        self.assertEqual(set(defaults), {"BASE", "CUDA_BASE", "CUDA_BUILD_BASE"})
        for base in defaults.values():
            self.assertRegex(base, r":.*\d+\.\d+")
        self.assertEqual({base for base, _ in deployed.stages().values()},
                         {f"${{{name}}}" for name in defaults})
        # The binary of the GPU image uses the libraries of the distribution that built it.
        self.assertIn(defaults["CUDA_BASE"].replace(":", ""), defaults["CUDA_BUILD_BASE"])

    def test_what_the_images_run_as(self):
        self.assertEqual(list(deployed.stages())[-1], "cpu")  # the default
        self.assertEqual(set(deployed.stages()), {"cpu", "cuda", "cpu-build", "cuda-build"})
        for target in ("cpu", "cuda"):
            lines = deployed.stages()[target][1]
            self.assertIn("USER 10001:10001", lines)
            self.assertIn("STOPSIGNAL SIGTERM", lines)
            self.assertIn('ENTRYPOINT ["tcgemm-server"]', lines)  # no shell between it and signals
            config = deployed.configuration(env=deployed.variables(target))
            ports = {address.rsplit(":", 1)[1]
                     for address in [*config["listen"], config["metrics-listen"]]}
            self.assertEqual({f"EXPOSE {' '.join(sorted(ports, key=int, reverse=True))}"},
                             {line for line in lines if line.startswith("EXPOSE")})

    def test_the_health_check_is_a_command_that_the_client_knows(self):
        for target in ("cpu", "cuda"):
            check, = (line for line in deployed.stages()[target][1] if line.startswith("HEALTHCHECK"))
            words = re.findall(r'"([^"]+)"', check)
            self.assertEqual(words[0], "tcgemm-client")
            # Nobody listens on port 1: 3 says unreachable, where a wrong command line says 2.
            words = [word.replace(":50051", ":1").replace("4s", "200ms") for word in words[1:]]
            done = subprocess.run([deployed.CLIENT, *words], capture_output=True, check=False)
            self.assertEqual(done.returncode, 3, done.stderr)

    def test_nothing_is_of_one_architecture(self):
        for name in ("Dockerfile", "image.sh", "install_deps.sh"):
            self.assertNotRegex(deployed.read(name), r"x86_64|amd64|i386|aarch64|arm64")

    def test_it_copies_and_calls_what_there_is(self):
        for base, lines in deployed.stages().values():
            for line in lines:
                for name in re.findall(r"(?<![\w/])deploy/\w+\.sh", line):
                    self.assertTrue(os.access(os.path.join(deployed.ROOT, name), os.X_OK), name)
        ignored = deployed.read("..", ".dockerignore").split()
        self.assertEqual(ignored, ["build", ".git"])


class ComposeTest(unittest.TestCase):
    def setUp(self):
        self.plain = compose()
        self.cuda = compose("compose.cuda.yaml")

    def test_the_schema_can_refuse(self):
        for service in ({"image": "x", "memory": "1g"}, {"image": "x", "read_only": "yes"}):
            with self.assertRaises(jsonschema.ValidationError):
                with unittest.mock.patch.object(deployed, "load",
                                                lambda _, s=service: {"services": {"s": s}}):
                    compose()

    def test_every_service_is_hardened_limited_and_watched(self):
        for services in (self.plain["services"], self.cuda["services"]):
            self.assertEqual(set(services), {"server", "prometheus", "grafana"})
            for name, service in services.items():
                self.assertIs(service["read_only"], True, name)
                self.assertEqual(service["cap_drop"], ["ALL"], name)
                self.assertEqual(service["security_opt"], ["no-new-privileges:true"], name)
                self.assertIn("mem_limit", service, name)
                self.assertIn("pids_limit", service, name)
                self.assertEqual(service["healthcheck"]["test"][0], "CMD", name)
                self.assertNotIn("privileged", service, name)
                for port in service["ports"]:
                    self.assertTrue(port.startswith("127.0.0.1:"), f"{name}: {port}")
                if "build" not in service:
                    self.assertRegex(service["image"], r":v?\d+\.\d+\.\d+$", name)

    def test_what_is_mounted_exists_and_is_read_only(self):
        mounts = 0
        for name, service in self.plain["services"].items():
            for volume in service.get("volumes", []):
                source, _, options = f"{volume}:".split(":")[:3]
                if source in self.plain["volumes"]:
                    continue
                mounts += 1
                self.assertTrue(os.path.exists(deployed.path(source)), f"{name}: {source}")
                self.assertEqual(options, "ro", f"{name}: {source}")
        self.assertEqual(mounts, 6)

    def server_configuration(self, merged, target):
        service = merged["services"]["server"]
        return service, deployed.configuration(
            env={**deployed.variables(target), **service["environment"]})

    def test_the_server_gets_what_it_knows_and_what_fits(self):
        for merged, target in ((self.plain, "cpu"), (self.cuda, "cuda")):
            service, config = self.server_configuration(merged, target)
            self.assertEqual(service["build"]["target"], target)
            self.assertEqual(service["image"], f"tcgemm:{target}")
            room = deployed.number(service["mem_limit"], minutes=False)
            self.assertLess(deployed.host_budgets(config), 0.75 * room)
            self.assertGreater(deployed.number(service["stop_grace_period"]),
                               deployed.longest_drain_s(config))
            inside = {address.rsplit(":", 1)[1]
                      for address in [*config["listen"], config["metrics-listen"]]}
            self.assertEqual({port.split(":")[2].split("/")[0] for port in service["ports"]},
                             inside)
        self.assertEqual(self.cuda["services"]["server"]["environment"]["TCGEMM_DEVICE"], "cuda")

    def test_the_parts_find_one_another(self):
        _, config = self.server_configuration(self.plain, "cpu")
        port = config["metrics-listen"].rsplit(":", 1)[1]
        targets = deployed.load("prometheus", "targets.compose.yml")
        self.assertEqual(targets, [{"targets": [f"server:{port}"]}])
        services = self.plain["services"]
        grafana = services["grafana"]["environment"]
        self.assertEqual(grafana["PROMETHEUS_URL"], "http://prometheus:9090")
        provisioning = ""
        for folder, name in (("datasources", "prometheus.yml"), ("dashboards", "tcgemm.yml")):
            provisioning += deployed.read("grafana", "provisioning", folder, name)
        for variable in re.findall(r"\$\{(\w+)\}", provisioning):
            self.assertIn(variable, grafana)
        mounted = {volume.split(":")[1] for volume in services["grafana"]["volumes"]}
        self.assertIn(grafana["TCGEMM_DASHBOARDS"], mounted)
        self.assertEqual(os.path.dirname(grafana["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]),
                         grafana["TCGEMM_DASHBOARDS"])
        prometheus = services["prometheus"]
        mounted = {os.path.basename(volume.split(":")[1]) for volume in prometheus["volumes"]}
        own = deployed.load("prometheus", "prometheus.yml")
        wanted = {*own["rule_files"], *own["scrape_configs"][0]["file_sd_configs"][0]["files"]}
        self.assertLessEqual(wanted, mounted)
        # The longest look back of a rule is a week.
        self.assertIn("--storage.tsdb.retention.time=15d", prometheus["command"])


if __name__ == "__main__":
    deployed.main()
