// Gathered load statistics (FIELD.md, EPLB).
#include <gmock/gmock.h>

#include "conformance/backend_suite.hpp"

namespace moe_ep::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kExperts = 6;

std::vector<std::byte> stats_of(int rank, std::uint64_t seed) {
  GroupStep step;
  step.seed = seed;
  return payload_row(step, 77, rank, 0, kExperts * 4);
}

// A step that carries statistics: a token-less dispatch, and its combine.
void run_with_stats(const SuiteBackend& backend, MoEEpCommunication& comm, std::uint64_t seed,
                    const RankMask& active) {
  const int num_ranks = comm.bootstrap().world_size;
  const auto& params = comm.params();
  Tensor hidden(backend, kBFloat16, 0, params.hidden_size);
  Tensor ids(backend, kInt32, 0, params.top_k);
  Tensor stats(backend, kInt32, 1, kExperts);
  stats.set_row(0, stats_of(comm.bootstrap().rank, seed));
  DispatchInputs inputs;
  inputs.hidden_states = hidden.view();
  inputs.topk_ids = ids.view();
  inputs.eplb_local_stats = TensorView(stats.view().data, kInt32, {kExperts}, stats.view().device);
  if (active != RankMask::first(num_ranks)) inputs.active_rank_mask = active;
  const auto received = comm.dispatch(inputs);
  const TensorView& gathered = received.eplb_gathered_stats.value();
  check(gathered.dtype == kInt32 && gathered.size(0) == num_ranks && gathered.size(1) == kExperts,
        "statistics came as " + describe(gathered));
  for (int src = 0; src < num_ranks; ++src) {
    const auto expected =
        active.test(src) ? stats_of(src, seed) : std::vector<std::byte>(kExperts * 4);
    check(row_of(backend, gathered, src) == expected,
          "statistics of rank " + std::to_string(src) + " differ");
  }
  Tensor output(backend, params.token_dtype(), 0, params.hidden_size);
  comm.combine(comm.get_combine_input_buffer(params.token_dtype()), output.view());
}

// FR-158: an all-gather, nothing summed or scaled.
TEST_P(BackendSuite, StatisticsAreGatheredUnchanged) {
  const GroupStep step = random_step(1, 3, 6, 2, 16, 3);
  SuiteConfig config;
  config.eplb_stats_num_experts = kExperts;
  run_instances(3, params_for(step), config, [&](MoEEpCommunication& comm, int) {
    for (std::uint64_t seed = 0; seed < backend().rounds(30); ++seed) {
      run_with_stats(backend(), comm, seed, RankMask::first(3));
      run_step(backend(), comm, step);  // without any
    }
  });
}

TEST_P(BackendSuite, StatisticsOfMaskedRanksAreZero) {
  const GroupStep step = random_step(2, 3, 6, 2, 16, 3);
  SuiteConfig config;
  config.eplb_stats_num_experts = kExperts;
  config.enable_rank_mask = true;
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& group) {
    const auto comm = make(rank, group, params_for(step), config);
    run_with_stats(backend(), *comm, 1, RankMask::first(3));
    RankMask active = RankMask::first(3);
    active.reset(1);
    for (std::uint64_t seed = 2; rank != 1 && seed < 5; ++seed) {
      run_with_stats(backend(), *comm, seed, active);
    }
    group->barrier();
  });
}

// FR-156.
TEST_P(BackendSuite, StatisticsOfAnotherShapeAreRefused) {
  const GroupStep step = random_step(3, 2, 6, 2, 16, 3);
  for (const std::int64_t room : {std::int64_t{0}, kExperts}) {
    SuiteConfig config;
    config.eplb_stats_num_experts = room;
    run_instances(2, params_for(step), config, [&](MoEEpCommunication& comm, int) {
      Tensor hidden(backend(), kBFloat16, 0, 16);
      Tensor ids(backend(), kInt32, 0, 2);
      Tensor memory(backend(), kInt64, 2, 2 * kExperts);
      const auto text_of = [&](DType dtype, std::initializer_list<std::int64_t> shape,
                               std::int64_t stride = 1) -> std::string {
        TensorView stats(memory.view().data, dtype, shape, memory.view().device);
        stats.strides[static_cast<std::size_t>(stats.ndim - 1)] = stride;
        try {
          comm.dispatch(
              {.hidden_states = hidden.view(), .topk_ids = ids.view(), .eplb_local_stats = stats});
        } catch (const std::invalid_argument& error) {
          return error.what();
        }
        return "taken";
      };
      if (room == 0) {
        EXPECT_THAT(text_of(kInt32, {kExperts}), HasSubstr("eplb_stats_num_experts > 0"));
      } else {
        const std::string shape = "eplb_local_stats must be a contiguous ";
        EXPECT_THAT(text_of(kInt32, {kExperts - 1}), HasSubstr(shape));
        EXPECT_THAT(text_of(kInt32, {kExperts + 1}), HasSubstr(shape));
        EXPECT_THAT(text_of(kInt64, {kExperts}), HasSubstr(shape));
        EXPECT_THAT(text_of(kFloat32, {kExperts}), HasSubstr(shape));
        EXPECT_THAT(text_of(kInt32, {1, kExperts}), HasSubstr(shape));
        EXPECT_THAT(text_of(kInt32, {kExperts}, 2), HasSubstr(shape));
      }
      run_step(backend(), comm, step);
    });
  }
}

}  // namespace
}  // namespace moe_ep::testing
