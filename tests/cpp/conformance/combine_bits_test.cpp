// The numbers of combine (FIELD.md, PREC): one definition of the sum, whatever runs it.
#include <cmath>
#include <cstring>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "conformance/backend_suite.hpp"
#include "support/reference.hpp"

namespace moe_ep::testing {
namespace {

std::uint64_t hash_of(const std::vector<std::vector<std::byte>>& rows) {
  std::uint64_t hash = 0;
  for (const auto& row : rows) {
    for (const std::byte byte : row)
      hash = mix(hash, static_cast<std::uint64_t>(byte));
  }
  return hash;
}

// Mixed T, K, R, dtypes and masks: a thousand steps. The reference's bits are the same for every
// backend, so these are, too.
TEST_P(BackendSuite, RandomStepsHaveTheReferencesBits) {
  constexpr std::uint64_t kGroups = 5;
  const std::uint64_t num_steps = backend().rounds(200);
  constexpr std::int64_t kCapacity = 10;
  const DType dtypes[] = {kBFloat16, kFloat16, kFloat32};
  for (std::uint64_t group = 0; group < kGroups; ++group) {
    const int num_ranks = 1 + static_cast<int>(group);
    const DType dtype = dtypes[group % 3];
    const auto top_k = 1 + static_cast<std::int64_t>(mix(group, 2) % 9);
    const auto hidden = 1 + static_cast<std::int64_t>(mix(group, 3) % 200);
    RankMask active = RankMask::first(num_ranks);
    if (group >= 3) active.reset(1);  // sits everything out
    const GroupStep largest =
        random_step(0, num_ranks, 12 * num_ranks, top_k, hidden, kCapacity, dtype);
    SuiteConfig config;
    config.enable_rank_mask = true;
    run_instances(num_ranks, params_for(largest), config, [&](MoEEpCommunication& comm, int rank) {
      for (std::uint64_t seed = 0; active.test(rank) && seed < num_steps; ++seed) {
        const auto draw = mix(group, 4, seed);
        GroupStep step =
            random_step(1000 * group + seed, num_ranks, largest.num_experts, top_k, hidden,
                        1 + static_cast<std::int64_t>(draw % kCapacity), dtype);
        step.active = active;
        StepOptions options;
        options.hidden_dtype = dtype;
        options.in_place = draw >> 8 & 1;
        options.weights = draw >> 9 & 1;
        options.wide_ids = mix(draw, static_cast<std::uint64_t>(rank)) & 1;
        options.pass_mask = group >= 3 || (draw >> 10 & 1);
        run_step(backend(), comm, step, options);
      }
    });
  }
}

// FR-100: partial sums keep float32's precision.
TEST_P(BackendSuite, SumsAreTakenInFloat32) {
  for (const DType dtype : {kBFloat16, kFloat16}) {
    GroupStep step = random_step(1, 3, 3, 3, 8, 1, dtype);
    step.num_tokens = {1, 0, 0};
    step.ids = {{0, 1, 2}, {}, {}};
    run_instances(3, params_for(step), {}, [&](MoEEpCommunication& comm, int rank) {
      StepRunner runner(backend(), comm, step, {.hidden_dtype = dtype});
      runner.dispatch();
      const double answers[] = {1.0, std::ldexp(1.0, -9), -1.0};
      Tensor rows(backend(), dtype, 3, 8);
      // The stored form of a power of two is exact in both types.
      const auto stored = [&](double value) {
        std::vector<std::byte> row(16);
        for (std::size_t element = 0; element < 8; ++element) {
          for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
            std::memcpy(row.data() + 2 * element, &bits, 2);
            if (reference::is_value(dtype, row.data() + 2 * element, value)) break;
          }
        }
        return row;
      };
      rows.set_row(0, stored(answers[rank]));
      Tensor output(backend(), dtype, comm.num_local_tokens(), 8);
      comm.combine(rows.view(), output.view());
      if (rank == 0) {
        EXPECT_EQ(output.row(0), stored(answers[1]));
      }
    });
  }
}

// What was received may be answered as it is, without a copy in between.
TEST_P(BackendSuite, ReceivedRowsMayBeTheAnswer) {
  const GroupStep step = random_step(9, 3, 6, 4, 37, 6);
  run_instances(3, params_for(step), {}, [&](MoEEpCommunication& comm, int rank) {
    StepRunner runner(backend(), comm, step);
    runner.dispatch();
    const std::int64_t num_tokens = comm.num_local_tokens();
    Tensor output(backend(), kBFloat16, num_tokens, 37);
    comm.combine(runner.received().hidden_states, output.view());
    for (std::int64_t token = 0; token < num_tokens; ++token) {
      const auto sent = payload_row(step, kHiddenPayload, rank, token, 2 * 37);
      std::vector<double> numbers;
      for (std::size_t i = 0; i < 37; ++i) {
        numbers.push_back(reference::decode(kBFloat16, sent.data() + 2 * i));
      }
      const std::vector<std::vector<double>> rows(reference::visited(step, rank, token).size(),
                                                  numbers);
      const auto result = output.row(token);
      for (std::size_t i = 0; i < 37; ++i) {
        check(reference::is_value(kBFloat16, result.data() + 2 * i,
                                  reference::rounded(kBFloat16, reference::sum(rows, i))),
              "token " + std::to_string(token) + " differs");
      }
    }
  });
}

// A lone -0 stays; none gives +0; a sum of opposite numbers is +0.
TEST_P(BackendSuite, ZerosHaveTheContractsSign) {
  for (const DType dtype : {kBFloat16, kFloat16, kFloat32}) {
    const auto size = static_cast<std::size_t>(itemsize(dtype));
    GroupStep step = random_step(2, 2, 2, 2, 3, 4, dtype);
    step.num_tokens = {4, 0};
    step.ids = {{0, 0, 1, 1, 0, 1, -1, -1}, {}};
    run_instances(2, params_for(step), {}, [&](MoEEpCommunication& comm, int rank) {
      StepRunner runner(backend(), comm, step, {.hidden_dtype = dtype});
      runner.dispatch();
      std::vector<std::byte> minus_zero(3 * size);
      for (std::size_t element = 0; element < 3; ++element) {
        minus_zero[element * size + size - 1] = std::byte{0x80};
      }
      Tensor rows(backend(), dtype, 8, 3);
      for (int row = 0; row < 8; ++row)
        rows.set_row(row, minus_zero);
      Tensor output(backend(), dtype, comm.num_local_tokens(), 3);
      comm.combine(rows.view(), output.view());
      if (rank != 0) return;
      EXPECT_EQ(output.row(0), minus_zero);
      EXPECT_EQ(output.row(1), minus_zero);
      EXPECT_EQ(output.row(2), minus_zero) << "-0 + -0";
      EXPECT_EQ(output.row(3), std::vector<std::byte>(3 * size)) << "no contribution";
    });
  }
}

// FR-102: the bound of the FP8 wire, also where rows are too short for it to pay.
TEST_P(BackendSuite, LowPrecisionCombineKeepsItsBound) {
  for (const DType dtype : {kBFloat16, kFloat16, kFloat32}) {
    for (const std::int64_t hidden : {1, 3, 7, 128, 129, 300}) {
      SuiteConfig config;
      config.use_low_precision_combine = true;
      StepOptions options;
      options.low_precision = true;
      options.hidden_dtype = dtype;
      GroupStep step = random_step(static_cast<std::uint64_t>(hidden), 3, 6, 4, hidden, 4, dtype);
      step.any_bits = hidden % 2 == 1;
      run_steps({step}, options, config);
    }
  }
}

// FR-102: the same bits from the combine input buffer and from a tensor of one's own.
TEST_P(BackendSuite, InPlaceAnswersGiveTheSameBits) {
  for (const bool low_precision : {false, true}) {
    SuiteConfig config;
    config.use_low_precision_combine = low_precision;
    const GroupStep step = random_step(4, 3, 6, 4, 200, 6);
    run_instances(3, params_for(step), config, [&](MoEEpCommunication& comm, int) {
      std::vector<std::uint64_t> hashes;
      for (const bool in_place : {false, true, false}) {
        StepOptions options;
        options.in_place = in_place;
        options.low_precision = low_precision;
        options.row_gap = in_place ? 0 : 3;
        StepRunner runner(backend(), comm, step, options);
        runner.dispatch();
        runner.combine();
        hashes.push_back(hash_of(runner.results()));
      }
      check(hashes[0] == hashes[1] && hashes[0] == hashes[2], "bits differ");
    });
  }
}

// FR-105, FR-107: neither the run nor the size of the step nor the order of arrival shows.
TEST_P(BackendSuite, BitsDoNotDependOnTheRunOrOnT) {
  GroupStep small = random_step(5, 4, 8, 6, 40, 3);
  run_instances(4, params_for([&] {
                  GroupStep large = small;
                  large.tokens_per_rank = 64;
                  return large;
                }()),
                {}, [&](MoEEpCommunication& comm, int) {
                  std::optional<std::uint64_t> first;
                  const auto rounds = static_cast<int>(backend().rounds(40));
                  for (int round = 0; round < rounds; ++round) {
                    GroupStep step = small;
                    step.tokens_per_rank = 3 + round * 40 / rounds;
                    StepRunner runner(backend(), comm, step);
                    runner.dispatch();
                    runner.combine();
                    const std::uint64_t hash = hash_of(runner.results());
                    if (!first) first = hash;
                    check(*first == hash, "bits changed in round " + std::to_string(round));
                  }
                });
}

#if defined(__SSE__)
// What torch.set_flush_denormal does to the calling thread must not reach the sums.
TEST_P(BackendSuite, FlushToZeroOfTheCallerDoesNotChangeBits) {
  constexpr unsigned kFlushToZeroAndDenormalsAreZero = 0x8040;
  for (const bool low_precision : {false, true}) {
    SuiteConfig config;
    config.use_low_precision_combine = low_precision;
    GroupStep step = random_step(6, 2, 4, 4, 150, 4, kFloat32);
    run_instances(2, params_for(step), config, [&](MoEEpCommunication& comm, int) {
      std::vector<std::uint64_t> hashes;
      for (const unsigned flags : {0u, kFlushToZeroAndDenormalsAreZero}) {
        StepRunner runner(backend(), comm, step,
                          {.hidden_dtype = kFloat32, .low_precision = low_precision});
        runner.dispatch();
        // Answers with subnormals everywhere.
        Tensor rows(backend(), kFloat32, 8, 150);
        for (int row = 0; row < 8; ++row) {
          std::vector<std::byte> bytes(600);
          for (std::uint32_t element = 0; element < 150; ++element) {
            const std::uint32_t bits =
                static_cast<std::uint32_t>(mix(7, static_cast<std::uint64_t>(row), element)) &
                0x80ffffffu;
            std::memcpy(bytes.data() + 4 * element, &bits, 4);
          }
          rows.set_row(row, bytes);
        }
        Tensor output(backend(), kFloat32, comm.num_local_tokens(), 150);
        const unsigned before = _mm_getcsr();
        _mm_setcsr(before | flags);
        comm.combine(rows.view(), output.view());
        const unsigned after = _mm_getcsr();
        _mm_setcsr(before);
        check((after & 0xffc0u) == ((before | flags) & 0xffc0u), "the caller's modes changed");
        std::vector<std::vector<std::byte>> results;
        for (std::int64_t token = 0; token < output.view().size(0); ++token) {
          results.push_back(output.row(token));
        }
        hashes.push_back(hash_of(results));
      }
      check(hashes[0] == hashes[1], "bits differ");
    });
  }
}
#endif

// A step that is worth a team: every number of threads gives the same.
TEST_P(BackendSuite, EveryNumberOfThreadsGivesTheSameBits) {
  GroupStep step = random_step(7, 2, 8, 4, 4096, 48);
  step.num_tokens = {48, 41};
  random_ids(step);
  for (int num_threads = 1; num_threads <= 4; ++num_threads) {
    SuiteConfig config;
    config.num_threads = num_threads;
    config.use_low_precision_combine = num_threads == 3;
    StepOptions options;
    options.low_precision = num_threads == 3;
    options.in_place = num_threads % 2 == 0;
    run_steps({step, step}, options, config);
  }
}

}  // namespace
}  // namespace moe_ep::testing
