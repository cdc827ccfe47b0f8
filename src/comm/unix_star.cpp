#include "comm/unix_star.hpp"

#include <algorithm>
#include <utility>

#include <moe_ep/error.hpp>

namespace moe_ep::detail {
namespace {

// How long a member whose time is up waits for the hub to say who is missing.
constexpr std::chrono::milliseconds kGrace{1000};

std::string call_text(FrameType type, std::uint32_t root) {
  const std::string name = frame_name(type);
  return type == FrameType::kBcast ? name + "(root " + std::to_string(root) + ")" : name;
}

std::string operation_text(FrameType type) {
  return std::string("UnixSocketBackend.") + frame_name(type);
}

std::size_t num_results(FrameType operation, int size) {
  if (operation == FrameType::kBarrier) return 0;
  return operation == FrameType::kBcast ? 1 : static_cast<std::size_t>(size);
}

class Hub final : public Star {
 public:
  Hub(std::vector<Peer> peers, std::chrono::milliseconds timeout)
      : Star(static_cast<int>(peers.size()), timeout), peers_(std::move(peers)) {}

 private:
  std::vector<std::string> exchange(FrameType operation, int root,
                                    std::string_view message) override {
    const Deadline deadline(timeout_);
    std::vector<std::optional<std::string>> parts(peers_.size());
    parts[0] = message;
    while (std::find(parts.begin(), parts.end(), std::nullopt) != parts.end()) {
      collect(operation, root, parts, deadline);
    }
    std::vector<std::string> results;
    if (operation == FrameType::kBcast) {
      results.push_back(std::move(*parts[static_cast<std::size_t>(root)]));
    } else if (operation != FrameType::kBarrier) {
      for (auto& part : parts)
        results.push_back(std::move(*part));
    }
    send_results(operation, pack_messages(results), deadline);
    return results;
  }

  // Waits for something to come and files it. Members whose part is there stay watched: one that
  // dies is noticed while the hub waits for another.
  void collect(FrameType operation, int root, std::vector<std::optional<std::string>>& parts,
               const Deadline& deadline) {
    std::vector<pollfd> polled;
    for (const Peer& peer : peers_) {
      polled.push_back({.fd = peer.fd.get(), .events = POLLIN, .revents = 0});
    }
    bool given_up = !wait_any(polled, deadline, operation_text(operation));
    for (std::size_t rank = 1; rank < peers_.size(); ++rank) {
      if (polled[rank].revents != 0) given_up |= !hear(operation, root, rank, parts[rank]);
    }
    std::vector<int> missing;
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      if (!parts[rank]) missing.push_back(static_cast<int>(rank));
    }
    if (given_up && !missing.empty()) time_out(operation, missing);
  }

  // Reads what rank `rank` sent. False when its time is up.
  bool hear(FrameType operation, int root, std::size_t rank, std::optional<std::string>& part) {
    Peer& peer = peers_[rank];
    const std::string who = "rank " + std::to_string(rank);
    IoResult result = IoResult::kPending;
    try {
      result = peer.reader.read_from(peer.fd.get());
    } catch (const MoEEpError& error) {
      fail(operation, who + " must follow the protocol, got: " + error.what());
    }
    if (result == IoResult::kClosed)
      fail(operation, who + " must stay in the group, got: it has left");
    if (result != IoResult::kDone) return true;
    Frame frame = peer.reader.take();
    if (frame.type == FrameType::kGiveUp) {
      return frame.sequence != sequence_;  // else of an operation that was completed after all
    }
    const auto argument = static_cast<std::uint32_t>(root);
    if (part || frame.type != operation || frame.sequence != sequence_ ||
        frame.argument != argument) {
      fail(operation, "every rank must call the same operation, got " +
                          call_text(operation, argument) + " on rank 0 and " +
                          call_text(frame.type, frame.argument) + " on " + who);
    }
    part = std::move(frame.payload);
    return true;
  }

  void send_results(FrameType operation, const std::string& packed, const Deadline& deadline) {
    if (packed.size() > kMaxFrameBytes) {
      fail(operation, "all messages together must have at most " + std::to_string(kMaxFrameBytes) +
                          " bytes, got " + std::to_string(packed.size()));
    }
    for (std::size_t rank = 1; rank < peers_.size(); ++rank) {
      const IoResult result =
          send_frame(peers_[rank].fd.get(), FrameType::kResult, sequence_, 0, packed, deadline);
      if (result == IoResult::kPending) time_out(operation, {static_cast<int>(rank)});
      if (result == IoResult::kClosed) {
        fail(operation,
             "rank " + std::to_string(rank) + " must stay in the group, got: it has left");
      }
    }
  }

