// One rank's part of a GroupStep: makes the tensors, runs the step, checks all that comes back.
//
// It sees a backend through SuiteBackend only, so that CPUs and GPUs run the same tests.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <moe_ep/communication.hpp>

#include "support/group_step.hpp"
#include "support/spawn_ranks.hpp"

namespace moe_ep::testing {

// Host options name everything that backends have in common; each takes what it knows.
using SuiteConfig = HostAlltoAllConfig;

// What differs between backends.
class SuiteBackend {
 public:
  virtual ~SuiteBackend() = default;

  virtual const char* name() const = 0;
  // Whether ranks are threads of this process or processes.
  virtual RankKind kind() const = 0;
  virtual Device device() const = 0;
  // `config` with what the backend adds of its own; create() does so by itself.
  virtual SuiteConfig configure(const SuiteConfig& config) const { return config; }
  virtual std::unique_ptr<MoEEpCommunication> create(const BootstrapConfig& bootstrap,
                                                     const MoEEpCommParams& params,
                                                     const SuiteConfig& config) const = 0;

  // Memory of the device and copies between it and the host; both wait for enqueued work.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) const = 0;
  virtual void upload(std::byte* to, const std::byte* from, std::size_t bytes) const = 0;
  virtual void download(std::byte* to, const std::byte* from, std::size_t bytes) const = 0;

  // Waits for what the calling thread's rank has enqueued, well ended or not.
  virtual void wait() const {}
  // The clock by which steps time out.
  virtual std::chrono::nanoseconds now() const {
    return std::chrono::steady_clock::now().time_since_epoch();
  }
  // How many of a test's `usual` rounds are worth their time; fewer where steps are slow.
  virtual std::uint64_t rounds(std::uint64_t usual) const { return usual; }
  // The largest group that a test may ask for.
  virtual int max_ranks() const { return kind() == RankKind::kThreads ? 64 : 33; }
};

// Rows on the device. They lie `row_gap` elements apart and start `offset` bytes after an aligned
// address, so that strides and alignments can be asked for.
class Tensor {
 public:
  Tensor(const SuiteBackend& backend, DType dtype, std::int64_t rows, std::int64_t width,
         std::int64_t row_gap = 0, std::int64_t offset = 0);

  const TensorView& view() const { return view_; }
  std::int64_t row_bytes() const { return view_.size(1) * itemsize(view_.dtype); }
  void set_row(std::int64_t row, const std::vector<std::byte>& bytes);
  std::vector<std::byte> row(std::int64_t row) const;
  void fill(std::byte value);

 private:
  const SuiteBackend& backend_;
  std::shared_ptr<std::byte> memory_;
  std::size_t bytes_;
  TensorView view_;
};

// Bytes of row `row` of a two-dimensional view on the device.
std::vector<std::byte> row_of(const SuiteBackend& backend, const TensorView& view,
                              std::int64_t row);
// All elements of a contiguous view of int32.
std::vector<std::int32_t> ints_of(const SuiteBackend& backend, const TensorView& view);

// How the tensors of a step are made and what travels.
struct StepOptions {
  bool weights = true;
  bool wide_ids = false;
  // Experts write into get_combine_input_buffer().
  bool in_place = false;
  std::int64_t row_gap = 0;  // elements between rows of what is sent and answered
  std::int64_t offset = 0;   // bytes of what is sent from an aligned address
  DType hidden_dtype = kBFloat16;
  std::optional<std::int64_t> width = std::nullopt;  // of hidden_states; H if not given
  std::optional<DType> scale_dtype = std::nullopt;
  std::int64_t scale_width = 0;
  struct Extra {
    DType dtype;
    std::int64_t width;
  };
  std::vector<Extra> extras = {};
  bool pass_mask = false;  // step.active as argument; otherwise the default mask is in force
  bool low_precision = false;
};

// One rank's part of one GroupStep. Both calls check everything that comes back and throw
// std::runtime_error with rank and place when it is wrong.
class StepRunner {
 public:
  StepRunner(const SuiteBackend& backend, MoEEpCommunication& comm, const GroupStep& step,
             const StepOptions& options = {});

  // Sends without looking at the result; devices may still be at it.
  void send();
  // Waits for this rank's part of the step and throws what the step ended with.
  void settle() const;
  void attempt() {
    send();
    settle();
  }
  void check_received() const;
  void dispatch() {
    attempt();
    check_received();
  }
  // Fills rows without a token with NaNs first.
  void combine();

  const MoEEpDispatchResult& received() const { return received_; }
  // Bytes of the combined rows.
  const std::vector<std::vector<std::byte>>& results() const { return results_; }

 private:
  struct Sent {
    Tensor tensor;
    int kind;
  };
  // The token of `src` in each of its T rows here, -1 where there is none: compact or, after a
  // Lamport dispatch, by token.
  std::vector<std::int64_t> placed(int src) const;
  void check_payload(const TensorView& view, const Sent& sent) const;
  void check_result(std::int64_t token, const std::vector<std::byte>& row) const;
  [[noreturn]] void fail(const std::string& what) const;

  const SuiteBackend& backend_;
  MoEEpCommunication& comm_;
  const GroupStep& step_;
  const StepOptions options_;
  const int rank_;
  std::vector<Sent> sent_;
  Tensor ids_;
  MoEEpDispatchResult received_;
  std::vector<std::vector<std::byte>> results_;
};

// Dispatch and combine, everything checked.
void run_step(const SuiteBackend& backend, MoEEpCommunication& comm, const GroupStep& step,
              const StepOptions& options = {});

// Throws std::runtime_error unless `holds`.
inline void check(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

}  // namespace moe_ep::testing
