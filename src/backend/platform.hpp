// Platform: where the slices of a group lie, and who executes the steps there.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <moe_ep/comm_backend.hpp>
#include <moe_ep/tensor.hpp>
#include <moe_ep/types.hpp>
#include <moe_ep/workspace.hpp>

#include "backend/backend.hpp"
#include "protocol/failure_record.hpp"

namespace moe_ep {

// What of an instance's options concerns the platform.
struct PlatformOptions {
  Device device;
  int num_threads = 1;             // hosts
  std::optional<bool> enable_pdl;  // devices, as max_sms and require_nvlink
  std::optional<int> max_sms;
  bool require_nvlink = true;
};

class Platform {
 public:
  virtual ~Platform() = default;

  // Why instances cannot run in this process; empty if they can, as far as can be told without
  // initialising a device.
  virtual std::string explain() const = 0;
  // Whether steps can take the transport here.
  virtual bool has(Transport transport) const = 0;
  // Largest T of Lamport steps that nobody has asked for, memory allowing: as far as they are fast.
  virtual std::int64_t default_lamport_tokens() const = 0;
  // Where a rank's tensors lie.
  // @param wanted the caller's choice of an ordinal
  // @throws MoEEpError, std::invalid_argument
  virtual Device choose_device(std::optional<int> wanted, int rank) const = 0;
  // Collective over `members`; see SymmetricWorkspace.
  virtual std::shared_ptr<SymmetricWorkspace> create_memory(
      CommBackend& comm, std::size_t bytes, const PlatformOptions& options, int num_ranks,
      const std::vector<int>& members) const = 0;
  // For the failures of a slice's steps, which all instances on the slice have in common. Null
  // where steps run to their end.
  virtual std::shared_ptr<protocol::FailureRecord> create_record(Device device) const = 0;
  virtual std::unique_ptr<Backend> create_backend(
      const PlatformOptions& options, std::shared_ptr<protocol::FailureRecord> record) const = 0;
};

const Platform& host_platform();
// Also there in builds without CUDA, where it explains why it cannot be used.
const Platform& cuda_platform();

}  // namespace moe_ep
