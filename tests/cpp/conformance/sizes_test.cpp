// Sizes, limits and agreement within a step (FIELD.md, SIZE).
#include <gmock/gmock.h>
#include <moe_ep/plan.hpp>

#include "conformance/backend_suite.hpp"

namespace moe_ep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// FR-014: T may change with every step, and so may what travels.
TEST_P(BackendSuite, TokensPerRankMayChangeEveryStep) {
  std::vector<GroupStep> steps;
  for (const std::int64_t tokens_per_rank : {1, 9, 3, 9, 1, 2, 8, 9}) {
    steps.push_back(random_step(steps.size(), 3, 6, 3, 40, tokens_per_rank));
  }
  run_steps(steps);
}

// FR-015.
TEST_P(BackendSuite, TokenLimitsAreRefusedBeforeAnythingIsSent) {
  const GroupStep step = random_step(1, 2, 4, 2, 16, 5);
  run_instances(2, params_for(step), {}, [&](MoEEpCommunication& comm, int) {
    Tensor hidden(backend(), kBFloat16, 4, 16);
    Tensor ids(backend(), kInt32, 4, 2);
    ids.fill(std::byte{0});
    const auto text_of = [&](std::optional<std::int64_t> tokens_per_rank) -> std::string {
      try {
        comm.dispatch({.hidden_states = hidden.view(),
                       .topk_ids = ids.view(),
                       .runtime_max_tokens_per_rank = tokens_per_rank});
      } catch (const std::invalid_argument& error) {
        return error.what();
      }
      return "taken";
    };
    const std::string range =
        "dispatch: runtime_max_tokens_per_rank must lie in 1..5 (max_tokens_per_rank), got ";
    EXPECT_EQ(text_of(6), range + "6");
    EXPECT_EQ(text_of(0), range + "0");
    EXPECT_EQ(text_of(-1), range + "-1");
    EXPECT_EQ(text_of(std::int64_t{1} << 40), range + "1099511627776");
    EXPECT_EQ(text_of(3),
              "dispatch: a rank may send at most 3 (runtime_max_tokens_per_rank) tokens, got 4");
    run_step(backend(), comm, step);
  });
}

TEST_P(BackendSuite, WithoutTokensPerRankTheCapacityHolds) {
  GroupStep step = random_step(2, 2, 4, 2, 16, 5);
  run_instances(2, params_for(step), {}, [&](MoEEpCommunication& comm, int rank) {
    const std::int64_t count = rank == 0 ? 5 : 2;
    Tensor hidden(backend(), kBFloat16, count, 16);
    Tensor ids(backend(), kInt32, count, 2);
    ids.fill(std::byte{0});
    const auto received = comm.dispatch({.hidden_states = hidden.view(), .topk_ids = ids.view()});
    EXPECT_EQ(received.tokens_per_rank, 5);
    EXPECT_EQ(received.hidden_states.size(0), 10);
    EXPECT_EQ(ints_of(backend(), received.recv_counts),
              (rank == 0 ? std::vector<std::int32_t>{5, 2} : std::vector<std::int32_t>{0, 0}));
    Tensor output(backend(), kBFloat16, count, 16);
    comm.combine(comm.get_combine_input_buffer(kBFloat16), output.view());
  });
}

// FR-011.
TEST_P(BackendSuite, BytesOverTheReservationAreRefusedWithTheNumbers) {
  const GroupStep step = random_step(3, 2, 4, 2, 16, 5);
  SuiteConfig config;
  config.extra_payload_bytes_per_token = 4;
  run_instances(2, params_for(step), config, [&](MoEEpCommunication& comm, int) {
    StepOptions scales;
    scales.scale_dtype = kUInt8;
    scales.scale_width = 5;
    try {
      StepRunner(backend(), comm, step, scales).send();
      ADD_FAILURE() << "37 bytes were taken";
    } catch (const std::invalid_argument& error) {
      EXPECT_STREQ(error.what(),
                   "dispatch: hidden_states, scales and extra payloads may take 36 bytes a token "
                   "(dispatch_bytes_per_token 32 + extra_payload_bytes_per_token 4), got 37");
    }
    scales.scale_width = 4;
    run_step(backend(), comm, step, scales);
  });
}

