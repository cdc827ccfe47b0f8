/// @file
/// SymmetricWorkspace: one allocation a rank ("slice"), every slice mapped on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <moe_ep/comm_backend.hpp>
#include <moe_ep/export.hpp>
#include <moe_ep/tensor.hpp>

namespace moe_ep {

/// Symmetric memory of an expert-parallel group.
///
/// Slice r is rank r's memory; all slices lie at `base() + r * slice_stride()` of one contiguous
/// reserved range, the same distance apart on every rank. An inaccessible guard page lies before
/// the first slice, between neighbours and after the last one.
///
/// Construction and the other collectives succeed on every rank or throw on every rank, naming the
/// ranks that failed and why. Arguments that must agree and do not: std::invalid_argument on every
/// rank; anything else MoEEpError. Destruction is local and never waits for a peer: a slice's
/// physical memory lives until the last rank unmaps it.
class MOE_EP_API SymmetricWorkspace {
 public:
  virtual ~SymmetricWorkspace();
  SymmetricWorkspace(const SymmetricWorkspace&) = delete;
  SymmetricWorkspace& operator=(const SymmetricWorkspace&) = delete;

  /// Host memory shared between processes (memfd passed over Unix sockets) or threads.
  ///
  /// If all ranks live in one process they share one mapping; otherwise each rank maps its peers'
  /// slices at its own addresses. The memory is zero, and all of it is there: too little memory is
  /// an error here, never a signal later.
  /// @param bytes of one slice, equal on every rank; slice_stride() is that, rounded up to whole
  ///   pages, and a guard page
  static std::shared_ptr<SymmetricWorkspace> create_host(CommBackend& comm, std::size_t bytes);

  /// The same for a group some of whose ranks are away: `comm` spans exactly `members`, the ranks
  /// of the group that are there, ascending; comm's rank i is `members[i]`. The others' slices are
  /// reserved but not accessible. A rank that starts anew makes its workspace alone (a group of
  /// one, itself the only member) and then takes part in the others' remap().
  static std::shared_ptr<SymmetricWorkspace> create_host(CommBackend& comm, std::size_t bytes,
                                                         int num_ranks,
                                                         const std::vector<int>& members);

  /// Memory of CUDA device `device` (an ordinal of this process), mapped on every rank by virtual
  /// memory management; in builds with CUDA. Several ranks may share a GPU or a process.
  ///
  /// Handles are FABRIC where every rank can make and name them (ranks may then live on several
  /// hosts), else descriptors passed over Unix sockets (one host). Each rank's mapping is
  /// accessible to its own device only. The memory is zero. Before it is destroyed or unmapped,
  /// kernels that use it must have ended.
  /// @param members,num_ranks as for create_host()
  /// @param require_nvlink refuse GPUs of one host that NVLink does not connect
  static std::shared_ptr<SymmetricWorkspace> create_cuda(CommBackend& comm, std::size_t bytes,
                                                         int device, int num_ranks,
                                                         const std::vector<int>& members,
                                                         bool require_nvlink = true);

  /// Where this rank's slice lies.
  Device device() const noexcept { return device_; }
  int rank() const noexcept { return rank_; }
  int num_ranks() const noexcept { return num_ranks_; }
  /// Usable bytes of a slice.
  std::size_t bytes() const noexcept { return bytes_; }
  /// Distance between neighbouring slices.
  std::size_t slice_stride() const noexcept { return slice_stride_; }
  std::byte* base() const noexcept { return base_; }
  std::byte* slice(int rank) const noexcept {
    return base_ + static_cast<std::size_t>(rank) * slice_stride_;
  }
  /// Members whose slices lie on this rank's GPU, itself included; host memory: 1.
  int ranks_on_device() const noexcept { return ranks_on_device_; }
  /// False between checkpoint_prepare() and checkpoint_restore().
  bool mapped() const noexcept { return mapped_; }
  /// A number all ranks of this workspace agree on and no other workspace has.
  std::uint64_t id() const noexcept { return id_; }

  /// Collective. Frees the physical memory, keeps the addresses reserved. No-op when unmapped.
  virtual void checkpoint_prepare(CommBackend& comm) = 0;
  /// Collective over the same ranks. New zeroed memory at the old addresses. No-op when mapped.
  virtual void checkpoint_restore(CommBackend& comm) = 0;
  /// Local. Gives the memory back as checkpoint_prepare() does, without the group: for a caller
  /// whose own part of a restore has failed, so that all ranks can restore once more.
  virtual void discard() noexcept = 0;
  /// Collective over `members` (see create_host). Maps the members' present memory at the old
  /// addresses; slices of non-members become inaccessible. The id becomes a new one that all
  /// members agree on. Own memory and its contents stay as long as every former member takes part.
  /// Host memory is new and zeroed otherwise: a former member that is left out or replaced may
  /// still run and keeps the old memory, so that it cannot write into this one.
  virtual void remap(CommBackend& comm, const std::vector<int>& members) = 0;

 protected:
  SymmetricWorkspace() = default;

  Device device_;
  int rank_ = 0;
  int num_ranks_ = 1;
  std::size_t bytes_ = 0;
  std::size_t slice_stride_ = 0;
  std::byte* base_ = nullptr;
  bool mapped_ = false;
  int ranks_on_device_ = 1;
  std::uint64_t id_ = 0;
};

}  // namespace moe_ep
