// Twin of src/cuda/driver.hpp for the emulator: what the platform asks of the driver.
#pragma once

namespace moe_ep::cuda {

enum CUresult { CUDA_SUCCESS = 0 };
using CUcontext = const void*;

struct Driver {
  // A thread has a context once it has chosen a device.
  CUresult (*cuCtxGetCurrent)(CUcontext* context);

  static const Driver& get();
};

}  // namespace moe_ep::cuda