// FR-009: a step on which ranks disagree is an error everywhere, naming field and values.
TEST_P(BackendSuite, DifferentTokensPerRankAreAMismatchOnEveryRank) {
  const GroupStep step = random_step(4, 3, 6, 2, 16, 8);
  run_instances(3, params_for(step), {}, [&](MoEEpCommunication& comm, int rank) {
    GroupStep mine = step;
    mine.num_tokens = {2, 2, 2};
    random_ids(mine);
    mine.tokens_per_rank = rank == 1 ? 8 : 4;
    try {
      StepRunner(backend(), comm, mine).attempt();
      ADD_FAILURE() << "rank " << rank << " noticed nothing";
    } catch (const MoEEpMismatchError& error) {
      const std::string want = rank == 1 ? "got 4 on rank 0 and 8 on rank 1"
                                         : "got 8 on rank 1 and 4 on rank " + std::to_string(rank);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("dispatch: runtime_max_tokens_per_rank must be the "
                                                "same on every rank"),
                                      HasSubstr(want)));
    }
    // Nothing goes on until recover().
    EXPECT_THROW(StepRunner(backend(), comm, mine).send(), MoEEpError);
    EXPECT_THROW(comm.get_combine_input_buffer(kBFloat16), MoEEpError);
    EXPECT_THROW(comm.check(), MoEEpMismatchError);
  });
}

TEST_P(BackendSuite, DifferentWidthsAndPartsAreAMismatchOnEveryRank) {
  struct Case {
    const char* text;
    StepOptions usual, other;
    bool may_time_out = false;  // the ranks may choose different transports
  };
  StepOptions usual;
  StepOptions narrow;
  narrow.width = 7;
  StepOptions no_weights;
  no_weights.weights = false;
  StepOptions scales;
  scales.scale_dtype = kUInt8;
  scales.scale_width = 2;
  StepOptions wide_scales = scales;
  wide_scales.scale_width = 3;
  StepOptions extras;
  extras.extras = {{kUInt8, 2}};
  for (const Case& c :
       {Case{"row bytes of hidden_states", usual, narrow},
        Case{"presence of weights", usual, no_weights},
        Case{"presence of weights", no_weights, usual}, Case{"presence of weights", usual, scales},
        Case{"row bytes of hidden_states_scale", scales, wide_scales},
        Case{"presence of weights", usual, extras, true}}) {
    GroupStep step = random_step(5, 2, 4, 2, 16, 4);
    MoEEpCommParams params = params_for(step);
    SuiteConfig config;
    config.extra_payload_bytes_per_token = 8;
    if (c.may_time_out) config.timeout_sec = 2;
    run_instances(2, params, config, [&](MoEEpCommunication& comm, int rank) {
      try {
        StepRunner(backend(), comm, step, rank == 0 ? c.usual : c.other).attempt();
        ADD_FAILURE() << "rank " << rank << " noticed nothing: " << c.text;
      } catch (const MoEEpMismatchError& error) {
        EXPECT_THAT(error.what(), HasSubstr(c.text));
      } catch (const MoEEpTimeoutError& error) {
        EXPECT_TRUE(c.may_time_out) << error.what();
      }
    });
  }
}

