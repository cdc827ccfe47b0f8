#include "memory/fd_passing.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <moe_ep/error.hpp>

#include "comm/agree.hpp"
#include "comm/deadline.hpp"
#include "comm/group_failure.hpp"
#include "comm/random.hpp"
#include "comm/unix_address.hpp"
#include "memory/fd_message.hpp"
#include "memory/rendezvous.hpp"

namespace moe_ep::memory {

using detail::Deadline;
using detail::UniqueFd;

namespace {

constexpr std::string_view kOperation = "exchange_fds";
constexpr std::chrono::milliseconds kRetryPause{2};

[[noreturn]] void fail(const std::string& text) {
  throw MoEEpError(std::string(kOperation) + ": " + text);
}

constexpr std::size_t kNameBytes = 16;

std::string name_prefix() {
  return rendezvous_directory() + "/moe_ep-";
}

// Removes the sockets' names, which a rank that was killed could not. Others have removed theirs.
// What a ticket says is a peer's word: nothing but such a name goes.
void remove_names(const std::vector<std::string>& tickets) {
  const std::string prefix = name_prefix();
  for (const std::string& ticket : tickets) {
    if (ticket.size() <= sizeof(Token)) continue;
    const std::string path = ticket.substr(sizeof(Token));
    if (path.size() == prefix.size() + 2 * kNameBytes && path.starts_with(prefix) &&
        path.find_first_not_of("0123456789abcdef", prefix.size()) == path.npos) {
      ::unlink(path.c_str());
    }
  }
}

// One rank's part. Every rank asks all others at once and answers whoever asks it: nobody waits
// for anybody's turn, and a rank that fails or dies closes sockets that the others watch.
class Exchange {
 public:
  Exchange(int rank, int own_fd)
      : rank_(rank),
        own_fd_(own_fd),
        timeout_(rendezvous_timeout()),
        path_(name_prefix() + detail::random_hex(kNameBytes)) {
    detail::fill_random(&token_, sizeof token_);
  }

  // What the others must know to ask this rank, and to clear up after it.
  std::string ticket() const {
    return std::string(reinterpret_cast<const char*>(&token_), sizeof token_) + path_;
  }

  void listen(int size) {
    listener_ = detail::UnixListener(kOperation, path_, SOCK_SEQPACKET, size);
  }

  std::vector<UniqueFd> run(const std::vector<std::string>& tickets) {
    const Deadline deadline(timeout_);
    for (const std::string& ticket : tickets)
      peers_.push_back(parse(ticket));
    Peer& own = peers_[static_cast<std::size_t>(rank_)];
    own.fd = UniqueFd(::fcntl(own_fd_, F_DUPFD_CLOEXEC, 0));
    if (!own.fd) detail::throw_errno(kOperation, "fcntl(F_DUPFD_CLOEXEC)", errno);
    own.answered = true;
    for (;;) {
      const bool asked = ask_all();
      const bool answered = answer_all();
      if (missing().empty()) break;
      const Deadline pause(kRetryPause);
      if (!poll_once(asked && answered ? deadline : pause) && deadline.expired()) {
        fail("every rank must exchange descriptors within " + std::to_string(timeout_.count()) +
             " ms, got nothing from " + detail::ranks_text(missing()));
      }
    }
    std::vector<UniqueFd> fds;
    for (Peer& peer : peers_)
      fds.push_back(std::move(peer.fd));
    return fds;
  }

 private:
  struct Peer {
    Token token{};
    std::string path;
    UniqueFd question;      // open from the question to the answer
    UniqueFd fd;            // what this rank gets
    bool answered = false;  // whether the peer got ours
  };
  struct Guest {
    UniqueFd link;
    Peer* peer = nullptr;  // known once it has shown the token
  };

  static Peer parse(const std::string& ticket) {
    Peer peer;
    if (ticket.size() <= sizeof peer.token) fail("a ticket must name a socket, got other bytes");
    std::memcpy(&peer.token, ticket.data(), sizeof peer.token);
    peer.path = ticket.substr(sizeof peer.token);
    return peer;
  }

  std::string name_of(const Peer& peer) const {
    return "rank " + std::to_string(&peer - peers_.data());
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
      if (!peers_[rank].fd || !peers_[rank].answered) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }

  // False when a peer is too busy and must be asked again.
  bool ask_all() {
    bool all = true;
    for (Peer& peer : peers_) {
      if (peer.fd || peer.question) continue;
      int error = 0;
      UniqueFd link = detail::try_connect(kOperation, peer.path, SOCK_SEQPACKET, error);
      if (!link && error != EAGAIN) {
        fail(name_of(peer) + " must listen at '" + peer.path +
             "' (in a directory that all ranks see, MOE_EP_RENDEZVOUS_DIR), got " +
             detail::errno_text("connect", error));
      }
      if (link) {
        require_own_user(link.get(), peer);
        send_proof(link.get(), {.rank = rank_, .token = peer.token}, -1);
        peer.question = std::move(link);
      }
      all = all && peer.question;
    }
    return all;
  }

