# Install rules, CMake package and pkg-config file.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/megamoe)
get_target_property(library_type megamoe TYPE)
set_target_properties(megamoe PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})

install(TARGETS megamoe EXPORT megamoe
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
if(TARGET megamoe_cli)
  install(TARGETS megamoe_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tool)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/megamoe DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev)

install(EXPORT megamoe NAMESPACE megamoe:: FILE megamoeTargets.cmake DESTINATION ${package_dir} COMPONENT dev)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/megamoeConfig.cmake.in
  ${PROJECT_BINARY_DIR}/megamoeConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/megamoeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/megamoeConfig.cmake ${PROJECT_BINARY_DIR}/megamoeConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT dev)

# A static library needs what it uses named at every link, the C++ runtime for C programs too; a shared one does not.
if(library_type STREQUAL "STATIC_LIBRARY")
  set(pc_dependencies "Requires: hwloc\nLibs: -L\${libdir} -lmegamoe -lstdc++ -lm -pthread")
else()
  set(pc_dependencies "Requires.private: hwloc\nLibs: -L\${libdir} -lmegamoe")
endif()
file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${PROJECT_SOURCE_DIR}/cmake/megamoe.pc.in ${PROJECT_BINARY_DIR}/megamoe.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/megamoe.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
