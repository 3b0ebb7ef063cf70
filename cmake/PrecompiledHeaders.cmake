# Most of a compilation here is reading the headers of gRPC, Abseil and GoogleTest. They are read
# once for the libraries (-fPIC) and once for the tests (-fPIE). With gcc alone: what a source
# forgets to include, clang finds (tests/tidy/clang_check.py and the clang preset go without).
set(TCGEMM_USE_PCH FALSE)
if(TCGEMM_PCH AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  set(TCGEMM_USE_PCH TRUE)
  # The compiler refuses them to sources with other flags.
  tcgemm_cxx_options(-pthread)
endif()

# tcgemm_use_precompiled(TARGET library|test)
function(tcgemm_use_precompiled target kind)
  if(kind STREQUAL test)
    tcgemm_test_options(${target})
  endif()
  if(TCGEMM_USE_PCH)
    target_precompile_headers(${target} REUSE_FROM tcgemm_${kind}_headers)
  endif()
endfunction()

# Tests are many and run once: they are optimised less than what they test.
function(tcgemm_test_options target)
  target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:RelWithDebInfo>>:-O1>)
endfunction()

# Called once, when gRPC, tcgemm_proto and GoogleTest are known.
function(tcgemm_add_precompiled)
  if(NOT TCGEMM_USE_PCH)
    return()
  endif()
  set(source ${CMAKE_BINARY_DIR}/precompiled_headers.cc)
  file(GENERATE OUTPUT ${source} CONTENT "int main() { return 0; }\n")
  set(headers
    <algorithm> <array> <atomic> <chrono> <cstdint> <cstring> <deque> <fstream> <functional> <map>
    <memory> <mutex> <optional> <random> <set> <sstream> <string> <thread> <unordered_map> <utility>
    <vector> <absl/status/status.h> <absl/status/statusor.h> <absl/strings/str_cat.h>
    <absl/strings/str_format.h> <absl/strings/str_join.h> <absl/strings/str_split.h>
    <absl/types/span.h> <grpcpp/generic/generic_stub.h> <grpcpp/grpcpp.h>
    <tcgemm/v1/matmul.grpc.pb.h>)
  add_library(tcgemm_library_headers OBJECT EXCLUDE_FROM_ALL ${source})
  target_link_libraries(tcgemm_library_headers PRIVATE tcgemm::proto)
  target_precompile_headers(tcgemm_library_headers PRIVATE ${headers})
  if(TCGEMM_TESTS)
    add_executable(tcgemm_test_headers EXCLUDE_FROM_ALL ${source})
    target_link_libraries(tcgemm_test_headers PRIVATE tcgemm::proto rapidcheck_checks GTest::gmock)
    tcgemm_test_options(tcgemm_test_headers)
    target_precompile_headers(tcgemm_test_headers PRIVATE ${headers} <gmock/gmock.h>
      <gtest/gtest.h> <rapidcheck.h>)
  endif()
endfunction()
