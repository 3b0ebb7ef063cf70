# cmake -P: writes a C++ source whose functions return the text of files.
#   -DOUT=source -DHEADER=what-it-includes "-DFILES=Function=path;Function=path"
set(source "// Made by cmake/embed_text.cmake.\n#include \"${HEADER}\"\n\nnamespace tcgemm {\n")
foreach(pair IN LISTS FILES)
  string(REGEX MATCH "^([A-Za-z]+)=(.+)$" matched "${pair}")
  set(function ${CMAKE_MATCH_1})
  set(path ${CMAKE_MATCH_2})
  file(READ "${path}" text)
  string(FIND "${text}" ")embedded\"" end)
  if(NOT end EQUAL -1)
    message(FATAL_ERROR "${path} holds what ends a C++ raw string: )embedded\"")
  endif()
  string(APPEND source
    "\nstd::string_view ${function}() {\n  return R\"embedded(${text})embedded\";\n}\n")
endforeach()
file(WRITE "${OUT}" "${source}\n}  // namespace tcgemm\n")
