/// @file
/// MpiBackend: a CommBackend over an MPI communicator.
///
/// Opt-in: neither the library nor the umbrella header includes it. Include it where `<mpi.h>` is
/// available and link MPI yourself; everything here is inline.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <moe_ep/comm_backend.hpp>
#include <moe_ep/error.hpp>

namespace moe_ep {

/// The ranks of an MPI communicator.
///
/// Errors of MPI throw MoEEpError, whatever error handler the communicator has; the handler is put
/// back after every call. Needs MPI_THREAD_SERIALIZED if several threads use MPI. MPI knows no
/// time-outs, so neither does this backend: a rank that does not come is waited for.
///
/// @code
/// auto comm = std::make_shared<moe_ep::MpiBackend>(MPI_COMM_WORLD);
/// @endcode
class MpiBackend final : public CommBackend {
 public:
  /// @param comm an intracommunicator; not owned, must be valid as long as this object is used
  /// @param max_count most bytes that one call to MPI moves; longer messages go in pieces. Equal on
  ///   every rank and at least the number of ranks.
  explicit MpiBackend(MPI_Comm comm, int max_count = INT_MAX) : comm_(comm), max_count_(max_count) {
    const ErrorScope scope(comm_);
    check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    if (max_count_ < size_) {
      throw std::invalid_argument(
          "MpiBackend: max_count must be at least the number of ranks, got " +
          std::to_string(max_count_) + " for " + std::to_string(size_));
    }
    identity_ = identity_of(comm_);
  }

  /// Frees the communicator if it came of split(), unless MPI is finalized.
  ~MpiBackend() override {
    int finalized = 0;
    if (owned_ && MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0) MPI_Comm_free(&comm_);
  }
  MpiBackend(const MpiBackend&) = delete;
  MpiBackend& operator=(const MpiBackend&) = delete;

  int get_rank() const override { return rank_; }
  int get_size() const override { return size_; }

  std::vector<std::string> allgather(std::string_view message) override {
    const ErrorScope scope(comm_);
    const auto num_ranks = static_cast<std::size_t>(size_);
    const std::uint64_t own_bytes = message.size();
    std::vector<std::uint64_t> bytes(num_ranks);
    check(MPI_Allgather(&own_bytes, 1, MPI_UINT64_T, bytes.data(), 1, MPI_UINT64_T, comm_),
          "MPI_Allgather");
    std::vector<std::string> messages(num_ranks);
    const std::uint64_t longest = *std::max_element(bytes.begin(), bytes.end());
    // MPI counts and offsets are ints: a piece of every rank's message must fit one int together.
    const auto piece = static_cast<std::uint64_t>(max_count_ / size_);
    std::vector<int> counts(num_ranks);
    std::vector<int> offsets(num_ranks);
    for (std::uint64_t done = 0; done < longest; done += piece) {
      for (std::size_t src = 0; src < num_ranks; ++src) {
        const std::uint64_t left = bytes[src] - std::min(bytes[src], done);
        counts[src] = static_cast<int>(std::min(left, piece));
      }
      std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), 0);
      std::string received(static_cast<std::size_t>(offsets.back() + counts.back()), '\0');
      const auto own_count = counts[static_cast<std::size_t>(rank_)];
      const char* const own = message.data() + std::min(own_bytes, done);
      check(MPI_Allgatherv(own, own_count, MPI_CHAR, received.data(), counts.data(), offsets.data(),
                           MPI_CHAR, comm_),
            "MPI_Allgatherv");
      for (std::size_t src = 0; src < num_ranks; ++src) {
        messages[src].append(received, static_cast<std::size_t>(offsets[src]),
                             static_cast<std::size_t>(counts[src]));
      }
    }
    return messages;
  }

  std::string bcast(std::string_view message, int root) override {
    if (root < 0 || root >= size_) {
      throw std::invalid_argument("MpiBackend.bcast: root must be in [0, " + std::to_string(size_) +
                                  "), got " + std::to_string(root));
    }
    const ErrorScope scope(comm_);
    std::uint64_t bytes = message.size();
    check(MPI_Bcast(&bytes, 1, MPI_UINT64_T, root, comm_), "MPI_Bcast");
    std::string result(rank_ == root ? message : std::string_view());
    result.resize(static_cast<std::size_t>(bytes));
    const auto piece = static_cast<std::size_t>(max_count_);
    for (std::size_t done = 0; done < result.size(); done += piece) {
      const auto count = static_cast<int>(std::min(piece, result.size() - done));
      check(MPI_Bcast(result.data() + done, count, MPI_CHAR, root, comm_), "MPI_Bcast");
    }
    return result;
  }

  void barrier() override {
    const ErrorScope scope(comm_);
    check(MPI_Barrier(comm_), "MPI_Barrier");
  }

  /// @param color not negative (MPI's rule). The sub-group must be destroyed on all its ranks,
  /// before
  ///   MPI_Finalize, in the same order as others: MPI_Comm_free is collective.
  std::shared_ptr<CommBackend> split(int color, int key) override {
    const ErrorScope scope(comm_);
    MPI_Comm part = MPI_COMM_NULL;
    check(MPI_Comm_split(comm_, color, key, &part), "MPI_Comm_split");
    auto backend = std::make_shared<MpiBackend>(part, max_count_);
    backend->owned_ = true;
    return backend;
  }

  /// The same for all backends over one communicator.
  const void* identity() const override { return identity_; }

 private:
  // Makes errors of a communicator return codes until the end of the scope.
  class ErrorScope {
   public:
    explicit ErrorScope(MPI_Comm comm) : comm_(comm) {
      check(MPI_Comm_get_errhandler(comm_, &old_), "MPI_Comm_get_errhandler");
      check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    }
    ~ErrorScope() {
      MPI_Comm_set_errhandler(comm_, old_);
      MPI_Errhandler_free(&old_);
    }
    ErrorScope(const ErrorScope&) = delete;
    ErrorScope& operator=(const ErrorScope&) = delete;

   private:
    MPI_Comm comm_;
    MPI_Errhandler old_ = MPI_ERRHANDLER_NULL;
  };

  static void check(int code, const char* call) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(code, text, &length);
    throw MoEEpError(std::string("MpiBackend: ") + call + " failed with code " +
                     std::to_string(code) + " (" + text + ")");
  }

  // A communicator's handle may be used again after it is freed; an attribute that dies with the
  // communicator has an address that tells the two apart while either lives.
  static const void* identity_of(MPI_Comm comm) {
    static const int keyval = [] {
      int key = MPI_KEYVAL_INVALID;
      check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, delete_identity, &key, nullptr),
            "MPI_Comm_create_keyval");
      return key;
    }();
    void* value = nullptr;
    int found = 0;
    check(MPI_Comm_get_attr(comm, keyval, &value, &found), "MPI_Comm_get_attr");
    if (found != 0) return value;
    auto fresh = std::make_unique<char>();
    check(MPI_Comm_set_attr(comm, keyval, fresh.get()), "MPI_Comm_set_attr");
    return fresh.release();
  }
  static int delete_identity(MPI_Comm, int, void* value, void*) {
    delete static_cast<char*>(value);
    return MPI_SUCCESS;
  }

  MPI_Comm comm_;
  const int max_count_;
  int rank_ = 0;
  int size_ = 0;
  bool owned_ = false;
  const void* identity_ = nullptr;
};

}  // namespace moe_ep
