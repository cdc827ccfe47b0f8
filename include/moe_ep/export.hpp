/// @file
/// MOE_EP_API marks what the shared library exports; everything else stays hidden.
#pragma once

#if defined(MOE_EP_STATIC)
#define MOE_EP_API
#else
#define MOE_EP_API __attribute__((visibility("default")))
#endif
