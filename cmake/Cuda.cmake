# The GPU backend: sets TCGEMM_HAVE_CUDA, and with it the language, its flags and the runtime.
#
# The runtime is linked statically and libcuda never, so that one binary starts on machines with and
# without a driver. Architectures are chosen per source (tcgemm_cuda_source), not per target.
set(TCGEMM_HAVE_CUDA FALSE)
if(NOT TCGEMM_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "TCGEMM_CUDA is ${TCGEMM_CUDA}; it must be AUTO, ON or OFF")
endif()
if(NOT TCGEMM_CUDA STREQUAL "OFF")
  find_program(TCGEMM_NVCC NAMES nvcc HINTS ENV CUDACXX ENV CUDA_HOME PATHS /usr/local/cuda/bin
    PATH_SUFFIXES bin)
  if(TCGEMM_NVCC)
    set(TCGEMM_HAVE_CUDA TRUE)
  elseif(TCGEMM_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TCGEMM_CUDA is ON but there is no nvcc: install the CUDA toolkit (12.8 or "
      "later), put nvcc on PATH or set CUDACXX; or say -DTCGEMM_CUDA=OFF")
  endif()
endif()
if(NOT TCGEMM_HAVE_CUDA)
  message(STATUS "GPU backend: none (TCGEMM_CUDA=${TCGEMM_CUDA})")
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${TCGEMM_NVCC})
endif()
set(CMAKE_CUDA_ARCHITECTURES OFF)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
if(NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CURRENT_LIST_DIR}/keep_stderr.sh)
  if(TCGEMM_CCACHE)
    list(APPEND CMAKE_CUDA_COMPILER_LAUNCHER ${TCGEMM_CCACHE})
  endif()
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
# CMake 3.25 knows no nvcc with C++20.
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
# CMake 3.25.1, Debian 12's, stumbles where there is no nvToolsExt, which CUDA 13 dropped. Not used here.
if(CMAKE_VERSION VERSION_LESS 3.26 AND NOT TARGET CUDA::nvToolsExt)
  add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
endif()
find_package(CUDAToolkit 12.8 REQUIRED)  # sm_120a came with 12.8
message(STATUS "GPU backend: CUDA ${CUDAToolkit_VERSION}")

# constexpr host functions (tiles as data) in device code; source lines for ncu; registers, stack
# and spills of each kernel in the build's output, which keep_stderr.sh writes to OBJECT.log; a tenth
# of the size (each kernel for many problems carries 32 KiB of zeros).
add_compile_options(
  "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-lineinfo;-Xptxas=-v;--compress-mode=size;-Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers,-Wno-unused-parameter>")
if(TCGEMM_WERROR)
  add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings>")
endif()

# tcgemm_cuda_source(FILE sm_80 sm_90 compute_80 ...): the SASS (sm_XX) and PTX (compute_XX) that
# the fat binary holds for this source. Each gets its own -gencode: the -arch shorthand breaks
# for the architecture-specific ones (sm_90a, sm_120a).
function(tcgemm_cuda_source file)
  set(options)
  foreach(code ${ARGN})
    string(REGEX REPLACE "^(sm|compute)_" "" number ${code})
    list(APPEND options "-gencode=arch=compute_${number},code=${code}")
  endforeach()
  set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${options}"
    SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
