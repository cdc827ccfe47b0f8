#include "comm/frame.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <moe_ep/error.hpp>

namespace moe_ep::detail {
namespace {

constexpr std::uint32_t kMagic = 0x4d455046;  // "MEPF"
constexpr std::size_t kMinGrowth = 64 * 1024;
constexpr std::string_view kOperation = "unix socket";

bool is_closed(int error) {
  return error == EPIPE || error == ECONNRESET || error == ENOTCONN;
}

// recv() with this module's meaning; `got` bytes were read when kDone.
IoResult receive_some(int fd, void* data, std::size_t bytes, std::size_t& got) {
  for (;;) {
    const auto count = ::recv(fd, data, bytes, 0);
    if (count > 0) {
      got = static_cast<std::size_t>(count);
      return IoResult::kDone;
    }
    if (count == 0) return IoResult::kClosed;
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return IoResult::kPending;
    if (is_closed(errno)) return IoResult::kClosed;
    throw_errno(kOperation, "recv", errno);
  }
}

}  // namespace

const char* frame_name(FrameType type) {
  switch (type) {
    case FrameType::kHello:
      return "hello";
    case FrameType::kWelcome:
      return "welcome";
    case FrameType::kAllgather:
      return "allgather";
    case FrameType::kBcast:
      return "bcast";
    case FrameType::kBarrier:
      return "barrier";
    case FrameType::kSplit:
      return "split";
    case FrameType::kResult:
      return "result";
    case FrameType::kGiveUp:
      return "give-up notice";
    case FrameType::kFailure:
      return "failure notice";
  }
  return "unknown frame";
}

IoResult send_frame(int fd, FrameType type, std::uint32_t sequence, std::uint32_t argument,
                    std::string_view payload, const Deadline& deadline) {
  if (payload.size() > kMaxFrameBytes) {
    throw MoEEpError("unix socket: a message must have at most " + std::to_string(kMaxFrameBytes) +
                     " bytes, got " + std::to_string(payload.size()));
  }
  FrameReader::Header header{.magic = kMagic,
                             .type = static_cast<std::uint16_t>(type),
                             .sequence = sequence,
                             .argument = argument,
                             .length = payload.size()};
  // sendmsg() takes its buffers non-const and only reads them.
  iovec parts[2] = {{&header, sizeof header}, {const_cast<char*>(payload.data()), payload.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  while (parts[0].iov_len + parts[1].iov_len > 0) {
    const auto sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      auto left = static_cast<std::size_t>(sent);
      for (iovec& part : parts) {
        const std::size_t step = std::min(left, part.iov_len);
        part.iov_base = static_cast<char*>(part.iov_base) + step;
        part.iov_len -= step;
        left -= step;
      }
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(fd, POLLOUT, deadline, kOperation)) return IoResult::kPending;
    } else if (is_closed(errno)) {
      return IoResult::kClosed;
    } else if (errno != EINTR) {
      throw_errno(kOperation, "sendmsg", errno);
    }
  }
  return IoResult::kDone;
}

void FrameReader::check_header() const {
  if (header_.magic != kMagic || header_.zero != 0) {
    throw MoEEpError(
        "unix socket: a frame must start with this library's magic number, got other bytes");
  }
  const auto first = static_cast<std::uint16_t>(FrameType::kHello);
  const auto last = static_cast<std::uint16_t>(FrameType::kFailure);
  if (header_.type < first || header_.type > last) {
    throw MoEEpError("unix socket: a frame must have a known type, got " +
                     std::to_string(header_.type));
  }
  if (header_.length > kMaxFrameBytes) {
    throw MoEEpError("unix socket: a frame must have at most " + std::to_string(kMaxFrameBytes) +
                     " bytes, got " + std::to_string(header_.length));
  }
}

IoResult FrameReader::read_from(int fd) {
  std::size_t got = 0;
  while (header_bytes_ < sizeof header_) {
    char* const cursor = reinterpret_cast<char*>(&header_) + header_bytes_;
    const IoResult result = receive_some(fd, cursor, sizeof header_ - header_bytes_, got);
    if (result != IoResult::kDone) return result;
    header_bytes_ += got;
    if (header_bytes_ == sizeof header_) check_header();
  }
  const auto length = static_cast<std::size_t>(header_.length);
  while (payload_bytes_ < length) {
    if (payload_bytes_ == payload_.size()) {
      payload_.resize(std::min(length, payload_bytes_ + std::max(payload_bytes_, kMinGrowth)));
    }
    char* const cursor = payload_.data() + payload_bytes_;
    const IoResult result = receive_some(fd, cursor, payload_.size() - payload_bytes_, got);
    if (result != IoResult::kDone) return result;
    payload_bytes_ += got;
  }
  return IoResult::kDone;
}

Frame FrameReader::take() {
  Frame frame{.type = static_cast<FrameType>(header_.type),
              .sequence = header_.sequence,
              .argument = header_.argument,
              .payload = std::move(payload_)};
  *this = FrameReader();
  return frame;
}

IoResult receive_frame(int fd, FrameReader& reader, Frame& frame, const Deadline& deadline) {
  for (;;) {
    const IoResult result = reader.read_from(fd);
    if (result == IoResult::kDone) frame = reader.take();
    if (result != IoResult::kPending) return result;
    if (!wait_for(fd, POLLIN, deadline, kOperation)) return IoResult::kPending;
  }
}

std::string pack_messages(const std::vector<std::string>& messages) {
  std::string bytes;
  for (const std::string& message : messages) {
    const std::uint64_t length = message.size();
    bytes.append(reinterpret_cast<const char*>(&length), sizeof length).append(message);
  }
  return bytes;
}

std::vector<std::string> unpack_messages(std::string_view bytes, std::size_t count) {
  std::vector<std::string> messages;
  std::uint64_t length = 0;
  while (bytes.size() >= sizeof length && messages.size() < count) {
    std::memcpy(&length, bytes.data(), sizeof length);
    bytes.remove_prefix(sizeof length);
    if (length > bytes.size()) break;
    messages.emplace_back(bytes.substr(0, static_cast<std::size_t>(length)));
    bytes.remove_prefix(static_cast<std::size_t>(length));
  }
  if (messages.size() != count || !bytes.empty()) {
    throw MoEEpError("unix socket: a result must hold one message for each of the " +
                     std::to_string(count) + " ranks, got other bytes");
  }
  return messages;
}

}  // namespace moe_ep::detail
