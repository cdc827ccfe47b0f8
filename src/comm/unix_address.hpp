// Listening at, and connecting to, Unix sockets that have a name in the file system.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "comm/unique_fd.hpp"

namespace moe_ep::detail {

// A listening socket and its name. Only the owner may connect (mode 0600, whatever the umask).
//
// The socket is bound under a private name, made to listen and then linked to `path`, so that
// nobody ever meets a half-made one. The name goes with close() or the destructor, if it is still
// this socket's.
class UnixListener {
 public:
  UnixListener() = default;
  // @param type SOCK_STREAM or SOCK_SEQPACKET; accepted sockets are not set non-blocking
  // Replaces the socket of a process that is gone; refuses any other file.
  // @throws MoEEpError
  UnixListener(std::string_view operation, const std::string& path, int type, int backlog);
  ~UnixListener() { close(); }
  UnixListener(UnixListener&& other) noexcept { *this = std::move(other); }
  UnixListener& operator=(UnixListener&& other) noexcept;

  int get() const noexcept { return fd_.get(); }
  const std::string& path() const noexcept { return path_; }
  void close() noexcept;
  // From now on connecting fails; those who wait already can still be accepted.
  void shut() noexcept;

  // The next waiting connection, non-blocking and close-on-exec; empty when there is none.
  UniqueFd accept(std::string_view operation) const;

 private:
  UniqueFd fd_;
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// A connected non-blocking socket, or empty with `error` set to the errno of connect().
UniqueFd try_connect(std::string_view operation, const std::string& path, int type, int& error);

// User at the other end: of connect() or, for a listener's side, of listen().
uid_t peer_uid(int fd, std::string_view operation);

}  // namespace moe_ep::detail
