// Odd row sizes, unaligned sources, strides, payload types (FIELD.md, ALIGN).
#include <gmock/gmock.h>

#include "conformance/backend_suite.hpp"

namespace moe_ep::testing {
namespace {

using ::testing::HasSubstr;

// FR-051: every pair of row sizes, in both orders.
TEST_P(BackendSuite, RowSizesMixInEveryOrder) {
  const std::int64_t sizes[] = {1, 2, 3, 4, 6, 8, 12, 14, 16, 30, 36, 448};
  GroupStep step = random_step(1, 2, 4, 3, 16, 3);
  SuiteConfig config;
  config.extra_payload_bytes_per_token = 2 * 448;
  run_instances(2, params_for(step), config, [&](MoEEpCommunication& comm, int) {
    for (const std::int64_t first : sizes) {
      for (const std::int64_t second : sizes) {
        StepOptions options;
        options.hidden_dtype = kUInt8;
        options.width = first;
        options.extras = {{kUInt8, second}};
        run_step(backend(), comm, step, options);
      }
    }
  });
}

// FR-051.
TEST_P(BackendSuite, UnalignedSourcesAreExact) {
  for (const std::int64_t offset : {1, 2, 4, 6, 8}) {
    StepOptions options;
    options.hidden_dtype = kUInt8;
    options.width = 31;
    options.weights = false;
    options.offset = offset;
    run_steps({random_step(2, 2, 4, 2, 33, 4)}, options);
  }
}

// Ids and statistics at odd addresses are refused while nothing has happened, and so are expert
// output and output on a GPU, where reading one is a fault that ends the context. Hosts take those.
TEST_P(BackendSuite, NumbersAtOddAddressesAreExactOrRefused) {
  const GroupStep step = random_step(10, 2, 4, 2, 8, 4);
  SuiteConfig config;
  config.eplb_stats_num_experts = 4;
  run_instances(2, params_for(step), config, [&](MoEEpCommunication& comm, int) {
    const bool host = backend().device().type == Device::kCpu;
    const std::int64_t rows = 2 * step.tokens_per_rank;
    const Tensor hidden(backend(), kBFloat16, 4, 8);
    const Tensor ids(backend(), kInt32, 4, 2);
    const auto moved = [](TensorView view, std::int64_t bytes) {
      view.data = static_cast<std::byte*>(view.data) + bytes;
      view.shape[0] -= 1;
      return view;
    };
    const auto is_taken = [&](const std::string& name, auto&& call) {
      try {
        call();
      } catch (const std::invalid_argument& error) {
        EXPECT_THAT(error.what(), HasSubstr(name + " must start at a multiple"));
        return false;
      }
      return true;
    };
    Tensor zero_ids = ids;
    zero_ids.fill(std::byte{0});
    Tensor stats(backend(), kInt32, 2, 4);
    TensorView odd_stats(static_cast<std::byte*>(stats.view().data) + 2, kInt32, {4},
                         backend().device());
    const Tensor answers(backend(), kBFloat16, rows + 1, 8);
    const Tensor output(backend(), kBFloat16, 4, 8);
    for (const bool with_stats : {false, true}) {
      DispatchInputs inputs{.hidden_states = moved(hidden.view(), 3),
                            .topk_ids = moved(ids.view(), with_stats ? 0 : 2)};
      if (with_stats) inputs.eplb_local_stats = odd_stats;
      EXPECT_FALSE(
          is_taken(with_stats ? "eplb_local_stats" : "topk_ids", [&] { comm.dispatch(inputs); }));
      inputs.topk_ids = moved(ids.view(), 0);
      inputs.eplb_local_stats.reset();
      comm.dispatch(inputs);
      EXPECT_EQ(is_taken(with_stats ? "expert_output" : "output",
                         [&] {
                           comm.combine(moved(answers.view(), with_stats ? 1 : 0),
                                        moved(output.view(), with_stats ? 0 : 1));
                         }),
                host);
      if (!host) comm.combine(moved(answers.view(), 0), moved(output.view(), 0));
    }
    run_step(backend(), comm, step);
  });
}

// FR-028, FR-052.
TEST_P(BackendSuite, EveryHiddenSizeIsExact) {
  for (const DType dtype : {kBFloat16, kFloat16, kFloat32}) {
    for (const std::int64_t hidden : {1, 3, 5, 7, 9, 17, 64, 130, 1023, 2880, 2881}) {
      for (const std::int64_t top_k : {1, 3, 5}) {
        if (hidden > 1000 && top_k != 3) continue;
        StepOptions options;
        options.hidden_dtype = dtype;
        run_steps({random_step(static_cast<std::uint64_t>(hidden), 2, 6, top_k, hidden,
                               hidden > 1000 ? 2 : 4, dtype)},
                  options);
      }
    }
  }
}

// FR-053: rows may lie apart.
TEST_P(BackendSuite, RowStridesAreExact) {
  const GroupStep step = random_step(3, 3, 6, 4, 33, 5);
  for (const std::int64_t gap : {1, 2, 7, 64}) {
    StepOptions options;
    options.row_gap = gap;
    options.wide_ids = gap == 2;
    run_steps({step}, options);
  }
}

// FR-053: what is not contiguous within a row is refused by name, and nothing was sent.
TEST_P(BackendSuite, RowsThatAreNotContiguousAreRefused) {
  const GroupStep step = random_step(4, 2, 4, 2, 16, 4);
  run_instances(2, params_for(step), {}, [&](MoEEpCommunication& comm, int rank) {
    Tensor hidden(backend(), kBFloat16, 2, 32);
    Tensor ids(backend(), kInt32, 2, 4);
    Tensor weights(backend(), kFloat32, 2, 4);
    const auto every_second = [](TensorView view) {
      view.shape[1] /= 2;
      view.strides[1] = 2;
      return view;
    };
    const auto halved = [](TensorView view) {
      view.shape[1] /= 2;
      return view;
    };
    const auto refused = [&](const DispatchInputs& inputs, const std::string& name) {
      try {
        comm.dispatch(inputs);
      } catch (const std::invalid_argument& error) {
        EXPECT_THAT(error.what(), HasSubstr("dispatch: " + name));
        EXPECT_THAT(error.what(), HasSubstr("contiguous within a row"));
        return;
      }
      ADD_FAILURE() << "rank " << rank << ": " << name << " was taken";
    };
    const TensorView good_hidden = halved(hidden.view());
    const TensorView good_ids = halved(ids.view());
    refused({.hidden_states = every_second(hidden.view()), .topk_ids = good_ids}, "hidden_states");
    refused({.hidden_states = good_hidden, .topk_ids = every_second(ids.view())}, "topk_ids");
    refused({.hidden_states = good_hidden,
             .topk_ids = good_ids,
             .topk_weights = every_second(weights.view())},
            "topk_weights");
    run_step(backend(), comm, step);  // nothing was sent
  });
}

TEST_P(BackendSuite, AnswersThatAreNotContiguousAreRefusedAndTheRoundStaysOpen) {
  GroupStep step = random_step(5, 2, 4, 2, 16, 4);
  run_instances(2, params_for(step), {}, [&](MoEEpCommunication& comm, int) {
    StepRunner runner(backend(), comm, step);
    runner.dispatch();
    Tensor wide(backend(), kBFloat16, 8, 32);
    TensorView view = wide.view();
    view.shape[1] = 16;
    view.strides[1] = 2;
    Tensor output(backend(), kBFloat16, comm.num_local_tokens(), 16);
    EXPECT_THROW(comm.combine(view, output.view()), std::invalid_argument);
    runner.combine();
  });
}

// A broadcast row is a stride of 0.
TEST_P(BackendSuite, ExpandedRowsAreExact) {
  const GroupStep step = random_step(6, 1, 4, 2, 8, 3);
  run_instances(1, params_for(step), {}, [&](MoEEpCommunication& comm, int) {
    Tensor hidden(backend(), kBFloat16, 1, 8);
    hidden.set_row(0, payload_row(step, kHiddenPayload, 0, 0, 16));
    TensorView expanded = hidden.view();
    expanded.shape[0] = 3;
    expanded.strides[0] = 0;
    Tensor ids(backend(), kInt32, 3, 2);
    ids.fill(std::byte{0});
    const auto received = comm.dispatch({.hidden_states = expanded, .topk_ids = ids.view()});
    for (int row = 0; row < 3; ++row) {
      EXPECT_EQ(row_of(backend(), received.hidden_states, row), hidden.row(0));
    }
    Tensor output(backend(), kBFloat16, 3, 8);
    comm.combine(comm.get_combine_input_buffer(kBFloat16), output.view());
  });
}

// FR-055, FR-056, FR-058: every type travels as its bytes.
TEST_P(BackendSuite, ScalesAndPayloadsOfEveryTypeAreOpaque) {
  std::vector<DType> dtypes;
#define MOE_EP_ADD(name, code, bits, lanes) dtypes.push_back(k##name);
  MOE_EP_FOR_EACH_DTYPE(MOE_EP_ADD)
#undef MOE_EP_ADD
  GroupStep step = random_step(7, 2, 4, 2, 32, 4);
  SuiteConfig config;
  config.extra_payload_bytes_per_token = 3 * 8 * 8;
  run_instances(2, params_for(step), config, [&](MoEEpCommunication& comm, int) {
    for (const DType dtype : dtypes) {
      StepOptions options;
      options.hidden_dtype = dtype;
      options.width = 5;
      options.scale_dtype = dtype;
      options.scale_width = 3;
      options.extras = {{dtype, 7}};
      run_step(backend(), comm, step, options);
    }
  });
}

// FR-055: 1 x 16, 1 x 32 and 1 x 128 scales stay with their rows, in each format's own room.
TEST_P(BackendSuite, QuantisedFormatsFitTheirReservationExactly) {
  struct Case {
    QuantFormat format;
    DType hidden, scale;
    std::int64_t width, scale_width;
  };
  constexpr std::int64_t kHidden = 260;
  for (const Case& c : {Case{QuantFormat::kNVFP4, kUInt8, kFloat8E4M3FN, 130, 17},
                        Case{QuantFormat::kMXFP4, kFloat4E2M1FNx2, kUInt8, 130, 9},
                        Case{QuantFormat::kMXFP8, kFloat8E4M3FN, kFloat8E8M0FNU, 260, 9},
                        Case{QuantFormat::kDeepSeekFp8, kFloat8E4M3FN, kFloat32, 260, 3},
                        Case{QuantFormat::kFP8PerTensor, kFloat8E5M2, kFloat32, 260, 0}}) {
    const GroupStep step = random_step(8, 2, 4, 2, kHidden, 4);
    MoEEpCommParams params = params_for(step);
    params.dispatch_format = c.format;
    StepOptions options;
    options.hidden_dtype = c.hidden;
    options.width = c.width;
    if (c.scale_width > 0) {
      options.scale_dtype = c.scale;
      options.scale_width = c.scale_width;
    }
    StepOptions too_wide = options;
    *too_wide.width += 1;
    run_instances(2, params, {}, [&](MoEEpCommunication& comm, int) {
      run_step(backend(), comm, step, options);
      EXPECT_THROW(StepRunner(backend(), comm, step, too_wide).send(), std::invalid_argument);
    });
  }
}

// FR-059.
TEST_P(BackendSuite, AsManyPayloadsAsTheLimitAndNoMore) {
  const GroupStep step = random_step(9, 2, 4, 2, 8, 3);
  SuiteConfig config;
  config.extra_payload_bytes_per_token = 64;
  StepOptions full;
  full.scale_dtype = kUInt8;
  full.scale_width = 2;
  full.extras = {{kUInt8, 1}, {kInt16, 2}, {kFloat32, 1}, {kInt64, 1}};
  StepOptions over = full;
  over.extras.push_back({kUInt8, 1});
  run_instances(2, params_for(step), config, [&](MoEEpCommunication& comm, int) {
    run_step(backend(), comm, step, full);
    try {
      StepRunner(backend(), comm, step, over).send();
      ADD_FAILURE() << "five extra payloads were taken";
    } catch (const std::invalid_argument& error) {
      EXPECT_STREQ(error.what(), "dispatch: extra_payloads must be at most 4 tensors, got 5");
    }
    run_step(backend(), comm, step, full);
  });
}

}  // namespace
}  // namespace moe_ep::testing
