// The CUDA backend: enqueues the kernels of steps on one GPU.
#pragma once

#include <memory>

#include "backend/platform.hpp"

namespace moe_ep::cuda {

std::unique_ptr<Backend> make_cuda_backend(const PlatformOptions& options,
                                           std::shared_ptr<protocol::FailureRecord> record);

}  // namespace moe_ep::cuda
