#include "chaos/control.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <sstream>
#include <system_error>

#include "comm/deadline.hpp"

namespace moe_ep::testing::chaos {

std::string text_of(const Reply& reply) {
  std::ostringstream text;
  text << "outcome " << static_cast<int>(reply.outcome) << " naming ranks " << reply.named
       << " (bits) after " << reply.call_ms << " ms: " << reply.text;
  return text.str();
}

Control make_control() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    throw std::system_error(errno, std::generic_category(), "socketpair");
  return {ends[0], ends[1]};
}

template <class Message>
bool send(int fd, const Message& message) {
  ssize_t sent = 0;
  while ((sent = ::send(fd, &message, sizeof message, MSG_NOSIGNAL)) < 0 && errno == EINTR) {
  }
  return sent == static_cast<ssize_t>(sizeof message);
}

template <class Message>
std::optional<Message> receive(int fd, std::chrono::milliseconds timeout) {
  const detail::Deadline deadline(timeout);
  if (!detail::wait_for(fd, POLLIN, deadline, "chaos")) return std::nullopt;
  Message message;
  ssize_t got = 0;
  while ((got = ::recv(fd, &message, sizeof message, 0)) < 0 && errno == EINTR) {
  }
  if (got != static_cast<ssize_t>(sizeof message)) return std::nullopt;
  return message;
}

template bool send(int, const Command&);
template bool send(int, const Reply&);
template std::optional<Command> receive(int, std::chrono::milliseconds);
template std::optional<Reply> receive(int, std::chrono::milliseconds);

}  // namespace moe_ep::testing::chaos
