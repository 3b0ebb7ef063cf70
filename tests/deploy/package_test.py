#!/usr/bin/env python3
"""cmake --install and the .deb packages of this build: what is in them, where, and what they depend on.
Manual pages and completion against --help. tests/heavy/package.sh installs the packages on a bare
system."""

import os
import re
import subprocess
import tempfile
import unittest

import deployed

BUILD = os.path.dirname(os.environ["TCGEMM_BIN"])
PACKAGE = deployed.path("package")


def run(*command, **kwargs):
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110, **kwargs)
    if done.returncode:
        raise AssertionError(f"{command}: {done.stdout}{done.stderr}")
    return done.stdout


def help_of(binary, *command):
    return run(os.path.join(os.environ["TCGEMM_BIN"], binary), *command, "--help")


def subcommands():
    text = re.search(r"(?ms)^Subcommands:\n(.*?)\n\n", help_of("tcgemm-client"))[1]
    return re.findall(r"(?m)^  (\w+)", text)


def flags_of(text):
    return set(re.findall(r"(?m)^  (?:-\w,)?(--?[a-z][a-z0-9-]*)", text)) - {"-h", "--help"}


class DebTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        run("cpack", "-G", "DEB", "-B", folder.name, cwd=BUILD)
        cls.debs = {re.match(r"tcgemm-(\w+)_", name)[1]: os.path.join(folder.name, name)
                    for name in os.listdir(folder.name) if name.endswith(".deb")}

    def contents(self, name):
        """{path: mode} of the files of a package."""
        lines = run("dpkg", "--contents", self.debs[name]).splitlines()
        for line in lines:
            self.assertIn("root/root", line)
        return {line.split()[5].lstrip("."): line.split()[0] for line in lines
                if not line.startswith("d")}

    def field(self, name, field):
        return run("dpkg", "--field", self.debs[name], field).strip()

    def test_the_server(self):
        files = self.contents("server")
        share = "/usr/share/tcgemm"
        wanted = {"/usr/bin/tcgemm-server", "/etc/tcgemm/tcgemm.toml",
                  "/usr/lib/systemd/system/tcgemm-server.service",
                  "/usr/share/man/man8/tcgemm-server.8",
                  "/usr/share/bash-completion/completions/tcgemm-server",
                  "/usr/share/doc/tcgemm-server/OPERATIONS.md",
                  "/usr/share/doc/tcgemm-server/CHANGELOG.md",
                  f"{share}/grafana/dashboards/tcgemm.json",
                  f"{share}/grafana/provisioning/dashboards/tcgemm.yml",
                  f"{share}/grafana/provisioning/datasources/prometheus.yml",
                  *(f"{share}/prometheus/{name}.yml" for name in
                    ("prometheus", "targets", "alert_rules", "recording_rules"))}
        self.assertEqual(set(files), wanted)
        for path, mode in files.items():
            self.assertEqual(mode, "-rwxr-xr-x" if "/bin/" in path else "-rw-r--r--", path)

    def test_the_client(self):
        self.assertEqual(set(self.contents("client")),
                         {"/usr/bin/tcgemm-client", "/usr/share/man/man1/tcgemm-client.1",
                          "/usr/share/bash-completion/completions/tcgemm-client"})

    def test_dependencies_are_what_the_binaries_load(self):
        for name in ("server", "client"):
            depends = self.field(name, "Depends")
            self.assertRegex(depends, r"libgrpc\+\+[\d.]+")
            self.assertRegex(depends, r"libc6 \(>= ")
            # A driver is the host's: nothing of CUDA is ever asked for.
            self.assertNotRegex(depends, r"cuda|nvidia")
            self.assertEqual(self.field(name, "Version"),
                             run(deployed.CLIENT, "--version").split()[1] + "-1")
            self.assertEqual(self.field(name, "Architecture"),
                             run("dpkg", "--print-architecture").strip())
        self.assertIn("adduser", self.field("server", "Depends"))
        self.assertNotIn("adduser", self.field("client", "Depends"))

    def test_maintainer_scripts_and_the_configuration_file(self):
        with tempfile.TemporaryDirectory() as folder:
            run("dpkg", "--control", self.debs["server"], folder)
            self.assertEqual(set(os.listdir(folder)), {"control", "md5sums", "conffiles",
                                                       "postinst", "prerm", "postrm"})
            for name in ("postinst", "prerm", "postrm"):
                script = os.path.join(folder, name)
                self.assertTrue(os.access(script, os.X_OK), name)
                run("sh", "-n", script)
            with open(os.path.join(folder, "conffiles"), encoding="utf-8") as file:
                self.assertEqual(file.read(), "/etc/tcgemm/tcgemm.toml\n")

    def test_what_is_packed_is_what_was_built(self):
        with tempfile.TemporaryDirectory() as folder:
            run("dpkg", "--extract", self.debs["server"], folder)
            binary = os.path.join(folder, "usr", "bin", "tcgemm-server")
            self.assertEqual(run(binary, "--version"), run(deployed.SERVER, "--version"))
            config = os.path.join(folder, "etc", "tcgemm", "tcgemm.toml")
            self.assertEqual(run(binary, "--check-config", "--config", config),
                             "the configuration is good\n")
            with open(os.path.join(folder, "usr", "lib", "systemd", "system",
                                   "tcgemm-server.service"), encoding="utf-8") as file:
                self.assertEqual(file.read(),
                                 deployed.read("systemd", "tcgemm-server.service"))


