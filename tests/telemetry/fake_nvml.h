// A libnvidia-ml.so.1 that answers what a test says. It is a library of its own, found by path, so
// that the reader's own loading is tested. From inside the process a test scripts it through these
// functions (dlsym); from outside through the file that TCGEMM_FAKE_NVML names, read again whenever
// it has changed, with lines
//   answer FUNCTION CODE VALUE      hang FUNCTION      xid NUMBER
// FUNCTION may be dlopen to hang: then the library does while it is loaded.
// Without a word it is a healthy GPU at 0000:00:00.0: see Healthy in fake_nvml.cc.
#ifndef TCGEMM_TESTS_TELEMETRY_FAKE_NVML_H_
#define TCGEMM_TESTS_TELEMETRY_FAKE_NVML_H_

extern "C" {
// Healthy again, nothing hangs any more, no Xid waits.
void FakeNvmlReset();
// From now on NVML's `function` returns `code`, and `value` if that is 0.
void FakeNvmlAnswer(const char* function, int code, unsigned long long value);
// From now on it does not return, until FakeNvmlReset.
void FakeNvmlHang(const char* function);
// Waits until some call hangs.
void FakeNvmlWaitForHang();
void FakeNvmlXid(unsigned long long xid);
// nvmlInit_v2 less nvmlShutdown, and sets of events made less those freed.
int FakeNvmlOpen();
}

#endif  // TCGEMM_TESTS_TELEMETRY_FAKE_NVML_H_
