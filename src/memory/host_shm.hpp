// The SymmetricWorkspace in host memory. One memory segment a rank; every rank maps all of them,
// and ranks that are threads of one process share one mapping, so that they (and a race detector)
// see each word at one address.
//
// Every collective here has the same shape: local work whose failure is kept as text, then
// gather_outcomes(), which makes all ranks go on or all throw. A rank never returns between a
// peer's promise and its own.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include <moe_ep/workspace.hpp>

#include "memory/host_segment.hpp"
#include "memory/member_info.hpp"
#include "memory/slice_map.hpp"

namespace moe_ep::memory {

class HostWorkspace final : public SymmetricWorkspace {
 public:
  // Collective; see SymmetricWorkspace::create_host.
  HostWorkspace(CommBackend& comm, std::size_t bytes, int num_ranks,
                const std::vector<int>& members);
  ~HostWorkspace() override;

  void checkpoint_prepare(CommBackend& comm) override;
  void checkpoint_restore(CommBackend& comm) override;
  void discard() noexcept override;
  void remap(CommBackend& comm, const std::vector<int>& members) override;

 private:
  void require_members(const CommBackend& comm, const std::vector<int>& members) const;
  void require_own_place(const CommBackend& comm, const std::vector<int>& members) const;
  std::size_t segment_bytes() const;
  MemberInfo describe(const std::vector<int>& members) const;
  void create_view(CommBackend& comm, const std::vector<MemberInfo>& infos);
  void map_segments(const std::vector<MemberInfo>& infos, std::size_t own,
                    const SharedSegments& segments, bool renewed, std::string_view operation);
  void unmap_absent(const std::vector<int>& members);

  HostSegment segment_;
  std::shared_ptr<SliceMap> view_;
  std::vector<int> members_;
};

}  // namespace moe_ep::memory
