# Builds the consumer with what moe_ep.pc says: against the install tree after a move, in a
# Debian-like layout, and against an archive.
if(NOT PKG_CONFIG)
  message("skipped: neither pkg-config nor pkgconf was found")
  return()
endif()
include(${PROJECT_DIR}/cmake/pkg_config.cmake)
set(PROJECT_VERSION ${VERSION})
set(PROJECT_DESCRIPTION "test")
file(REMOVE_RECURSE ${WORK_DIR})

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# pkg-config's answer for the tree at `prefix`, as a list.
function(ask answer prefix libdir)
  set(ENV{PKG_CONFIG_PATH} ${prefix}/${libdir}/pkgconfig)
  execute_process(
    COMMAND ${PKG_CONFIG} ${ARGN} moe_ep
    OUTPUT_VARIABLE output
    OUTPUT_STRIP_TRAILING_WHITESPACE
    COMMAND_ERROR_IS_FATAL ANY
  )
  separate_arguments(output UNIX_COMMAND "${output}")
  set(${answer} "${output}" PARENT_SCOPE)
endfunction()

function(build_and_run prefix libdir)
  ask(version ${prefix} ${libdir} --modversion)
  if(NOT version STREQUAL VERSION)
    message(FATAL_ERROR "moe_ep.pc must say version ${VERSION}, got '${version}'")
  endif()
  ask(flags ${prefix} ${libdir} --cflags --libs ${ARGN})
  message("${libdir}: ${flags}")
  run(
    ${CXX} -std=c++20 ${PROJECT_DIR}/examples/cpp_consumer/main.cpp -o ${prefix}/consumer ${flags}
    -Wl,-rpath,${prefix}/${libdir}
  )
  run(${prefix}/consumer)
endfunction()

if(IS_ABSOLUTE "${LIBDIR}")
  message("skipped: an absolute CMAKE_INSTALL_LIBDIR (${LIBDIR}) is not written to by tests")
  return()
endif()
run(
  ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/first --config ${CONFIG} --component
  cpp
)
file(RENAME ${WORK_DIR}/first ${WORK_DIR}/moved)
build_and_run(${WORK_DIR}/moved ${LIBDIR})

set(debian ${WORK_DIR}/debian)
set(multiarch lib/x86_64-linux-gnu)
file(MAKE_DIRECTORY ${debian}/lib)
file(RENAME ${WORK_DIR}/moved/${LIBDIR} ${debian}/${multiarch})
file(RENAME ${WORK_DIR}/moved/${INCLUDEDIR} ${debian}/include)
moe_ep_write_pkg_config(
  OUTPUT ${debian}/${multiarch}/pkgconfig/moe_ep.pc
  TYPE SHARED_LIBRARY
  LIBDIR ${multiarch}
  INCLUDEDIR include
)
build_and_run(${debian} ${multiarch})

if(HAS_CUDA) # the archive would need the toolkit's libraries, and which those are is not known here
  return()
endif()
set(archive ${WORK_DIR}/archive)
file(MAKE_DIRECTORY ${archive}/lib)
file(RENAME ${debian}/include ${archive}/include)
run(${AR} rcs ${archive}/lib/libmoe_ep.a ${OBJECTS})
moe_ep_write_pkg_config(
  OUTPUT ${archive}/lib/pkgconfig/moe_ep.pc
  TYPE STATIC_LIBRARY
  LIBDIR lib
  INCLUDEDIR include
)
build_and_run(${archive} lib)
build_and_run(${archive} lib --static)
