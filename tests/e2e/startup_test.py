"""How the server starts, refuses to start, and ends."""

import os
import signal
import socket
import subprocess
import time
import unittest

import harness


def run_server(*flags, env=None, timeout=60):
    return subprocess.run([harness.SERVER, *flags], capture_output=True, text=True,
                          timeout=timeout, env={**os.environ, **(env or {})}, check=False)


class StartupTest(unittest.TestCase):
    def assert_one_clear_line(self, result, *needles):
        """Exactly one line of trouble in the log, and it names what matters."""
        trouble = [line for line in result.stderr.splitlines()
                   if " error" in line.lower() or "[error]" in line.lower()
                   or '"error"' in line.lower()]
        self.assertEqual(len(trouble), 1, result.stderr)
        for needle in needles:
            self.assertIn(needle, trouble[0])
        self.assertEqual(result.stdout, "")

    def test_ready_line_is_alone_on_stdout_and_last_line_counts(self):
        with harness.Server(unix=True) as server:
            self.assertEqual(len(server.addresses), 2)
            self.assertEqual(server.addresses[1], server.unix)
            start = time.monotonic()
            self.assertEqual(server.stop(), 0)
            self.assertLess(time.monotonic() - start, 1.0)
            self.assertEqual(len(server.stdout), 1)
            last = server.log().strip().splitlines()[-1]
            self.assertRegex(last, r"admitted\D*0\D+completed\D*0")
            self.assertFalse(os.path.exists(server.unix_path))

    def test_busy_grpc_port(self):
        with harness.Server() as first:
            result = run_server(f"--listen={first.address}", "--metrics-listen=127.0.0.1:0",
                                *harness.SMALL_BUDGETS)
            self.assertEqual(result.returncode, 3, result.stderr)
            self.assert_one_clear_line(result, first.address)
            self.assertTrue(first.alive())

    def test_busy_metrics_port(self):
        with harness.Server() as first:
            result = run_server("--listen=127.0.0.1:0",
                                f"--metrics-listen={first.metrics_address}",
                                *harness.SMALL_BUDGETS)
            self.assertEqual(result.returncode, 3, result.stderr)
            self.assert_one_clear_line(result, first.metrics_address)

    def test_live_socket_is_refused_and_stays(self):
        with harness.Server(unix=True) as first:
            result = run_server(f"--listen={first.unix}", "--metrics-listen=127.0.0.1:0",
                                *harness.SMALL_BUDGETS)
            self.assertEqual(result.returncode, 3, result.stderr)
            self.assert_one_clear_line(result, first.unix_path)
            self.assertEqual(harness.client("health", server=first.unix).returncode, 0)

    def test_stale_socket_is_replaced_but_a_file_is_not(self):
        with harness.Server(unix=True) as first:
            stale = first.unix_path + ".stale"
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(stale)
            with harness.Server(f"--listen=unix:{stale}") as second:
                self.assertEqual(harness.client("health", server=second.address).returncode, 0)
            plain = first.unix_path + ".txt"
            with open(plain, "w", encoding="ascii") as file:
                file.write("precious")
            result = run_server(f"--listen=unix:{plain}", "--metrics-listen=127.0.0.1:0",
                                *harness.SMALL_BUDGETS)
            self.assertEqual(result.returncode, 3, result.stderr)
            with open(plain, encoding="ascii") as file:
                self.assertEqual(file.read(), "precious")

    def test_unix_socket_after_sigkill(self):
        with harness.Server(unix=True) as first:
            first.process.kill()
            first.process.wait(30)
            with harness.Server(f"--listen={first.unix}") as second:
                self.assertEqual(harness.client("health", server=second.address).returncode, 0)

    def test_usage_and_config_errors(self):
        config = {"TCGEMM_MAX_BATCH": "many"}
        for flags, env, needle in ((["--nonsense"], {}, "nonsense"),
                                   (["--max-batch=0"], {}, "max-batch"),
                                   (["--pinned-bytes=-1"], {}, "pinned-bytes"),
                                   (["--drain-delay=soon"], {}, "drain-delay"),
                                   (["--listen=nowhere"], {}, "nowhere"),
                                   # Before the device, which is not there either.
                                   (["--device=cuda:99", "--listen=127.0.0.1:70000"], {}, "70000"),
                                   (["--device=cuda:99", "--listen=no-such-name.invalid:1",
                                     "--insecure-listen-any"], {}, "no-such-name"),
                                   (["--device=cuda:99", "--metrics-listen=[::1]:0"], {},
                                    "metrics-listen"),
                                   ([], config, "max-batch"),
                                   (["--config=/nonexistent.toml"], {}, "nonexistent")):
            with self.subTest(flags or env):
                result = run_server(*flags, env=env)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn(needle, result.stderr.lower().replace("_", "-"))

    def test_budgets_beyond_the_machine_are_refused_by_name(self):
        result = run_server("--pinned-bytes=100TiB", "--listen=127.0.0.1:0",
                            "--metrics-listen=127.0.0.1:0")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("pinned", result.stderr)

    def test_the_budgets_count_together_when_auto_becomes_the_cpu(self):
        result = run_server("--device=auto", "--resident-bytes=100TiB", "--listen=127.0.0.1:0",
                            "--metrics-listen=127.0.0.1:0", *harness.SMALL_BUDGETS,
                            env={"CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual(result.returncode, 2, result.stderr)
        for flag in ("--pinned-bytes", "--queue-bytes", "--resident-bytes 109951162777600"):
            self.assertIn(flag, result.stderr)

    def test_no_gpu_is_exit_4(self):
        result = run_server("--device=cuda", "--listen=127.0.0.1:0",
                            "--metrics-listen=127.0.0.1:0", *harness.SMALL_BUDGETS,
                            env={"CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual(result.returncode, 4, result.stderr)

    def test_auto_without_a_gpu_says_why_once(self):
        # The variable hides the GPUs of a machine that has some.
        with harness.Server("--device=auto", env={"CUDA_VISIBLE_DEVICES": ""}) as server:
            self.assertEqual(server.device, "cpu")
            why = [line for line in server.log().splitlines() if "running on the CPU: " in line]
            self.assertEqual(len(why), 1, server.log())
            with harness.stub(server.address) as stub:
                info = stub.GetServerInfo(harness.pb.GetServerInfoRequest(), timeout=10)
            self.assertEqual(info.device, "cpu")

    def test_a_gpu_that_is_not_there_is_named(self):
        result = run_server("--device=cuda:99", "--listen=127.0.0.1:0",
                            "--metrics-listen=127.0.0.1:0", *harness.SMALL_BUDGETS)
        self.assertEqual(result.returncode, 4, result.stderr)
        self.assert_one_clear_line(result, "--device cuda:99: ")

    def test_environment_and_precedence(self):
        with harness.Server("--max-batch=7", env={"TCGEMM_MAX_BATCH": "5",
                                                  "TCGEMM_MAX_QUEUE_DELAY_US": "3"}) as server:
            with harness.stub(server.address) as stub:
                info = stub.GetServerInfo(harness.pb.GetServerInfoRequest(), timeout=10)
        self.assertEqual((info.max_batch, info.max_queue_delay_us), (7, 3))

    def test_sigint_drains_too(self):
        with harness.Server() as server:
            server.signal(signal.SIGINT)
            self.assertEqual(server.wait(), 0)

    def test_version(self):
        result = run_server("--version")
        self.assertEqual(result.returncode, 0)
        self.assertIn("0.1.0", result.stdout)


if __name__ == "__main__":
    harness.main()
