#include <moe_ep/workspace.hpp>

#include <numeric>

#include "memory/host_shm.hpp"

namespace moe_ep {

SymmetricWorkspace::~SymmetricWorkspace() = default;

std::shared_ptr<SymmetricWorkspace> SymmetricWorkspace::create_host(CommBackend& comm,
                                                                    std::size_t bytes) {
  std::vector<int> everybody(static_cast<std::size_t>(comm.get_size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  return create_host(comm, bytes, comm.get_size(), everybody);
}

std::shared_ptr<SymmetricWorkspace> SymmetricWorkspace::create_host(
    CommBackend& comm, std::size_t bytes, int num_ranks, const std::vector<int>& members) {
  return std::make_shared<memory::HostWorkspace>(comm, bytes, num_ranks, members);
}

}  // namespace moe_ep
