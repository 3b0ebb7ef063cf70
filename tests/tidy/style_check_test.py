#!/usr/bin/env python3
"""Every rule of style_check.py finds what it is for, and passes what is right."""

import unittest

import style_check as style

GUARD = "#ifndef TCGEMM_BASE_X_H_\n#define TCGEMM_BASE_X_H_\n#endif\n"


class StyleTest(unittest.TestCase):
    def one(self, rule, files, bad=True):
        found = list(rule(style.Tree(files)))
        self.assertEqual(bool(found), bad, found)

    def test_lengths(self):
        self.one(style.check_lengths, {"base/x.cc": "x\n" * 401})
        self.one(style.check_lengths, {"base/x.cc": "x\n" * 400}, bad=False)
        self.one(style.check_lengths, {"base/x.cc": "y" * 101 + "\n"})
        self.one(style.check_lengths, {"base/x.cc": "ü" * 100 + "\n"}, bad=False)
        self.one(style.check_lengths, {"deploy/x.sh": "y" * 101 + "\n"})
        self.one(style.check_lengths, {"server/http/page/x.js": "y" * 101 + "\n"})

    def test_functions(self):
        for count, bad in ((68, False), (69, True)):
            body = "  x();\n" * count
            self.one(style.check_functions, {"base/x.cc": f"void F() {{\n{body}}}\n"}, bad)
            # A head of two lines counts both; so does one inside a class.
            tall = f"int C::G(int a,\n         int b) const {{\n{body}}}\n"
            self.one(style.check_functions, {"base/x.cc": tall}, bad=True)
            inside = f"class X {{\n  int G() {{\n{'    x();' + chr(10)}{body}  }}\n}};\n"
            self.one(style.check_functions, {"base/x.cc": inside}, bad=True)

    def test_whitespace(self):
        self.one(style.check_whitespace, {"base/x.cc": "int a; \n"})
        self.one(style.check_whitespace, {"base/x.cc": "\tint a;\n"})
        self.one(style.check_whitespace, {"base/x.cc": "int a;"})
        self.one(style.check_whitespace, {"base/x.cc": "int a;\n"}, bad=False)

    def test_using(self):
        self.one(style.check_using, {"base/x.cc": "using a::Some;\n"})
        self.one(style.check_using, {"base/x.cc": "using ::a::b::Some;\nSomething x;\n"})
        self.one(style.check_using, {"base/x.cc": "using a::Some;\nSome x;\n"}, bad=False)

    def test_guards(self):
        self.one(style.check_guards, {"base/x.h": "#pragma once\n"})
        self.one(style.check_guards, {"base/y.h": GUARD})
        self.one(style.check_guards, {"base/x.h": GUARD}, bad=False)

    def test_include_direction(self):
        for path, include, bad in (("base/x.cc", '"matrix/bf16.h"', True),
                                   ("matrix/x.cc", '"base/clock.h"', False),
                                   ("kernels/x.cc", '"server/engine/job.h"', True),
                                   ("kernels/x.cc", "<grpcpp/grpcpp.h>", True),
                                   ("kernels/x.cc", "<thread>", True),
                                   ("kernels/cpu_onednn.cc", "<oneapi/dnnl/dnnl.hpp>", False),
                                   ("server/engine/x.cc", '"grpcpp/grpcpp.h"', True),
                                   ("server/engine/x.cc", '"kernels/device_cuda.h"', False),
                                   ("server/engine/x.cc", "<prometheus/counter.h>", True),
                                   ("server/engine/x.cc", '"tcgemm/v1/matmul.pb.h"', True),
                                   ("server/rpc/x.cc", '"tcgemm/v1/matmul.pb.h"', False),
                                   ("server/http/x.cc", '"server/rpc/rpc_server.h"', True),
                                   ("server/http/x.cc", '"server/telemetry/nvml_abi.h"', False),
                                   ("server/telemetry/x.cc", '"kernels/device.h"', True),
                                   ("server/telemetry/x.cc", "<nvml.h>", True),
                                   ("client/x.cc", '"kernels/gemm.h"', True),
                                   ("client/x.cc", '"matrix/bf16.h"', False)):
            with self.subTest(path=path, include=include):
                self.one(style.check_includes, {path: f"#include {include}\n"}, bad)

    def test_link_direction(self):
        self.one(style.check_links, {"kernels/CMakeLists.txt": "DEPS tcgemm::engine"})
        self.one(style.check_links, {"server/engine/CMakeLists.txt": "DEPS tcgemm::rpc"})
        self.one(style.check_links, {"client/CMakeLists.txt": "DEPS tcgemm::kernels"})
        self.one(style.check_links, {"server/engine/CMakeLists.txt": "DEPS tcgemm::kernels"},
                 bad=False)

    def test_banned(self):
        for text in ('#include "absl/synchronization/mutex.h"\n', "absl::Mutex m;\n",
                     "using namespace std;\n", "using namespace std::chrono;\n",
                     "// TODO: later\n", "// see /home/me/x\n", 'open("/tmp/log");\n'):
            with self.subTest(text):
                self.one(style.check_banned, {"base/x.cc": text})
        for text in ("// see docs/adr\n", "using namespace std::chrono_literals;\n",
                     'char folder[] = "/tmp/x-XXXXXX";\n'):
            with self.subTest(text):
                self.one(style.check_banned, {"base/x.cc": text}, bad=False)

    def test_output(self):
        self.one(style.check_output, {"base/x.cc": "std::cout << 1;\n"})
        self.one(style.check_output, {"client/x.h": "#include <iostream>\n"})
        self.one(style.check_output, {"client/cli/main.cc": "std::cout << 1;\n"}, bad=False)
        self.one(style.check_output, {"tests/base/x_test.cc": "std::cerr << 1;\n"}, bad=False)

    def test_names(self):
        for name in ("base/utils.cc", "base/string_util.h", "client/helpers.py", "x/manager.cc"):
            self.one(style.check_names, {name: ""})
        self.one(style.check_names, {"base/clock.cc": ""}, bad=False)

    def test_every_source_has_a_test(self):
        self.one(style.check_tests_exist, {"base/x.cc": ""})
        self.one(style.check_tests_exist,
                 {"base/x.cc": "", "tests/base/x_test.cc": '#include "base/x.h"\n'}, bad=False)
        self.one(style.check_tests_exist, {"base/x.h": ""})
        self.one(style.check_tests_exist,
                 {"base/x.h": "", "tests/base/x_test.cc": '#include "base/x.h"\n'}, bad=False)
        reason = {"tests/tidy/untested.txt": "base/x.cc: only a main\n"}
        self.one(style.check_tests_exist, {"base/x.cc": "", **reason}, bad=False)
        self.one(style.check_tests_exist, {"base/x.cc": "", "tests/tidy/untested.txt": "base/x.cc: \n"})
        self.one(style.check_tests_exist, reason)
        self.one(style.check_tests_exist,
                 {"base/x.cc": "", "tests/base/x_test.cc": '#include "base/x.h"\n', **reason})

    def test_sleeps(self):
        sleepy = {"tests/a_test.cc": "std::this_thread::sleep_for(x);\n"}
        self.one(style.check_sleeps, sleepy)
        self.one(style.check_sleeps, {**sleepy, "tests/tidy/sleeps.txt": "tests/a_test.cc: why\n"},
                 bad=False)

    def test_scripts(self):
        self.one(style.check_scripts, {"a.sh": "#!/bin/sh\nset -e\n"})
        self.one(style.check_scripts, {".ci/run": "#!/bin/sh\n"})
        self.one(style.check_scripts, {"a.sh": "set -euo pipefail\n"}, bad=False)


if __name__ == "__main__":
    unittest.main()
