/// @file
/// The one place the version is written. CMake, the wheel and `moe-ep --version` read it here.
#pragma once

#define MOE_EP_VERSION_MAJOR 0
#define MOE_EP_VERSION_MINOR 1
#define MOE_EP_VERSION_PATCH 0
#define MOE_EP_VERSION_STRING "0.1.0"
