// How an enqueued step ended early, where the host can look without waiting for the device.
#pragma once

#include <cstdint>

#include "protocol/wait.hpp"

namespace moe_ep::protocol {

// Host memory that the device writes (mapped). Once a slice's first failure is in, later ones are
// not recorded until the slice is reset.
struct FailureRecord {
  std::uint32_t state =
      0;  // kRecorded once `status` holds: release by the device, acquire by hosts
  std::uint32_t unused = 0;
  StepStatus status;

  static constexpr std::uint32_t kRecorded = 1;
};

}  // namespace moe_ep::protocol
