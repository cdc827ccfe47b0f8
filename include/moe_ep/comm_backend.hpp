/// @file
/// CommBackend: the small collective interface that set-up, recovery and checkpoints need. It is
/// never used on the hot path.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <moe_ep/export.hpp>

namespace moe_ep {

/// Collectives over the expert-parallel group. Implement it over whatever the runtime already has.
///
/// Every rank of the group calls the same sequence of operations. Messages are byte strings of any
/// length. A failing operation throws; it never returns partial data. Calls of one instance come
/// from one thread at a time.
class MOE_EP_API CommBackend {
 public:
  virtual ~CommBackend();

  virtual int get_rank() const = 0;
  virtual int get_size() const = 0;
  /// Every rank's `message`, in rank order.
  virtual std::vector<std::string> allgather(std::string_view message) = 0;
  /// Rank `root`'s `message` on every rank; the others' is ignored.
  virtual std::string bcast(std::string_view message, int root) = 0;
  virtual void barrier() = 0;
  /// The sub-group of all ranks that pass the same `color`, ordered by `key`, then by rank.
  virtual std::shared_ptr<CommBackend> split(int color, int key) = 0;

  /// Identity of the underlying group: instances whose backends have the same identity may share a
  /// workspace. An adapter over somebody else's group returns that group's address.
  virtual const void* identity() const { return this; }
};

/// Ranks that are threads of one process.
///
/// A time-out, or ranks that call different operations, end the group: every rank's present call
/// throws, and so does every later one at once. Sub-groups of split() are groups of their own.
///
/// @code
/// moe_ep::LocalGroup group(4);
/// // in thread r:  auto comm = group.backend(r);
/// @endcode
class MOE_EP_API LocalGroup {
 public:
  /// @param timeout an operation that some rank has not entered by then throws MoEEpTimeoutError
  ///   (phase setup) that names it.
  explicit LocalGroup(int size, std::chrono::milliseconds timeout = std::chrono::minutes(5));
  ~LocalGroup();
  LocalGroup(const LocalGroup&) = delete;
  LocalGroup& operator=(const LocalGroup&) = delete;

  int size() const;
  /// Rank `rank`'s member. May be called from any thread; one object serves one thread. All calls
  /// with the same rank return the same object. It keeps the group's state alive.
  std::shared_ptr<CommBackend> backend(int rank);

  struct State;

 private:
  std::shared_ptr<State> state_;
};

/// Ranks that are processes of one host, joined through a Unix socket at `path` (mode 0600).
///
/// Rank 0 listens and relays; the others connect and retry until `timeout`. Peers of another user
/// are refused (SO_PEERCRED). Frames are length-checked and typed; a message, and all messages of
/// an allgather together, hold at most 1 GiB. The socket's name is removed as soon as everybody has
/// connected; one that a dead process left behind is replaced.
///
/// Construction succeeds on every rank or throws on every rank that has come. MoEEpTimeoutError
/// (phase setup) names the ranks that did not come in time, MoEEpError one that died, that broke
/// the protocol or whose arguments contradict the group. Either ends the group, as in LocalGroup.
/// The sub-groups of split() have sockets of their own, beside `path`, and outlive their parent.
class MOE_EP_API UnixSocketBackend final : public CommBackend {
 public:
  /// @param path of the socket, in a directory that all ranks see; the same on every rank
  /// @param timeout of the construction and of every operation
  UnixSocketBackend(const std::string& path, int rank, int world_size,
                    std::chrono::milliseconds timeout = std::chrono::minutes(5));
  ~UnixSocketBackend() override;
  UnixSocketBackend(const UnixSocketBackend&) = delete;
  UnixSocketBackend& operator=(const UnixSocketBackend&) = delete;

  int get_rank() const override;
  int get_size() const override;
  std::vector<std::string> allgather(std::string_view message) override;
  std::string bcast(std::string_view message, int root) override;
  void barrier() override;
  std::shared_ptr<CommBackend> split(int color, int key) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moe_ep