  [[noreturn]] void time_out(FrameType operation, const std::vector<int>& missing) {
    end({operation_text(operation) + ": every rank must enter within " +
             std::to_string(timeout_.count()) + " ms, got nothing from " + ranks_text(missing),
         missing});
  }
  [[noreturn]] void fail(FrameType operation, const std::string& text) {
    end({operation_text(operation) + ": " + text, {}});
  }
  [[noreturn]] void end(const GroupFailure& failure) {
    leave(failure);
    failure.raise();
  }
  // Hanging up wakes those whom the notice did not reach.
  void leave(const GroupFailure& failure) noexcept override {
    for (Peer& peer : peers_) {
      notify_failure(peer, failure);
      peer.fd.reset();
    }
  }

  std::vector<Peer> peers_;  // by rank; entry 0 is empty
};

class Member final : public Star {
 public:
  Member(Peer hub, int size, std::chrono::milliseconds timeout)
      : Star(size, timeout), hub_(std::move(hub)) {}

 private:
  std::vector<std::string> exchange(FrameType operation, int root,
                                    std::string_view message) override {
    const Deadline deadline(timeout_);
    const std::string name = operation_text(operation);
    const IoResult sent = send_frame(hub_.fd.get(), operation, sequence_,
                                     static_cast<std::uint32_t>(root), message, deadline);
    if (sent == IoResult::kClosed) throw_hub_gone(hub_, name);
    if (sent == IoResult::kPending) {
      throw MoEEpTimeoutError(name + ": every rank must enter within " +
                                  std::to_string(timeout_.count()) + " ms, got nothing from rank 0",
                              {0}, Phase::kSetup);
    }
    const Frame frame = await_hub(hub_, sequence_, name, deadline, timeout_);
    if (frame.type != FrameType::kResult || frame.sequence != sequence_) {
      throw MoEEpError(name + ": rank 0 must send the result of operation " +
                       std::to_string(sequence_) + ", got a " + frame_name(frame.type) + " of " +
                       std::to_string(frame.sequence));
    }
    return unpack_messages(frame.payload, num_results(operation, size_));
  }
  void leave(const GroupFailure&) noexcept override { hub_.fd.reset(); }

  Peer hub_;
};

}  // namespace

Frame await_hub(Peer& hub, std::uint32_t sequence, std::string_view operation,
                const Deadline& deadline, std::chrono::milliseconds timeout) {
  Frame frame;
  const int fd = hub.fd.get();
  IoResult result = receive_frame(fd, hub.reader, frame, deadline);
  if (result == IoResult::kPending) {
    const Deadline grace(std::min(timeout, kGrace));
    send_frame(fd, FrameType::kGiveUp, sequence, 0, {}, grace);
    result = receive_frame(fd, hub.reader, frame, grace);
  }
  if (result == IoResult::kClosed) {
    throw MoEEpError(std::string(operation) + ": rank 0 must stay in the group, got: it has left");
  }
  if (result == IoResult::kPending) {
    throw MoEEpTimeoutError(std::string(operation) + ": every rank must enter within " +
                                std::to_string(timeout.count()) + " ms, got nothing from rank 0",
                            {0}, Phase::kSetup);
  }
  if (frame.type == FrameType::kFailure) GroupFailure::decode(frame.payload).raise();
  return frame;
}

void throw_hub_gone(Peer& hub, std::string_view operation) {
  Frame frame;
  const Deadline now(std::chrono::milliseconds(0));
  if (receive_frame(hub.fd.get(), hub.reader, frame, now) == IoResult::kDone &&
      frame.type == FrameType::kFailure) {
    GroupFailure::decode(frame.payload).raise();
  }
  throw MoEEpError(std::string(operation) + ": rank 0 must stay in the group, got: it has left");
}

bool notify_failure(const Peer& peer, const GroupFailure& failure) noexcept {
  if (!peer.fd) return false;
  try {
    const Deadline now(std::chrono::milliseconds(0));
    send_frame(peer.fd.get(), FrameType::kFailure, 0, 0, failure.encode(), now);
  } catch (...) {
    // The peer learns it from the socket's end.
  }
  return true;
}

std::unique_ptr<Star> Star::join(const std::string& path, int rank, int world_size,
                                 std::chrono::milliseconds timeout) {
  if (rank == 0) return std::make_unique<Hub>(hub_join(path, world_size, timeout), timeout);
  return std::make_unique<Member>(member_join(path, rank, world_size, timeout), world_size,
                                  timeout);
}

std::vector<std::string> Star::run(FrameType operation, int root, std::string_view message) {
  if (failure_) failure_->raise();
  if (message.size() > kMaxFrameBytes) {  // refused before the group is out of step
    throw MoEEpError(operation_text(operation) + ": a message must have at most " +
                     std::to_string(kMaxFrameBytes) + " bytes, got " +
                     std::to_string(message.size()));
  }
  ++sequence_;
  try {
    return exchange(operation, root, message);
  } catch (const MoEEpTimeoutError& error) {
    failure_ = GroupFailure{error.what(), error.ranks()};
  } catch (const std::exception& error) {
    failure_ = GroupFailure{error.what(), {}};
  }
  leave(*failure_);
  failure_->raise();
}

}  // namespace moe_ep::detail
