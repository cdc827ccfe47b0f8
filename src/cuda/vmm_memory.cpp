// SymmetricWorkspace in device memory: every rank maps every slice into a range of its own.
//
// Set-up is a row of steps; after each, ranks tell each other whether theirs went well, so that one
// rank's failure ends the construction everywhere and what was made so far is taken back by its
// owners:
//
//   announce GPU, host and size | choose the kind of handles | own memory, mapped and zeroed |
//   hand it out | map the peers' | everybody is done

#include <algorithm>
#include <cstring>
#include <optional>

#include <moe_ep/workspace.hpp>

#include "comm/agree.hpp"
#include "cuda/device_guard.hpp"
#include "cuda/group_devices.hpp"
#include "cuda/vmm_range.hpp"
#include "memory/fd_passing.hpp"

namespace moe_ep {
namespace cuda {
namespace {

using detail::failure_of;
using detail::gather_outcomes;
using detail::UniqueFd;

constexpr const char* kOperation = "device memory";

class CudaWorkspace final : public SymmetricWorkspace {
 public:
  CudaWorkspace(CommBackend& comm, std::size_t bytes, int device, int num_ranks,
                const std::vector<int>& members, bool require_nvlink)
      : ordinal_(device), require_nvlink_(require_nvlink) {
    device_ = {Device::kCuda, device};
    const int position = comm.get_rank();
    if (position < 0 || static_cast<std::size_t>(position) >= members.size() ||
        static_cast<std::size_t>(comm.get_size()) != members.size()) {
      throw MoEEpError("device memory: the group must be the members, got " +
                       std::to_string(comm.get_size()) + " ranks for " +
                       std::to_string(members.size()) + " members");
    }
    num_ranks_ = num_ranks;
    rank_ = members[static_cast<std::size_t>(position)];
    bytes_ = bytes;
    const auto group = announce(comm);
    const HandleKind kind = choose_kind(group);
    const auto failure = failure_of([&] {
      const DeviceGuard guard(ordinal_);
      const std::size_t granularity = granularity_of(group);
      slice_stride_ =
          (std::max<std::size_t>(bytes_, 1) + granularity - 1) / granularity * granularity;
      range_.emplace(num_ranks_, slice_stride_, granularity, ordinal_);
      base_ = range_->base();
      take_memory(kind);
    });
    gather_outcomes(comm, kOperation, failure);
    map_peers(comm, members, kind);
    id_ = group.front().id;
    mapped_ = true;
  }

  ~CudaWorkspace() override {
    // Kernels that use the memory have ended: that is the owner's affair, who knows their streams.
    range_.reset();
    memory_.reset();
  }

  void checkpoint_prepare(CommBackend& comm) override {
    if (!mapped_) return;
    gather_outcomes(comm, kOperation, failure_of([&] {
                      const DeviceGuard guard(ordinal_);
                      MOE_EP_CUDA_CHECK(cudaDeviceSynchronize());
                    }));  // nobody's kernels use any slice now
    release();
    // Nobody goes on while a peer still holds memory of his.
    gather_outcomes(comm, kOperation, std::nullopt);
  }

  void checkpoint_restore(CommBackend& comm) override {
    if (mapped_) return;
    try {
      take_new_memory(comm);
    } catch (...) {
      release();  // a slice that is mapped already would fail every further attempt
      throw;
    }
    mapped_ = true;
  }

  void discard() noexcept override { release(); }

  void remap(CommBackend& comm, const std::vector<int>& members) override {
    const auto group = announce(comm);
    gather_outcomes(comm, kOperation, failure_of([&] {
                      const DeviceGuard guard(ordinal_);
                      require_stride(group);
                      MOE_EP_CUDA_CHECK(cudaDeviceSynchronize());
                      for (int rank = 0; rank < num_ranks_; ++rank) {
                        if (rank != rank_) range_->unmap(rank);
                      }
                    }));
    map_peers(comm, members, choose_kind(group));
    id_ = group.front().id;
  }

 private:
  void take_new_memory(CommBackend& comm) {
    const auto group = announce(comm);
    const HandleKind kind = choose_kind(group);
    gather_outcomes(comm, kOperation, failure_of([&] {
                      const DeviceGuard guard(ordinal_);
                      require_stride(group);
                      take_memory(kind);
                    }));
    std::vector<int> everybody;
    for (int rank = 0; rank < num_ranks_; ++rank)
      everybody.push_back(rank);
    map_peers(comm, everybody, kind);
    id_ = group.front().id;
  }

