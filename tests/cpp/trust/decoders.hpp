// Everything that reads bytes of a peer, behind one function: a fuzzer or a test calls it with any
// bytes at all. What the library may do is return or throw one of its own errors.
#pragma once

#include <sys/socket.h>

#include <string_view>

#include <moe_ep/error.hpp>

#include "comm/agree.hpp"
#include "comm/frame.hpp"
#include "comm/group_failure.hpp"
#include "comm/unique_fd.hpp"
#include "memory/fd_message.hpp"

namespace moe_ep::testing {

template <class Decode>
void decode(Decode&& decode_bytes) {
  try {
    decode_bytes();
  } catch (const MoEEpError&) {
    // Refused.
  }
}

struct SocketEnds {
  explicit SocketEnds(int type) {
    int fds[2];
    if (::socketpair(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0)
      detail::throw_errno("decoders", "socketpair", errno);
    left = detail::UniqueFd(fds[0]);
    right = detail::UniqueFd(fds[1]);
  }
  detail::UniqueFd left;
  detail::UniqueFd right;
};

// The frames in a stream that ends after `bytes`.
inline void decode_frames(std::string_view bytes) {
  SocketEnds ends(SOCK_STREAM);
  (void)::send(ends.left.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  ends.left.reset();
  decode([&] {
    detail::FrameReader reader;
    while (reader.read_from(ends.right.get()) == detail::IoResult::kDone) {
      const detail::Frame frame = reader.take();
      decode([&] { detail::GroupFailure::decode(frame.payload); });
      decode([&] { detail::unpack_messages(frame.payload, 3); });
    }
  });
}

inline void decode_proof(std::string_view bytes) {
  SocketEnds ends(SOCK_SEQPACKET);
  (void)::send(ends.left.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  memory::receive_proof(ends.right.get());
}

inline void decode_anything(std::string_view bytes) {
  decode_frames(bytes);
  decode_proof(bytes);
  decode([&] { detail::GroupFailure::decode(bytes); });
  for (const std::size_t count : {0u, 1u, 4u})
    decode([&] { detail::unpack_messages(bytes, count); });
}

}  // namespace moe_ep::testing
