// Set-up of the star: who may join, and what happens to those who may not.
//
// A connection that does not speak the protocol, or another user's, is a stranger: it is turned
// away and the group goes on waiting (the time-out's text mentions it). One that speaks it but
// contradicts the group (other size, other version, a rank twice) is a misconfigured member: the
// whole group fails, because it can never be complete.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <moe_ep/error.hpp>

#include "comm/unix_address.hpp"
#include "comm/unix_star.hpp"

namespace moe_ep::detail {
namespace {

constexpr std::string_view kOperation = "UnixSocketBackend";
constexpr int kRetryMs = 2;
// How long a failed hub waits for members that start at the same time as it.
constexpr std::chrono::milliseconds kLinger{2000};

std::string failed(const std::string& text) {
  return std::string(kOperation) + ": " + text;
}

class Gathering {
 public:
  Gathering(const std::string& path, int world_size, std::chrono::milliseconds timeout)
      : timeout_(timeout),
        deadline_(timeout),
        members_(static_cast<std::size_t>(world_size)),
        listener_(kOperation, path, SOCK_STREAM, world_size) {}

  std::vector<Peer> run() {
    while (num_joined_ < members_.size()) {
      poll_once();
      if (given_up_) time_out();
    }
    // The name is free for the next group before any member can start one.
    listener_.close();
    for (Peer& member : members_) {
      if (member.fd) send_frame(member.fd.get(), FrameType::kWelcome, 0, 0, {}, deadline_);
    }
    return std::move(members_);
  }

 private:
  void poll_once() {
    std::vector<pollfd> polled{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const Peer& stranger : strangers_) {
      polled.push_back({.fd = stranger.fd.get(), .events = POLLIN, .revents = 0});
    }
    for (const Peer& member : members_) {  // poll() skips the empty ones, their number is -1
      polled.push_back({.fd = member.fd.get(), .events = POLLIN, .revents = 0});
    }
    if (!wait_any(polled, deadline_, kOperation)) time_out();
    const std::size_t num_strangers = strangers_.size();
    for (std::size_t rank = 1; rank < members_.size(); ++rank) {
      if (polled[1 + num_strangers + rank].revents != 0) hear(static_cast<int>(rank));
    }
    for (std::size_t i = 0; i < num_strangers; ++i) {
      if (polled[1 + i].revents != 0) greet(strangers_[i]);
    }
    std::erase_if(strangers_, [](const Peer& stranger) { return !stranger.fd; });
    if (polled[0].revents != 0) accept_all();
  }

  void accept_all() {
    while (UniqueFd fd = listener_.accept(kOperation)) {
      const uid_t uid = peer_uid(fd.get(), kOperation);
      Peer stranger{std::move(fd), {}};
      if (uid == ::geteuid()) {
        strangers_.push_back(std::move(stranger));
      } else {
        turn_away(stranger, "a peer must run as user " + std::to_string(::geteuid()) +
                                ", got user " + std::to_string(uid));
      }
    }
  }

  // Reads a stranger's hello. It is a stranger no more then: member, or turned away.
  void greet(Peer& stranger) {
    Frame frame;
    try {
      const IoResult result = stranger.reader.read_from(stranger.fd.get());
      if (result == IoResult::kPending) return;
      if (result == IoResult::kClosed) {  // it only looked whether somebody listens
        stranger.fd.reset();
        return;
      }
      frame = stranger.reader.take();
    } catch (const MoEEpError& error) {
      turn_away(stranger, error.what());
      return;
    }
    Hello hello;
    if (frame.type != FrameType::kHello || frame.payload.size() != sizeof hello) {
      turn_away(stranger,
                std::string("a peer must say hello first, got a ") + frame_name(frame.type));
      return;
    }
    std::memcpy(&hello, frame.payload.data(), sizeof hello);
    require_fits(hello);
    members_[static_cast<std::size_t>(hello.rank)] = std::exchange(stranger, {});
    ++num_joined_;
  }

  void require_fits(const Hello& hello) {
    const int world_size = static_cast<int>(members_.size());
    const std::string who = "rank " + std::to_string(hello.rank);
    if (hello.version != Hello::kVersion) {
      fail("every rank must speak protocol version " + std::to_string(Hello::kVersion) + ", got " +
           std::to_string(hello.version) + " from " + who);
    }
    if (hello.world_size != world_size) {
      fail("world_size must be equal on every rank, got " + std::to_string(world_size) +
           " on rank 0 and " + std::to_string(hello.world_size) + " on " + who);
    }
    if (hello.rank < 1 || hello.rank >= world_size) {
      fail("a member's rank must be in [1, " + std::to_string(world_size) + "), got " +
           std::to_string(hello.rank));
    }
    if (members_[static_cast<std::size_t>(hello.rank)].fd) {
      fail("every rank must join once, got " + who + " twice");
    }
  }

