# Install rules, the CMake package and moe_ep.pc. The wheel uses them too, with moe_ep/ as the prefix.
include(CMakePackageConfigHelpers)
include(${CMAKE_CURRENT_LIST_DIR}/pkg_config.cmake)

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

set(cuda_libdir)
if(MOE_EP_LINKS_CUDA)
  set(cuda_libdir ${CUDAToolkit_LIBRARY_DIR})
endif()
moe_ep_write_pkg_config(
  OUTPUT ${PROJECT_BINARY_DIR}/moe_ep.pc
  TYPE ${MOE_EP_LIBRARY_TYPE}
  LIBDIR ${CMAKE_INSTALL_LIBDIR}
  INCLUDEDIR ${CMAKE_INSTALL_INCLUDEDIR}
  CUDA_LIBDIR "${cuda_libdir}"
)
install(
  FILES ${PROJECT_BINARY_DIR}/moe_ep.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
  COMPONENT cpp
)
