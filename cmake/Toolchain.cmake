set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

# Backtraces have lines; for variables, too, build with CMAKE_BUILD_TYPE=Debug: writing of all types
# is a quarter of a compilation.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")

find_program(TCGEMM_CCACHE ccache)
if(TCGEMM_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The second word lets it keep what was compiled with precompiled headers (its manual says so).
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros ${TCGEMM_CCACHE})
endif()

# tcgemm_cxx_options(FLAG...): for C++ alone; nvcc takes other flags (cmake/Cuda.cmake).
function(tcgemm_cxx_options)
  foreach(flag ${ARGN})
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${flag}>")
  endforeach()
endfunction()

# Bits must not depend on the optimiser's choice to fuse a multiply and an add.
tcgemm_cxx_options(-Wall -Wextra -Wno-missing-field-initializers -ffp-contract=off)
# gcc 12 sees overlaps in std::string's own code at -O3 (gcc bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  tcgemm_cxx_options(-Wthread-safety)
endif()
if(TCGEMM_WERROR)
  tcgemm_cxx_options(-Werror)
endif()

if(TCGEMM_SANITIZE)
  tcgemm_cxx_options(-fsanitize=${TCGEMM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TCGEMM_SANITIZE})
endif()

# tcgemm_library(NAME [PLAIN] SOURCES... DEPS...): one folder, one library, one layer. Headers are
# included from the repository's root: #include "matrix/bf16.h". PLAIN: without precompiled headers.
function(tcgemm_library name)
  cmake_parse_arguments(ARG "PLAIN" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(tcgemm_${name} STATIC ${ARG_SOURCES})
  add_library(tcgemm::${name} ALIAS tcgemm_${name})
  target_include_directories(tcgemm_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(tcgemm_${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  if(NOT ARG_PLAIN)
    tcgemm_use_precompiled(tcgemm_${name} library ${ARG_PRIVATE_DEPS})
  endif()
endfunction()

# tcgemm_compile_alone(SOURCES...): not in one piece with the rest of their target, where
# CMAKE_UNITY_BUILD puts it together, since they have names of other sources' there.
function(tcgemm_compile_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
