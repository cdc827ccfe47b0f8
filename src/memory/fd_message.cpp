#include "memory/fd_message.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "comm/system_error.hpp"

namespace moe_ep::memory {
namespace {

constexpr std::size_t kMaxFds = 4;  // more than one is wrong, but must not leak

// Takes over every descriptor that came along.
std::vector<detail::UniqueFd> fds_of(msghdr& message) {
  std::vector<detail::UniqueFd> fds;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = 0; CMSG_LEN(at + sizeof(int)) <= header->cmsg_len; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + at, sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

bool send_proof(int socket, const Proof& proof, int fd) {
  // sendmsg() takes its buffers non-const and only reads them.
  iovec part{const_cast<Proof*>(&proof), sizeof proof};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  while (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ETOOMANYREFS) return false;
    if (errno != EINTR) detail::throw_errno("exchange_fds", "sendmsg", errno);
  }
  return true;
}

ReceivedProof receive_proof(int socket) {
  ReceivedProof received;
  iovec part{&received.proof, sizeof received.proof};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t count = 0;
  while ((count = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT)) < 0) {
    if (errno == EINTR) continue;
    const bool pending = errno == EAGAIN || errno == EWOULDBLOCK;
    received.state = pending ? ProofState::kPending : ProofState::kClosed;
    return received;
  }
  received.fds = fds_of(message);
  if (count == 0) {
    received.state = ProofState::kClosed;
  } else if (static_cast<std::size_t>(count) != sizeof(Proof) ||
             (message.msg_flags & MSG_TRUNC) != 0 || received.proof.magic != Proof{}.magic) {
    received.state = ProofState::kForeign;
  } else if ((message.msg_flags & MSG_CTRUNC) != 0) {
    received.state = ProofState::kTruncated;
  } else {
    received.state = ProofState::kComplete;
  }
  return received;
}

}  // namespace moe_ep::memory
