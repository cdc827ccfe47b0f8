# Compile options that every target of this project shares.

# moe_ep_configure_target(<target>): sums must have the same bits everywhere, so the compiler
# may not fuse a*b+c on its own. Where a fused operation is meant, the code spells it.
function(moe_ep_configure_target target)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  # Else CMake 3.25 puts nvcc's default standard behind the option below.
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_compile_options(
    ${target}
    PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
      # CMake 3.25 does not know CUDA_STANDARD 20 for nvcc.
      $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>
      $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false>
      $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-ffp-contract=off>
  )
endfunction()

# moe_ep_set_warnings(<target> [TESTS])
#
# TESTS leaves out -Wconversion and -Wpedantic: test tables are full of literals, and the
# macros of GoogleTest are not ours.
function(moe_ep_set_warnings target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TESTS" "" "")
  set(
    flags
    -Wall
    -Wextra
    -Wshadow
    -Wnon-virtual-dtor
    -Woverloaded-virtual
  )
  set(cuda_flags -Xcompiler=-Wall,-Wextra)
  if(NOT arg_TESTS)
    list(APPEND flags -Wpedantic -Wconversion)
  endif()
  if(MOE_EP_WERROR)
    list(APPEND flags -Werror)
    list(APPEND cuda_flags -Werror=all-warnings)
  endif()
  target_compile_options(
    ${target}
    PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${flags}>" "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_flags}>"
  )
endfunction()
