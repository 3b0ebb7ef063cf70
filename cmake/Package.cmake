# cmake --install, and the packages tcgemm-server and tcgemm-client (cpack -G DEB in the build folder).
include(GNUInstallDirs)
set(package ${PROJECT_SOURCE_DIR}/deploy/package)

install(TARGETS tcgemm-server RUNTIME COMPONENT server)
install(TARGETS tcgemm-client RUNTIME COMPONENT client)

# The manual pages are made of --help: not in a cross build, and not without Python. A build of single
# targets may have none.
find_program(TCGEMM_MAN_PYTHON NAMES python3 HINTS /usr/bin NO_DEFAULT_PATH)
if(TCGEMM_MAN_PYTHON AND NOT CMAKE_CROSSCOMPILING AND NOT TCGEMM_SANITIZE)
  set(pages)
  foreach(page server.8 client.1)
    string(REGEX MATCH "^([a-z]+)\\.([0-9])$" matched ${page})
    set(out ${CMAKE_BINARY_DIR}/man/tcgemm-${page})
    add_custom_command(OUTPUT ${out}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/man
      COMMAND ${TCGEMM_MAN_PYTHON} ${package}/man_page.py $<TARGET_FILE:tcgemm-${CMAKE_MATCH_1}>
              ${CMAKE_MATCH_2} ${PROJECT_SOURCE_DIR}/docs/OPERATIONS.md > ${out}
      DEPENDS tcgemm-${CMAKE_MATCH_1} ${package}/man_page.py
              ${PROJECT_SOURCE_DIR}/docs/OPERATIONS.md)
    list(APPEND pages ${out})
    install(FILES ${out} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${CMAKE_MATCH_2}
      COMPONENT ${CMAKE_MATCH_1} OPTIONAL)
  endforeach()
  add_custom_target(tcgemm_man_pages ALL DEPENDS ${pages})
endif()

foreach(binary server client)
  install(FILES ${package}/completion.bash RENAME tcgemm-${binary} COMPONENT ${binary}
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
endforeach()
install(FILES docs/OPERATIONS.md CHANGELOG.md DESTINATION share/doc/tcgemm-server COMPONENT server)
install(DIRECTORY deploy/prometheus deploy/grafana DESTINATION ${CMAKE_INSTALL_DATADIR}/tcgemm
  COMPONENT server PATTERN targets.compose.yml EXCLUDE)
# Where the prefix is known, which may be another than at configuration.
install(CODE "set(TCGEMM_SOURCE_DIR \"${PROJECT_SOURCE_DIR}\")" COMPONENT server)
install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/install_service.cmake COMPONENT server)

set(CPACK_PACKAGE_NAME tcgemm)
set(CPACK_PACKAGE_VENDOR tcgemm)
set(CPACK_PACKAGE_CONTACT "tcgemm maintainers <maintainers@tcgemm.invalid>")
# With DESTDIR, since the configuration lies outside the prefix.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_GENERATOR DEB)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL server client)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_SERVER_PACKAGE_NAME tcgemm-server)
set(CPACK_DEBIAN_SERVER_PACKAGE_SECTION net)
set(CPACK_DEBIAN_SERVER_PACKAGE_DEPENDS adduser)
set(CPACK_DEBIAN_SERVER_PACKAGE_SUGGESTS "tcgemm-client, prometheus")
set(CPACK_DEBIAN_SERVER_PACKAGE_CONTROL_EXTRA
  "${package}/postinst;${package}/prerm;${package}/postrm;${package}/conffiles")
set(CPACK_COMPONENT_SERVER_DESCRIPTION
  "The server: batches products from gRPC clients onto a GPU or the CPU.")
set(CPACK_DEBIAN_CLIENT_PACKAGE_NAME tcgemm-client)
set(CPACK_DEBIAN_CLIENT_PACKAGE_SECTION net)
set(CPACK_COMPONENT_CLIENT_DESCRIPTION
  "The command line: multiplies files, proves results right, measures.")
include(CPack)