class InstallTest(unittest.TestCase):
    def test_another_prefix(self):
        with tempfile.TemporaryDirectory() as prefix:
            run("cmake", "--install", BUILD, "--prefix", prefix)
            with open(os.path.join(prefix, "lib", "systemd", "system", "tcgemm-server.service"),
                      encoding="utf-8") as file:
                start = re.search(r"(?m)^ExecStart=(.*)$", file.read())[1]
            binary, config = start.split(" --config=")
            self.assertEqual(binary, os.path.join(prefix, "bin", "tcgemm-server"))
            self.assertEqual(run(binary, "--check-config", "--config", config),
                             "the configuration is good\n")
            # What the administrator has written stays.
            with open(config, "w", encoding="utf-8") as file:
                file.write('log-level = "debug"\n')
            run("cmake", "--install", BUILD, "--prefix", prefix)
            with open(config, encoding="utf-8") as file:
                self.assertEqual(file.read(), 'log-level = "debug"\n')


class ManualTest(unittest.TestCase):
    def page(self, name):
        with open(os.path.join(BUILD, "man", name), encoding="utf-8") as file:
            return file.read()

    def shown(self, name):
        """The page as a reader sees it; groff's complaints fail."""
        done = subprocess.run(["groff", "-man", "-Tutf8", "-Kutf8", "-ww", "-rLL=200n", "-P-cbou"],
                              input=self.page(name), capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""), name)
        return re.sub(r"[‐−]", "-", done.stdout)

    def test_the_server_page_has_every_flag_and_exit_code(self):
        text = self.shown("tcgemm-server.8")
        flags = flags_of(help_of("tcgemm-server"))
        self.assertGreater(len(flags), 25)
        for flag in flags:
            self.assertRegex(text, rf"(?m)^ +{flag}\b", flag)
        for code in (0, 2, 3, 4, 5, 6, 7):
            self.assertRegex(text, rf"(?m)^ +{code} +\w", code)

    def test_the_client_page_has_every_command_and_flag(self):
        text = self.shown("tcgemm-client.1")
        self.assertGreater(len(subcommands()), 9)
        for command in subcommands():
            section = re.search(rf"(?ms)^ +{command}\n(.*?)(?=^ ?  ?\w|^\w|\Z)", text)
            self.assertIsNotNone(section, command)
            for flag in flags_of(help_of("tcgemm-client", command)):
                self.assertRegex(section[1], rf"(?m)^ +{flag}\b", f"{command} {flag}")
        for code in range(5):
            self.assertRegex(text, rf"(?m)^ +{code} +\w", code)


class CompletionTest(unittest.TestCase):
    def complete(self, *words):
        """What bash offers for the last word, as readline splits the line."""
        script = ('. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tcgemm "$1"; '
                  'printf "%s\\n" "${COMPREPLY[@]}"')
        env = {**os.environ, "PATH": os.environ["TCGEMM_BIN"] + ":" + os.environ["PATH"]}
        return set(run("bash", "-c", script, os.path.join(PACKAGE, "completion.bash"), *words,
                       env=env, cwd=deployed.DEPLOY).split())

    def test_flags_of_the_server(self):
        self.assertEqual(self.complete("tcgemm-server", "--"),
                         flags_of(help_of("tcgemm-server")) | {"--help"})
        self.assertEqual(self.complete("tcgemm-server", "--log-l"), {"--log-level"})

    def test_values(self):
        levels = {"debug", "info", "warning", "error"}
        self.assertEqual(self.complete("tcgemm-server", "--log-level", ""), levels)
        self.assertEqual(self.complete("tcgemm-server", "--log-level", "="), levels)
        self.assertEqual(self.complete("tcgemm-server", "--log-level", "=", "de"), {"debug"})
        self.assertEqual(self.complete("tcgemm-client", "bench", "--output", ""),
                         {"bf16", "fp32"})
        self.assertEqual(self.complete("tcgemm-server", "--config", "tcg"), {"tcgemm.toml"})

    def test_commands_and_their_flags(self):
        self.assertEqual(self.complete("tcgemm-client", ""), set(subcommands()))
        self.assertEqual(self.complete("tcgemm-client", "--server", "a:1", "ma"), {"matmul"})
        for command in subcommands():
            self.assertEqual(self.complete("tcgemm-client", command, "-"),
                             flags_of(help_of("tcgemm-client", command))
                             | flags_of(help_of("tcgemm-client")) | {"-h", "--help"}, command)
        # A switch takes no value, so a file is next.
        self.assertIn("tcgemm.toml", self.complete("tcgemm-client", "matmul", "--check", "tc"))


if __name__ == "__main__":
    deployed.main()
