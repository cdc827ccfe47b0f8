#include "comm/unix_address.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <moe_ep/error.hpp>

#include "comm/random.hpp"
#include "comm/system_error.hpp"

namespace moe_ep::detail {
namespace {

// sockaddr_un holds 107 bytes. A longer path is reached through its opened directory, which must
// stay open while the address is in use.
struct Address {
  sockaddr_un name{};
  UniqueFd directory;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

Address address_of(std::string_view operation, const std::string& path) {
  Address address;
  address.name.sun_family = AF_UNIX;
  std::string text = path;
  if (text.size() >= sizeof address.name.sun_path) {
    const auto slash = path.rfind('/');
    const std::string parent = slash == path.npos ? "." : path.substr(0, slash + 1);
    address.directory = UniqueFd(::open(parent.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!address.directory) throw_errno(operation, "open(" + parent + ")", errno);
    text = "/proc/self/fd/" + std::to_string(address.directory.get()) + "/" +
           path.substr(slash == path.npos ? 0 : slash + 1);
  }
  if (text.empty() || text.size() >= sizeof address.name.sun_path || text.find('\0') != text.npos) {
    throw MoEEpError(std::string(operation) +
                     ": a socket's file name must have 1 to 70 bytes, got '" + path + "'");
  }
  std::memcpy(address.name.sun_path, text.c_str(), text.size() + 1);
  return address;
}

UniqueFd make_socket(std::string_view operation, int type) {
  UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw_errno(operation, "socket", errno);
  return fd;
}

// Removes a name on scope exit.
class NameGuard {
 public:
  explicit NameGuard(std::string path) : path_(std::move(path)) {}
  ~NameGuard() { ::unlink(path_.c_str()); }
  NameGuard(const NameGuard&) = delete;
  NameGuard& operator=(const NameGuard&) = delete;

 private:
  const std::string path_;
};

// Only a socket that nobody listens to any more may be replaced.
void require_stale(std::string_view operation, const std::string& path, int type) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0) return;  // removed meanwhile
  if (!S_ISSOCK(status.st_mode)) {
    throw MoEEpError(std::string(operation) + ": '" + path +
                     "' must be free or a socket, got another kind of file");
  }
  int error = 0;
  if (try_connect(operation, path, type, error) || error == EAGAIN) {
    throw MoEEpError(std::string(operation) + ": '" + path +
                     "' must be free, got a socket that another process listens to");
  }
  if (error != ECONNREFUSED && error != ENOENT) {
    throw_errno(operation, "connect(" + path + ")", error);
  }
}

}  // namespace

UnixListener::UnixListener(std::string_view operation, const std::string& path, int type,
                           int backlog) {
  UniqueFd fd = make_socket(operation, type);
  const std::string private_path = path + "." + random_hex(6);
  const Address address = address_of(operation, private_path);
  // The mode before bind() bounds the name's; chmod() restores bits that the umask took.
  if (::fchmod(fd.get(), S_IRUSR | S_IWUSR) != 0) throw_errno(operation, "fchmod", errno);
  if (::bind(fd.get(), address.get(), sizeof address.name) != 0) {
    throw_errno(operation, "bind(" + path + ")", errno);
  }
  const NameGuard guard(private_path);
  struct stat status{};
  if (::chmod(private_path.c_str(), S_IRUSR | S_IWUSR) != 0 ||
      ::lstat(private_path.c_str(), &status) != 0) {
    throw_errno(operation, "chmod(" + path + ")", errno);
  }
  if (::listen(fd.get(), backlog) != 0) throw_errno(operation, "listen", errno);
  if (::link(private_path.c_str(), path.c_str()) != 0) {
    if (errno != EEXIST) throw_errno(operation, "link(" + path + ")", errno);
    require_stale(operation, path, type);
    if (::rename(private_path.c_str(), path.c_str()) != 0) {
      throw_errno(operation, "rename(" + path + ")", errno);
    }
  }
  fd_ = std::move(fd);
  path_ = path;
  device_ = status.st_dev;
  inode_ = status.st_ino;
}

UnixListener& UnixListener::operator=(UnixListener&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::move(other.fd_);
    path_ = std::exchange(other.path_, {});
    device_ = other.device_;
    inode_ = other.inode_;
  }
  return *this;
}

void UnixListener::close() noexcept {
  struct stat status{};
  if (fd_ && ::lstat(path_.c_str(), &status) == 0 && status.st_dev == device_ &&
      status.st_ino == inode_) {
    ::unlink(path_.c_str());
  }
  fd_.reset();
}

void UnixListener::shut() noexcept {
  ::shutdown(fd_.get(), SHUT_RD);
}

UniqueFd UnixListener::accept(std::string_view operation) const {
  for (;;) {
    UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    // EINVAL: shut, and nobody waits any more.
    if (fd || errno == EAGAIN || errno == EWOULDBLOCK || errno == EINVAL) return fd;
    if (errno != EINTR && errno != ECONNABORTED) throw_errno(operation, "accept", errno);
  }
}

UniqueFd try_connect(std::string_view operation, const std::string& path, int type, int& error) {
  UniqueFd fd = make_socket(operation, type);
  const Address address = address_of(operation, path);
  while (::connect(fd.get(), address.get(), sizeof address.name) != 0) {
    if (errno == EINTR) continue;
    error = errno;
    return UniqueFd();
  }
  error = 0;
  return fd;
}

uid_t peer_uid(int fd, std::string_view operation) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    throw_errno(operation, "getsockopt(SO_PEERCRED)", errno);
  }
  return credentials.uid;
}

}  // namespace moe_ep::detail
