// The messages of an exchange of file descriptors, over SOCK_SEQPACKET: whole or not at all.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "comm/unique_fd.hpp"

namespace moe_ep::memory {

using Token = std::array<std::uint64_t, 2>;

// Question and answer alike. The answer carries the descriptor.
struct Proof {
  std::uint64_t magic = 0x6d6f655f65706664;  // "moe_epfd"
  std::int32_t rank = 0;                     // of the sender
  std::int32_t zero = 0;
  Token token{};  // of the receiver, who has told it to the group alone
};

// Sends a proof, with a descriptor unless `fd` is -1. False when the peer has no room or too many
// descriptors of this user are on their way: to be tried again.
// @throws MoEEpError, also when the peer is gone
bool send_proof(int socket, const Proof& proof, int fd);

enum class ProofState {
  kPending,    // nothing there yet
  kClosed,     // the peer hung up
  kForeign,    // no message of ours
  kTruncated,  // this process had no number left for the descriptor
  kComplete,
};

struct ReceivedProof {
  ProofState state = ProofState::kPending;
  Proof proof;
  std::vector<detail::UniqueFd> fds;  // close-on-exec
};

ReceivedProof receive_proof(int socket);

}  // namespace moe_ep::memory