  // A member has no business to talk before the welcome, unless its time is up.
  void hear(int rank) {
    Peer& member = members_[static_cast<std::size_t>(rank)];
    const std::string who = "rank " + std::to_string(rank);
    IoResult result = IoResult::kPending;
    try {
      result = member.reader.read_from(member.fd.get());
    } catch (const MoEEpError& error) {
      fail(who + " broke the protocol: " + error.what());
    }
    if (result == IoResult::kClosed) fail(who + " left before every rank had joined");
    if (result != IoResult::kDone) return;
    const Frame frame = member.reader.take();
    if (frame.type != FrameType::kGiveUp) {
      fail(who + " must wait for its welcome, got a " + frame_name(frame.type));
    }
    given_up_ = true;
  }

  void turn_away(Peer& stranger, const std::string& why) {
    notify_failure(stranger, {failed("refused: " + why), {}});
    stranger.fd.reset();
    refusals_ += "; refused a connection: " + why;
  }

  [[noreturn]] void time_out() {
    std::vector<int> missing;
    for (std::size_t rank = 1; rank < members_.size(); ++rank) {
      if (!members_[rank].fd) missing.push_back(static_cast<int>(rank));
    }
    end({failed("every rank must join within " + std::to_string(timeout_.count()) +
                " ms, got nothing from " + ranks_text(missing) + refusals_),
         missing});
  }

  [[noreturn]] void fail(const std::string& text) { end({failed(text), {}}); }

  // Everybody who comes is told, also those whose hello nobody has read and those who are still on
  // their way: without the reason they would wait for a hub until their time is up.
  [[noreturn]] void end(const GroupFailure& failure) {
    std::size_t num_told = 0;
    for (const Peer& member : members_)
      num_told += notify_failure(member, failure) ? 1 : 0;
    const Deadline linger(std::min(kLinger, deadline_.left()));
    try {
      do {
        accept_all();
        num_told += tell_strangers(failure);
      } while (num_told + 1 < members_.size() &&
               wait_for(listener_.get(), POLLIN, linger, kOperation));
      listener_.shut();
      accept_all();
      tell_strangers(failure);
    } catch (const MoEEpError&) {
      // Those who wait at the door see it close.
    }
    failure.raise();
  }

  // They stay connected until the end: a hang-up could overtake the notice.
  std::size_t tell_strangers(const GroupFailure& failure) {
    std::size_t num_told = 0;
    for (Peer& stranger : strangers_) {
      num_told += notify_failure(stranger, failure) ? 1 : 0;
      told_.push_back(std::move(stranger));
    }
    strangers_.clear();
    return num_told;
  }

  const std::chrono::milliseconds timeout_;
  const Deadline deadline_;
  std::vector<Peer> members_;
  std::vector<Peer> strangers_;
  std::vector<Peer> told_;
  std::size_t num_joined_ = 1;
  bool given_up_ = false;
  std::string refusals_;
  UnixListener listener_;
};

UniqueFd connect_to_hub(const std::string& path, const Deadline& deadline,
                        std::chrono::milliseconds timeout) {
  for (;;) {
    int error = 0;
    UniqueFd fd = try_connect(kOperation, path, SOCK_STREAM, error);
    if (fd) return fd;
    // Not there yet, left by a dead process, or busy: all of that passes.
    if (error != ENOENT && error != ECONNREFUSED && error != EAGAIN) {
      throw_errno(kOperation, "connect(" + path + ")", error);
    }
    if (deadline.expired()) {
      throw MoEEpTimeoutError(
          failed("rank 0 must listen at '" + path + "' within " + std::to_string(timeout.count()) +
                 " ms, got " + errno_text("connect", error)),
          {0}, Phase::kSetup);
    }
    ::poll(nullptr, 0, std::min(kRetryMs, deadline.poll_timeout()));
  }
}

}  // namespace

std::vector<Peer> hub_join(const std::string& path, int world_size,
                           std::chrono::milliseconds timeout) {
  return Gathering(path, world_size, timeout).run();
}

Peer member_join(const std::string& path, int rank, int world_size,
                 std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  Peer hub{connect_to_hub(path, deadline, timeout), {}};
  const uid_t uid = peer_uid(hub.fd.get(), kOperation);
  if (uid != ::geteuid()) {
    throw MoEEpError(failed("rank 0 must run as user " + std::to_string(::geteuid()) +
                            ", got user " + std::to_string(uid) + " listening at '" + path + "'"));
  }
  const Hello hello{.world_size = world_size, .rank = rank};
  const std::string_view payload(reinterpret_cast<const char*>(&hello), sizeof hello);
  if (send_frame(hub.fd.get(), FrameType::kHello, 0, 0, payload, deadline) != IoResult::kDone) {
    throw_hub_gone(hub, kOperation);
  }
  const Frame frame = await_hub(hub, 0, kOperation, deadline, timeout);
  if (frame.type != FrameType::kWelcome) {
    throw MoEEpError(
        failed(std::string("rank 0 must send a welcome, got a ") + frame_name(frame.type)));
  }
  return hub;
}

}  // namespace moe_ep::detail