  void require_own_user(int link, const Peer& peer) const {
    const uid_t uid = detail::peer_uid(link, kOperation);
    if (uid == ::geteuid()) return;
    fail(name_of(peer) + " must run as user " + std::to_string(::geteuid()) + ", got user " +
         std::to_string(uid));
  }

  // False when an answer did not fit and must be sent again.
  bool answer_all() {
    bool all = true;
    for (Guest& guest : guests_) {
      if (guest.peer == nullptr) continue;
      const Proof proof{.rank = rank_, .token = guest.peer->token};
      if (send_proof(guest.link.get(), proof, own_fd_)) {
        guest.peer->answered = true;
        guest.link.reset();
      } else {
        all = false;
      }
    }
    std::erase_if(guests_, [](const Guest& guest) { return !guest.link; });
    return all;
  }

  // Waits for questions and answers and takes them in. False when none came in time.
  bool poll_once(const Deadline& deadline) {
    std::vector<pollfd> polled{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const Peer& peer : peers_) {
      polled.push_back({.fd = peer.question.get(), .events = POLLIN, .revents = 0});
    }
    const std::size_t num_guests = guests_.size();
    for (const Guest& guest : guests_) {
      const int fd = guest.peer == nullptr ? guest.link.get() : -1;
      polled.push_back({.fd = fd, .events = POLLIN, .revents = 0});
    }
    if (!detail::wait_any(polled, deadline, kOperation)) return false;
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      if (polled[1 + i].revents != 0) take_answer(peers_[i]);
    }
    for (std::size_t i = 0; i < num_guests; ++i) {
      if (polled[1 + peers_.size() + i].revents != 0) admit(guests_[i]);
    }
    if (polled[0].revents != 0) {
      while (UniqueFd link = listener_.accept(kOperation))
        guests_.push_back({std::move(link)});
    }
    return true;
  }

  void take_answer(Peer& peer) {
    ReceivedProof received = receive_proof(peer.question.get());
    switch (received.state) {
      case ProofState::kPending:
        return;
      case ProofState::kClosed:
        fail(name_of(peer) + " must answer, got: it has hung up");
      case ProofState::kTruncated:
        fail(
            "a process must have numbers left for its peers' descriptors (RLIMIT_NOFILE), got "
            "none");
      case ProofState::kForeign:
      case ProofState::kComplete:
        break;
    }
    if (received.state == ProofState::kForeign || received.proof.token != token_ ||
        received.fds.size() != 1) {
      fail(name_of(peer) +
           " must answer with one descriptor and this rank's token, got another answer");
    }
    peer.fd = std::move(received.fds.front());
    peer.question.reset();
  }

  // Whoever does not show the token is sent away; those of the group are not disturbed.
  void admit(Guest& guest) {
    const ReceivedProof received = receive_proof(guest.link.get());
    if (received.state == ProofState::kPending) return;
    const auto rank = static_cast<std::size_t>(received.proof.rank);
    if (received.state != ProofState::kComplete || received.proof.token != token_ ||
        rank >= peers_.size() || peers_[rank].answered ||
        detail::peer_uid(guest.link.get(), kOperation) != ::geteuid()) {
      guest.link.reset();
      return;
    }
    guest.peer = &peers_[rank];
  }

  const int rank_;
  const int own_fd_;
  const std::chrono::milliseconds timeout_;
  const std::string path_;
  Token token_{};
  detail::UnixListener listener_;
  std::vector<Peer> peers_;
  std::vector<Guest> guests_;
};

}  // namespace

std::vector<UniqueFd> exchange_fds(CommBackend& comm, int own_fd) {
  std::optional<Exchange> exchange;
  auto failure = detail::failure_of([&] { exchange.emplace(comm.get_rank(), own_fd); });
  // Everybody knows every name before there is a socket of that name.
  const std::vector<std::string> tickets = detail::gather_outcomes(
      comm, kOperation, failure, exchange ? exchange->ticket() : std::string());
  try {
    failure = detail::failure_of([&] { exchange->listen(comm.get_size()); });
    detail::gather_outcomes(comm, kOperation, failure);

    std::vector<UniqueFd> fds;
    failure = detail::failure_of([&] { fds = exchange->run(tickets); });
    exchange.reset();  // closes the door before the others are told, so that they stop waiting
    detail::gather_outcomes(comm, kOperation, failure);
    return fds;
  } catch (...) {
    exchange.reset();
    remove_names(tickets);
    throw;
  }
}

}  // namespace moe_ep::memory
