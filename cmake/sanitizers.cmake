# MOE_EP_SANITIZE=thread | address,undefined, for the whole tree: an instrumented library with
# plain tests (or the other way round) misses races.
if(MOE_EP_SANITIZE)
  if(NOT MOE_EP_SANITIZE MATCHES "^(thread|address|undefined|address,undefined)$")
    message(
      FATAL_ERROR
      "MOE_EP_SANITIZE must be thread or address,undefined, got ${MOE_EP_SANITIZE}"
    )
  endif()
  if(MOE_EP_BUILD_PYTHON)
    message(FATAL_ERROR "MOE_EP_SANITIZE is for the C++ tests; set MOE_EP_BUILD_PYTHON=OFF")
  endif()
  add_compile_options(
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${MOE_EP_SANITIZE}>
    $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>
    # Its probe opens a pipe, which tests that run out of descriptors cannot grant.
    $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=vptr>
    $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>
    $<$<COMPILE_LANGUAGE:CXX>:-g1>
    $<$<COMPILE_LANGUAGE:CXX>:-O1>
  )
  add_link_options(-fsanitize=${MOE_EP_SANITIZE})
endif()