  // First step of everything collective: all ranks' facts, checked for agreement.
  std::vector<DeviceFacts> announce(CommBackend& comm) {
    DeviceFacts own;
    auto failure = failure_of([&] {
      const DeviceGuard guard(ordinal_);
      own = read_device(ordinal_, bytes_);
      if (memory_) own.fixed_kind = static_cast<std::int32_t>(kind_);
    });
    const auto texts = gather_outcomes(comm, kOperation, failure, own.encode());
    std::vector<DeviceFacts> group;
    failure = failure_of([&] {
      for (const std::string& text : texts)
        group.push_back(DeviceFacts::decode(text));
      for (const DeviceFacts& peer : group) {
        if (peer.bytes != bytes_) {
          throw MoEEpError("slices must have the same size on every rank, got " +
                           std::to_string(bytes_) + " and " + std::to_string(peer.bytes) +
                           " bytes");
        }
        const std::string reason = why_unreachable(own, peer, require_nvlink_);
        if (!reason.empty()) throw MoEEpError(reason);
      }
      choose_kind(group);
      ranks_on_device_ =
          static_cast<int>(std::count_if(group.begin(), group.end(), [&](const DeviceFacts& peer) {
            return peer.host == own.host && peer.uuid == own.uuid;
          }));
    });
    gather_outcomes(comm, kOperation, failure);
    return group;
  }

  static std::size_t granularity_of(const std::vector<DeviceFacts>& group) {
    std::uint64_t granularity = 1;
    for (const DeviceFacts& facts : group)
      granularity = std::max(granularity, facts.granularity);
    return static_cast<std::size_t>(granularity);
  }

  void require_stride(const std::vector<DeviceFacts>& group) const {
    if (slice_stride_ % granularity_of(group) == 0) return;
    throw MoEEpError("slices must keep their distance, got a GPU that maps memory in units of " +
                     std::to_string(granularity_of(group)) + " bytes");
  }

  // Own slice, mapped and zeroed. What there is of it if it throws, release() or the destructors
  // give back.
  void take_memory(HandleKind kind) {
    kind_ = kind;
    memory_ = VmmHandle::create(ordinal_, slice_stride_, kind);
    range_->map(rank_, memory_);
    MOE_EP_CUDA_CHECK(cudaMemset(slice(rank_), 0, slice_stride_));
    MOE_EP_CUDA_CHECK(cudaDeviceSynchronize());
  }

  // Collective over `members`: hands the own memory out and maps theirs.
  void map_peers(CommBackend& comm, const std::vector<int>& members, HandleKind kind) {
    std::vector<VmmHandle> handles(members.size());
    std::optional<std::string> failure;
    if (kind == HandleKind::kFabric) {
      std::string own;
      failure = failure_of([&] { own = memory_.export_fabric(); });
      const auto texts = gather_outcomes(comm, kOperation, failure, own);
      failure = failure_of([&] {
        for (std::size_t i = 0; i < members.size(); ++i) {
          if (members[i] != rank_) handles[i] = VmmHandle::import_fabric(texts[i]);
        }
      });
    } else {
      UniqueFd own;
      failure = failure_of([&] { own = memory_.export_fd(); });
      gather_outcomes(comm, kOperation, failure);
      const std::vector<UniqueFd> fds = memory::exchange_fds(comm, own.get());
      failure = failure_of([&] {
        for (std::size_t i = 0; i < members.size(); ++i) {
          if (members[i] != rank_) handles[i] = VmmHandle::import_fd(fds[i]);
        }
      });
    }
    if (!failure) {
      failure = failure_of([&] {
        const DeviceGuard guard(ordinal_);
        for (std::size_t i = 0; i < members.size(); ++i) {
          if (members[i] != rank_) range_->map(members[i], handles[i]);
        }
      });
    }
    gather_outcomes(comm, kOperation, failure);
  }

  void release() noexcept {
    for (int rank = 0; rank < num_ranks_; ++rank)
      range_->unmap(rank);
    memory_.reset();
    mapped_ = false;
  }

  const int ordinal_;
  const bool require_nvlink_;
  HandleKind kind_ = HandleKind::kFd;  // that memory_ was made for
  std::optional<VmmRange> range_;
  VmmHandle memory_;
};

}  // namespace
}  // namespace cuda

std::shared_ptr<SymmetricWorkspace> SymmetricWorkspace::create_cuda(CommBackend& comm,
                                                                    std::size_t bytes, int device,
                                                                    int num_ranks,
                                                                    const std::vector<int>& members,
                                                                    bool require_nvlink) {
  return std::make_shared<cuda::CudaWorkspace>(comm, bytes, device, num_ranks, members,
                                               require_nvlink);
}

}  // namespace moe_ep
