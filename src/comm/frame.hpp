// Frames: what UnixSocketBackend sends. A header of fixed size, then `length` bytes.
//
// | offset | bytes | field |
// |---|---|---|
// | 0 | 4 | magic |
// | 4 | 2 | type (FrameType) |
// | 6 | 2 | zero |
// | 8 | 4 | sequence: the number of the operation in the group, the same on every rank |
// | 12 | 4 | argument: the root of a bcast, else 0 |
// | 16 | 8 | length of the payload, at most kMaxFrameBytes |
//
// Both ends run on one host, so numbers have the host's byte order. Magic, type and length are
// checked before anything is allocated, and the payload grows only as its bytes arrive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/deadline.hpp"

namespace moe_ep::detail {

inline constexpr std::uint64_t kMaxFrameBytes = std::uint64_t{1} << 30;

enum class FrameType : std::uint16_t {
  kHello = 1,  // member to hub: who I am
  kWelcome,    // hub to member: everybody is there
  kAllgather,  // member to hub, as are the next three: my part of an operation
  kBcast,
  kBarrier,
  kSplit,
  kResult,   // hub to member: the operation's result
  kGiveUp,   // member to hub: my time is up, tell us who is missing
  kFailure,  // hub to member: the group has ended (GroupFailure)
};

const char* frame_name(FrameType type);

struct Frame {
  FrameType type{};
  std::uint32_t sequence = 0;
  std::uint32_t argument = 0;
  std::string payload;
};

enum class IoResult {
  kDone,
  kPending,  // nothing more to read now, or the deadline passed
  kClosed,   // the peer is gone
};

// Sends a whole frame over a non-blocking stream socket.
// @throws MoEEpError for a payload over kMaxFrameBytes; nothing was sent then
IoResult send_frame(int fd, FrameType type, std::uint32_t sequence, std::uint32_t argument,
                    std::string_view payload, const Deadline& deadline);

// Receives one frame piece by piece.
class FrameReader {
 public:
  // Takes what the socket holds, no byte beyond the frame. kDone: the frame is complete.
  // @throws MoEEpError for a header that is no header of ours
  IoResult read_from(int fd);
  // The complete frame; the reader is then ready for the next one.
  Frame take();

 private:
  struct Header {
    std::uint32_t magic = 0;
    std::uint16_t type = 0;
    std::uint16_t zero = 0;
    std::uint32_t sequence = 0;
    std::uint32_t argument = 0;
    std::uint64_t length = 0;
  };
  friend IoResult send_frame(int, FrameType, std::uint32_t, std::uint32_t, std::string_view,
                             const Deadline&);

  void check_header() const;

  Header header_;
  std::size_t header_bytes_ = 0;
  std::size_t payload_bytes_ = 0;
  std::string payload_;
};

// One frame, within the deadline. After kPending `reader` holds what has come of it so far.
IoResult receive_frame(int fd, FrameReader& reader, Frame& frame, const Deadline& deadline);

// Several messages as one payload, and back.
std::string pack_messages(const std::vector<std::string>& messages);
// @throws MoEEpError unless `bytes` holds exactly `count` messages
std::vector<std::string> unpack_messages(std::string_view bytes, std::size_t count);

}  // namespace moe_ep::detail
