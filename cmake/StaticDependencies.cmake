# TCGEMM_BUNDLE: binaries that run on another machine of the same or a newer glibc (built on Debian
# 12, run on Ubuntu 24.04), which has none of our packages.
#
# gRPC, protobuf, Abseil and OpenSSL become static, and so do libstdc++ and libgcc. What comes as
# shared libraries alone (prometheus-cpp, civetweb, spdlog) is copied beside the binaries, which look there
# first. The distribution's CMake packages import shared libraries only: their targets are pointed
# at the archives here.
# Included after Dependencies.
find_package(PkgConfig REQUIRED)
pkg_check_modules(GRPCPP REQUIRED grpc++ protobuf)

# Every archive that gRPC needs, once: inside a group their order does not matter.
set(archives)
foreach(name grpc++_reflection ${GRPCPP_STATIC_LIBRARIES})
  if(name MATCHES "^(dl|pthread|rt|m|c|atomic)$")
    continue()
  endif()
  find_library(TCGEMM_ARCHIVE_${name} lib${name}.a REQUIRED)
  mark_as_advanced(TCGEMM_ARCHIVE_${name})
  list(APPEND archives ${TCGEMM_ARCHIVE_${name}})
endforeach()
list(REMOVE_DUPLICATES archives)
list(JOIN archives " " archives)
add_library(tcgemm_static_dependencies INTERFACE)
target_link_libraries(tcgemm_static_dependencies INTERFACE
  "-Wl,--start-group ${archives} -Wl,--end-group" ${CMAKE_DL_LIBS} Threads::Threads)

# Imported shared libraries become their archives. gRPC and protobuf name other shared libraries as
# their dependencies; the group has them all.
get_directory_property(imported DIRECTORY ${PROJECT_SOURCE_DIR} IMPORTED_TARGETS)
foreach(target ${imported})
  get_target_property(type ${target} TYPE)
  if(NOT target MATCHES "^(absl|gRPC|protobuf|OpenSSL|ZLIB)::"
     OR NOT type MATCHES "^(SHARED|UNKNOWN)_LIBRARY$")
    continue()
  endif()
  get_target_property(configurations ${target} IMPORTED_CONFIGURATIONS)
  foreach(suffix "" ${configurations})
    string(REGEX REPLACE "^(.+)$" "_\\1" suffix "${suffix}")
    get_target_property(location ${target} IMPORTED_LOCATION${suffix})
    if(NOT location)
      continue()
    endif()
    string(REGEX REPLACE "\\.so.*$" ".a" archive ${location})
    if(NOT EXISTS ${archive})
      message(FATAL_ERROR "${target}: there is no ${archive}")
    endif()
    set_target_properties(${target} PROPERTIES
      IMPORTED_LOCATION${suffix} ${archive}
      IMPORTED_SONAME${suffix} ""
      IMPORTED_LINK_DEPENDENT_LIBRARIES${suffix} "")
  endforeach()
  if(target MATCHES "^(gRPC|protobuf)::")
    set_property(TARGET ${target} PROPERTY INTERFACE_LINK_LIBRARIES tcgemm_static_dependencies)
  else()
    set_property(TARGET ${target} APPEND PROPERTY
      INTERFACE_LINK_LIBRARIES tcgemm_static_dependencies)
  endif()
endforeach()

# Old tags: RPATH also serves what the copied libraries need of one another.
add_link_options(-static-libstdc++ -static-libgcc -Wl,--gc-sections -s -Wl,--disable-new-dtags)
tcgemm_cxx_options(-ffunction-sections -fdata-sections)
# Relative to the binary: $ORIGIN, and bin/ for the tests, which lie in a folder beside it.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN;$ORIGIN/../bin")

# Copies of what has no archive, under the names that the loader asks for.
file(MAKE_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
foreach(name prometheus-cpp-core spdlog fmt)
  find_library(TCGEMM_SHARED_${name} NAMES lib${name}.so REQUIRED)
  mark_as_advanced(TCGEMM_SHARED_${name})
  list(APPEND shared ${TCGEMM_SHARED_${name}})
endforeach()
# They want the C++ runtime as a library, whatever the binaries do.
foreach(name libstdc++.so.6 libgcc_s.so.1)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${name} OUTPUT_VARIABLE path
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  list(APPEND shared ${path})
endforeach()
foreach(library ${shared} ${CIVETWEB_LIBRARY} ${CIVETWEB_CPP_LIBRARY})
  file(REAL_PATH ${library} real)
  execute_process(COMMAND ${CMAKE_OBJDUMP} -p ${real} OUTPUT_VARIABLE headers
    COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCH "SONAME +([^ \n]+)" soname "${headers}")
  configure_file(${real} ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${CMAKE_MATCH_1} COPYONLY)
endforeach()
