# Install rules and the CMake package. The wheel uses them too, with moe_ep/ as the prefix.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/moe_ep)
get_target_property(MOE_EP_LIBRARY_TYPE moe_ep TYPE)
set(MOE_EP_LINKS_CUDA OFF)
get_target_property(linked moe_ep LINK_LIBRARIES)
if("CUDA::cudart_static" IN_LIST linked)
  set(MOE_EP_LINKS_CUDA ON)
endif()

install(TARGETS moe_ep EXPORT moe_ep-targets COMPONENT cpp)
install(
  DIRECTORY ${PROJECT_SOURCE_DIR}/include/
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT cpp
  FILES_MATCHING
  PATTERN "*.hpp"
)
install(EXPORT moe_ep-targets NAMESPACE moe_ep:: DESTINATION ${package_dir} COMPONENT cpp)
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/moe_ep-config.cmake.in
  ${PROJECT_BINARY_DIR}/moe_ep-config.cmake
  INSTALL_DESTINATION ${package_dir}
)
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/moe_ep-config-version.cmake
  VERSION ${PROJECT_VERSION}
  COMPATIBILITY SameMinorVersion
)
install(
  FILES ${PROJECT_BINARY_DIR}/moe_ep-config.cmake ${PROJECT_BINARY_DIR}/moe_ep-config-version.cmake
  DESTINATION ${package_dir}
  COMPONENT cpp
)
