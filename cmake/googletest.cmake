# GoogleTest, from the first place that has it: MOE_EP_GTEST_SOURCE_DIR, an installed package, the
# source package of Debian, the network. Sets MOE_EP_GTEST_LIBRARIES.
set(gtest_source ${MOE_EP_GTEST_SOURCE_DIR})
if(NOT gtest_source)
  find_package(GTest 1.12 QUIET)
  if(NOT GTest_FOUND AND EXISTS /usr/src/googletest/CMakeLists.txt)
    set(gtest_source /usr/src/googletest)
  endif()
endif()

if(NOT TARGET GTest::gtest_main)
  include(FetchContent)
  set(INSTALL_GTEST OFF CACHE BOOL "" FORCE)
  set(BUILD_GMOCK ON CACHE BOOL "" FORCE)
  if(gtest_source)
    FetchContent_Declare(googletest SOURCE_DIR ${gtest_source})
  else()
    message(STATUS "moe_ep: GoogleTest is not installed, downloading it")
    FetchContent_Declare(
      googletest
      URL https://github.com/google/googletest/releases/download/v1.17.0/googletest-1.17.0.tar.gz
      URL_HASH SHA256=65fab701d9829d38cb77c14acdc431d2108bfdbf8979e40eb8ae567edf10b27c
      DOWNLOAD_EXTRACT_TIMESTAMP ON
    )
  endif()
  FetchContent_MakeAvailable(googletest)
endif()

set(MOE_EP_GTEST_LIBRARIES GTest::gtest_main GTest::gmock)
include(GoogleTest)
