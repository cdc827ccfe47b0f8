// The star under UnixSocketBackend: rank 0 is the hub, which collects every rank's part of an
// operation and sends the result; the other ranks are its members and know nobody else.
//
// Time-outs: whoever's time is up first ends the group. The hub knows who is missing and tells the
// others; a member that runs out asks the hub to do so (kGiveUp) and, if the hub does not answer
// either, names rank 0.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/frame.hpp"
#include "comm/group_failure.hpp"
#include "comm/unique_fd.hpp"

namespace moe_ep::detail {

// One end of a connection, with what has come of the next frame.
struct Peer {
  UniqueFd fd;
  FrameReader reader;
};

// Payload of a kHello frame.
struct Hello {
  static constexpr std::uint32_t kVersion = 1;
  std::uint32_t version = kVersion;
  std::int32_t world_size = 0;
  std::int32_t rank = 0;
};

// Set-up. All ranks return together, or all throw.
// `hub_join` returns a peer for every rank; its own entry stays empty.
std::vector<Peer> hub_join(const std::string& path, int world_size,
                           std::chrono::milliseconds timeout);
Peer member_join(const std::string& path, int rank, int world_size,
                 std::chrono::milliseconds timeout);

// A member waits for the hub's next frame; past the deadline it gives up as said above.
// @throws MoEEpTimeoutError, MoEEpError (the failure that the hub announced, or the hub is gone)
Frame await_hub(Peer& hub, std::uint32_t sequence, std::string_view operation,
                const Deadline& deadline, std::chrono::milliseconds timeout);
// The failure that the hub announced before it hung up, if any.
[[noreturn]] void throw_hub_gone(Peer& hub, std::string_view operation);

// Tells a peer that the group has ended, as far as its socket takes it without waiting.
bool notify_failure(const Peer& peer, const GroupFailure& failure) noexcept;

// One rank's side of a joined group. After an exception every later call throws the same again.
class Star {
 public:
  static std::unique_ptr<Star> join(const std::string& path, int rank, int world_size,
                                    std::chrono::milliseconds timeout);
  virtual ~Star() = default;
  Star(const Star&) = delete;
  Star& operator=(const Star&) = delete;

  // Runs one operation. Returns all ranks' messages (kAllgather, kSplit), the root's alone (kBcast)
  // or none (kBarrier).
  std::vector<std::string> run(FrameType operation, int root, std::string_view message);

 protected:
  Star(int size, std::chrono::milliseconds timeout) : size_(size), timeout_(timeout) {}
  virtual std::vector<std::string> exchange(FrameType operation, int root,
                                            std::string_view message) = 0;
  // Hangs up for good, so that no peer waits for this rank.
  virtual void leave(const GroupFailure& failure) noexcept = 0;

  const int size_;
  const std::chrono::milliseconds timeout_;
  std::uint32_t sequence_ = 0;

 private:
  std::optional<GroupFailure> failure_;
};

}  // namespace moe_ep::detail
