// Sums of the CUDA backend beside those of the host backend.
#include <array>
#include <cmath>
#include <cstring>

#include "cuda_instances.hpp"
#include "support/host_suite_backend.hpp"
#include "support/reference.hpp"

namespace moe_ep::testing {
namespace {

// Of NaNs, sign and payload are free.
bool same_numbers(DType dtype, const std::vector<std::vector<std::byte>>& rows,
                  const std::vector<std::vector<std::byte>>& others) {
  const auto size = static_cast<std::size_t>(itemsize(dtype));
  if (rows.size() != others.size()) return false;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    for (std::size_t at = 0; at < rows[row].size(); at += size) {
      const std::byte* one = rows[row].data() + at;
      const std::byte* other = others[row].data() + at;
      if (std::memcmp(one, other, size) != 0 && !(std::isnan(reference::decode(dtype, one)) &&
                                                  std::isnan(reference::decode(dtype, other)))) {
        return false;
      }
    }
  }
  return true;
}

// Two hundred random steps over both transports.
TEST_P(CudaInstancesTest, SumsHaveTheBytesOfTheHostBackend) {
  constexpr std::uint64_t kSteps = 12;
  const bool lamport = backend().configure({}).lamport.value_or(false);
  const HostSuiteBackend host("host", RankKind::kThreads,
                              lamport ? Transport::kLamport : Transport::kFence);
  for (std::uint64_t group = 0; group < 9; ++group) {
    const int num_ranks = 1 + static_cast<int>(group % 4);
    const DType dtype = std::array{kBFloat16, kFloat16, kFloat32}[group % 3];
    const GroupStep largest = random_step(
        group, num_ranks, 4 * num_ranks, 1 + static_cast<std::int64_t>(mix(group, 1) % 4),
        1 + static_cast<std::int64_t>(mix(group, 2) % 150), 8, dtype);
    RankMask active = RankMask::first(num_ranks);
    if (group >= 6 && num_ranks > 1) active.reset(1);
    run(num_ranks, [&](int rank, const std::shared_ptr<CommBackend>& comm) {
      const auto on_host = make(host, rank, comm, largest);
      const auto on_gpu = make(backend(), rank, comm, largest);
      for (std::uint64_t seed = 0; active.test(rank) && seed < kSteps; ++seed) {
        GroupStep step = random_step(100 * group + seed, num_ranks, largest.num_experts,
                                     largest.top_k, largest.hidden, 1 + (seed * 5) % 8, dtype);
        step.active = active;
        StepOptions options;
        options.hidden_dtype = dtype;
        options.pass_mask = true;
        options.in_place = seed % 2 == 0;
        StepRunner a(host, *on_host, step, options);
        StepRunner b(backend(), *on_gpu, step, options);
        a.dispatch();
        b.dispatch();
        b.combine();
        a.combine();
        check(on_host->last_transport() == on_gpu->last_transport(), "other transports");
        check(same_numbers(dtype, a.results(), b.results()),
              "bytes differ in step " + std::to_string(seed));
      }
    });
  }
}

}  // namespace
}  // namespace moe_ep::testing
