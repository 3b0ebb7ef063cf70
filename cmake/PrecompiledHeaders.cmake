# Most of a compilation here is reading headers: of the standard library, Abseil and GoogleTest, and
# of gRPC. They are read once for the libraries (-fPIC) and once for the tests (-fPIE), each without
# and with gRPC, whose weight slows down the sources that do without it. With gcc alone: what a
# source forgets to include, clang finds (tests/tidy/clang_check.py and the clang preset go without),
# and only for the preset that the tests are built with.
set(TCGEMM_USE_PCH FALSE)
if(TCGEMM_PCH AND CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_BUILD_TYPE STREQUAL RelWithDebInfo)
  set(TCGEMM_USE_PCH TRUE)
  # The compiler refuses them to sources with other flags.
  tcgemm_cxx_options(-pthread)
  # What comes from them is not a system header's any more: what gcc 12 imagines about std::string's
  # own code, as with -Wrestrict, would be an error of ours. (At -O3 it imagines more: not there.)
  tcgemm_cxx_options(-Wno-stringop-overflow -Wno-stringop-overread)
endif()

# tcgemm_use_precompiled(TARGET library|test DEPS...): with gRPC if it is among those.
function(tcgemm_use_precompiled target kind)
  if(kind STREQUAL test)
    tcgemm_test_options(${target})
  endif()
  if(TCGEMM_USE_PCH)
    if(ARGN MATCHES "tcgemm::proto|tcgemm_rpc_fixture|tcgemm_stand_in_servers")
      string(PREPEND kind rpc_)
    endif()
    target_precompile_headers(${target} REUSE_FROM tcgemm_${kind}_headers)
  endif()
endfunction()

# Tests are many and run once: they are optimised less than what they test.
function(tcgemm_test_options target)
  target_compile_options(${target} PRIVATE
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:RelWithDebInfo>>:-O1>)
endfunction()

# Called once, when gRPC, tcgemm_proto and GoogleTest are known.
function(tcgemm_add_precompiled)
  if(NOT TCGEMM_USE_PCH)
    return()
  endif()
  set(source ${CMAKE_BINARY_DIR}/precompiled_headers.cc)
  file(GENERATE OUTPUT ${source} CONTENT "int main() { return 0; }\n")
  set(plain_headers
    <algorithm> <array> <atomic> <chrono> <cstdint> <cstring> <fstream> <functional> <map> <memory>
    <mutex> <optional> <random> <set> <sstream> <string> <thread> <unordered_map> <utility> <vector>
    <absl/status/status.h> <absl/status/statusor.h> <absl/strings/str_cat.h>
    <absl/strings/str_format.h> <absl/strings/str_join.h> <absl/strings/str_split.h>
    <absl/types/span.h>)
  set(headers_of_ "")
  set(headers_of_rpc_ <grpcpp/generic/generic_stub.h> <grpcpp/grpcpp.h>
    <tcgemm/v1/matmul.grpc.pb.h>)
  set(test_headers <gmock/gmock.h> <gtest/gtest.h>)
  foreach(rpc "" rpc_)
    set(name tcgemm_${rpc}library_headers)
    add_library(${name} OBJECT EXCLUDE_FROM_ALL ${source})
    target_precompile_headers(${name} PRIVATE ${plain_headers} ${headers_of_${rpc}})
    set(names ${name})
    if(TCGEMM_TESTS)
      set(name tcgemm_${rpc}test_headers)
      add_executable(${name} EXCLUDE_FROM_ALL ${source})
      tcgemm_test_options(${name})
      target_link_libraries(${name} PRIVATE GTest::gmock)
      target_precompile_headers(${name} PRIVATE ${plain_headers} ${headers_of_${rpc}}
        ${test_headers})
      list(APPEND names ${name})
    endif()
    if(rpc)
      foreach(name ${names})
        target_link_libraries(${name} PRIVATE tcgemm::proto)
      endforeach()
    endif()
  endforeach()
endfunction()
