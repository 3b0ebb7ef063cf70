# The unit and the configuration, with the paths of the prefix: /etc for /usr, PREFIX/etc for others. A
# configuration that is there is the administrator's.
set(etc ${CMAKE_INSTALL_PREFIX}/etc)
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  set(etc /etc)
endif()
set(configuration ${etc}/tcgemm/tcgemm.toml)
set(service ${CMAKE_INSTALL_PREFIX}/lib/systemd/system/tcgemm-server.service)

file(READ ${TCGEMM_SOURCE_DIR}/deploy/systemd/tcgemm-server.service unit)
string(REPLACE "/usr/" "${CMAKE_INSTALL_PREFIX}/" unit "${unit}")
string(REPLACE "/etc/tcgemm/tcgemm.toml" "${configuration}" unit "${unit}")
message(STATUS "Installing: $ENV{DESTDIR}${service}")
file(WRITE $ENV{DESTDIR}${service} "${unit}")
list(APPEND CMAKE_INSTALL_MANIFEST_FILES ${service})

if(NOT EXISTS $ENV{DESTDIR}${configuration})
  file(READ ${TCGEMM_SOURCE_DIR}/deploy/tcgemm.toml toml)
  message(STATUS "Installing: $ENV{DESTDIR}${configuration}")
  file(WRITE $ENV{DESTDIR}${configuration} "${toml}")
  list(APPEND CMAKE_INSTALL_MANIFEST_FILES ${configuration})
endif()