// FR-012.
TEST_P(BackendSuite, CombineRowsLieAtOnePlaceInEveryStep) {
  const GroupStep largest = random_step(6, 2, 4, 2, 24, 12);
  SuiteConfig config;
  config.extra_payload_bytes_per_token = 16;
  run_instances(2, params_for(largest), config, [&](MoEEpCommunication& comm, int) {
    std::optional<void*> place;
    for (const std::int64_t tokens_per_rank : {1, 7, 12}) {
      for (int mix = 0; mix < 4; ++mix) {
        StepOptions options;
        options.weights = mix % 2 == 0;
        if (mix >= 2) options.extras = {{kUInt8, 13}};
        if (mix == 3) options.width = 5;
        const GroupStep step = random_step(7, 2, 4, 2, 24, tokens_per_rank);
        StepRunner runner(backend(), comm, step, options);
        runner.dispatch();
        void* const now = comm.get_combine_input_buffer(kBFloat16).data;
        if (!place) place = now;
        check(*place == now, "the combine input buffer has moved");
        runner.combine();
      }
    }
  });
}

// The combine input buffer overlaps no dispatch view.
TEST_P(BackendSuite, CombineInputBufferOverlapsNoReceivedView) {
  const GroupStep step = random_step(8, 3, 6, 2, 24, 7);
  run_instances(3, params_for(step), {}, [&](MoEEpCommunication& comm, int) {
    StepRunner runner(backend(), comm, step);
    runner.dispatch();
    const TensorView buffer = comm.get_combine_input_buffer(kBFloat16);
    const auto range = [](const TensorView& view) {
      const auto* begin = static_cast<const std::byte*>(view.data);
      return std::pair(begin, begin + view.numel() * itemsize(view.dtype));
    };
    const auto rows = range(buffer);
    for (const TensorView& view :
         {runner.received().hidden_states, runner.received().topk_ids,
          *runner.received().topk_weights, runner.received().recv_counts}) {
      const auto other = range(view);
      EXPECT_TRUE(rows.second <= other.first || other.second <= rows.first) << describe(view);
    }
    // Writing all of it leaves what was received alone.
    const std::vector<std::byte> junk(static_cast<std::size_t>(rows.second - rows.first),
                                      std::byte{0x77});
    backend().upload(static_cast<std::byte*>(buffer.data), junk.data(), junk.size());
    runner.check_received();
    runner.combine();
  });
}

// FR-010: a small instance and a large one of the same group.
TEST_P(BackendSuite, InstancesOfDifferentFormatsAlternate) {
  const GroupStep step = random_step(9, 2, 4, 2, 64, 6);
  run(2, [&](int rank, const std::shared_ptr<CommBackend>& group) {
    MoEEpCommParams narrow = params_for(step);
    narrow.dispatch_format = QuantFormat::kNVFP4;
    const auto a = make(rank, group, narrow);
    const auto b = make(rank, group, params_for(step));
    check(a->slice() != b->slice(), "different layouts share a workspace");
    StepOptions packed;
    packed.hidden_dtype = kUInt8;
    packed.width = 32;
    packed.scale_dtype = kFloat8E4M3FN;
    packed.scale_width = 4;
    for (int round = 0; round < 10; ++round) {
      run_step(backend(), *a, step, packed);
      run_step(backend(), *b, step);
      // Rounds of different workspaces may overlap.
      StepRunner first(backend(), *a, step, packed);
      StepRunner second(backend(), *b, step);
      first.dispatch();
      second.dispatch();
      first.check_received();
      second.combine();
      first.check_received();
      first.combine();
    }
  });
}

TEST_P(BackendSuite, WorkspaceBytesAreThePlansBytes) {
  for (const std::int64_t hidden : {7, 64, 130}) {
    GroupStep step = random_step(10, 3, 6, 3, hidden, 5);
    SuiteConfig config;
    config.extra_payload_bytes_per_token = 12;
    config.eplb_stats_num_experts = 5;
    const WorkspacePlan plan = plan_workspace(3, params_for(step), backend().configure(config));
    run_instances(3, params_for(step), config, [&](MoEEpCommunication& comm, int) {
      check(comm.workspace_bytes() == plan.bytes_per_rank, "another size than planned");
    });
  }
}

}  // namespace
}  // namespace moe_ep::testing
