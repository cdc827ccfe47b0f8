// Construction: whatever is wrong on one rank, or differs between ranks, is an error of the same
// kind on every rank that names field, values and ranks.
#include <moe_ep/host.hpp>
#include <moe_ep/nvlink.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "support/spawn_ranks.hpp"

namespace moe_ep {
namespace {

using testing::all_ok;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::RankKind;
using testing::spawn_ranks;

// Everything one rank passes.
struct Arguments {
  BootstrapConfig bootstrap;
  MoEEpCommParams params{
      .num_experts = 12, .top_k = 2, .max_tokens_per_rank = 16, .hidden_size = 64};
  HostAlltoAllConfig config;
};

using Change = std::function<void(Arguments&)>;

// What the constructor says on every rank, when `change` is applied on `odd` only; "" for success.
template <class Error>
std::vector<std::string> construct(int num_ranks, int odd, const Change& change) {
  std::vector<std::string> texts(static_cast<std::size_t>(num_ranks));
  EXPECT_TRUE(all_ok(spawn_ranks(
      RankKind::kThreads, num_ranks, [&](int rank, const std::shared_ptr<CommBackend>& comm) {
        Arguments arguments;
        arguments.bootstrap.world_size = num_ranks;
        arguments.bootstrap.rank = rank;
        arguments.config.comm_backend = comm;
        if (rank == odd) change(arguments);
        try {
          HostAlltoAll instance(arguments.bootstrap, arguments.params, arguments.config);
        } catch (const Error& error) {
          texts[static_cast<std::size_t>(rank)] = error.what();
        }
      })));
  return texts;
}

TEST(AgreementTest, EqualArgumentsMakeAnInstance) {
  for (const std::string& text : construct<std::exception>(3, 0, [](Arguments&) {})) {
    EXPECT_EQ(text, "");
  }
}

// FR-018: every parameter that must agree, differing on the first, a middle and the last rank.
TEST(AgreementTest, DifferencesNameFieldValuesAndRanksOnEveryRank) {
  struct Case {
    const char* field;
    const char* usual;
    const char* other;
    Change change;
  };
  const std::vector<Case> cases = {
      {"num_experts", "12", "24", [](Arguments& a) { a.params.num_experts = 24; }},
      {"top_k", "2", "3", [](Arguments& a) { a.params.top_k = 3; }},
      {"max_tokens_per_rank", "16", "17", [](Arguments& a) { a.params.max_tokens_per_rank = 17; }},
      {"hidden_size", "64", "65", [](Arguments& a) { a.params.hidden_size = 65; }},
      {"dtype", "BFloat16", "Float16", [](Arguments& a) { a.params.dtype = kFloat16; }},
      {"dispatch_format", "None", "MXFP8",
       [](Arguments& a) { a.params.dispatch_format = QuantFormat::kMXFP8; }},
      {"invalid_expert_id", "-1", "-2", [](Arguments& a) { a.params.invalid_expert_id = -2; }},
      {"extra_payload_bytes_per_token", "0", "8",
       [](Arguments& a) { a.config.extra_payload_bytes_per_token = 8; }},
      {"eplb_stats_num_experts", "0", "12",
       [](Arguments& a) { a.config.eplb_stats_num_experts = 12; }},
      {"enable_rank_mask", "False", "True", [](Arguments& a) { a.config.enable_rank_mask = true; }},
      {"use_low_precision_combine", "False", "True",
       [](Arguments& a) { a.config.use_low_precision_combine = true; }},
      {"cft", "None", "False", [](Arguments& a) { a.config.cft = false; }},
      {"lamport", "None", "False", [](Arguments& a) { a.config.lamport = false; }},
      {"lamport_max_tokens", "None", "5", [](Arguments& a) { a.config.lamport_max_tokens = 5; }},
      {"cft_max_tokens_for_dispatch", "128", "64",
       [](Arguments& a) { a.config.cft_max_tokens_for_dispatch = 64; }},
      {"cft_max_tokens_for_combine", "128", "64",
       [](Arguments& a) { a.config.cft_max_tokens_for_combine = 64; }},
      {"share_workspace", "True", "False", [](Arguments& a) { a.config.share_workspace = false; }},
  };
  for (const Case& c : cases) {
    for (const int odd : {0, 1, 2}) {
      const std::string ranks = odd == 0   ? "ranks 1 and 2"
                                : odd == 1 ? "ranks 0 and 2"
                                           : "ranks 0 and 1";
      const auto texts = construct<std::invalid_argument>(3, odd, c.change);
      for (const std::string& text : texts) {
        EXPECT_THAT(text,
                    AllOf(HasSubstr(std::string("HostAlltoAll: ") + c.field +
                                    " must be the same on every rank"),
                          HasSubstr(std::string(c.usual) + " on " + ranks),
                          HasSubstr(std::string(c.other) + " on rank " + std::to_string(odd))));
        EXPECT_EQ(text, texts.front());
      }
    }
  }
}

// What need not agree: how long a rank waits and how many threads it uses.
TEST(AgreementTest, LocalOptionsMayDiffer) {
  for (const Change& change :
       std::vector<Change>{[](Arguments& a) { a.config.timeout_sec = 7; },
                           [](Arguments& a) { a.config.num_threads = 3; },
                           [](Arguments& a) { a.bootstrap.device = 2; },
                           [](Arguments& a) { a.bootstrap.stream = 5; },
                           [](Arguments& a) { a.params.dtype = kBFloat16; }}) {
    for (const std::string& text : construct<std::exception>(2, 1, change))
      EXPECT_EQ(text, "");
  }
}

// A rank's own bad value is everybody's error, with the rank and its reason.
TEST(AgreementTest, OneRanksBadValueIsRefusedOnEveryRank) {
  struct Case {
    Change change;
    const char* reason;
  };
  for (const Case& c : std::vector<Case>{
           {[](Arguments& a) { a.params.top_k = 0; }, "top_k must be a positive"},
           {[](Arguments& a) { a.params.num_experts = 13; }, "num_experts must be divisible by"},
           {[](Arguments& a) { a.params.invalid_expert_id = 3; }, "invalid_expert_id must be"},
           {[](Arguments& a) { a.config.timeout_sec = 0; }, "timeout_sec must lie in"},
           {[](Arguments& a) { a.config.lamport = a.config.cft = true; }, "at most one of lamport"},
           {[](Arguments& a) { a.config.num_threads = 0; }, "num_threads must lie in"}}) {
    for (const int odd : {0, 2}) {
      for (const std::string& text : construct<std::invalid_argument>(3, odd, c.change)) {
        EXPECT_THAT(text,
                    AllOf(HasSubstr("HostAlltoAll: every rank must pass its own checks"),
                          HasSubstr("rank " + std::to_string(odd) + ": "), HasSubstr(c.reason)));
      }
    }
  }
}

TEST(AgreementTest, SeveralRanksReasonsAreAllNamed) {
  std::mutex mutex;
  std::set<std::string> texts;
  EXPECT_TRUE(all_ok(
      spawn_ranks(RankKind::kThreads, 3, [&](int rank, const std::shared_ptr<CommBackend>& comm) {
        Arguments a;
        a.bootstrap = {.world_size = 3, .rank = rank};
        a.config.comm_backend = comm;
        if (rank == 0) a.params.top_k = 0;
        if (rank == 2) a.config.timeout_sec = 0;
        try {
          HostAlltoAll instance(a.bootstrap, a.params, a.config);
        } catch (const std::invalid_argument& error) {
          const std::lock_guard lock(mutex);
          texts.insert(error.what());
        }
      })));
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_THAT(*texts.begin(), AllOf(HasSubstr("rank 0: MoEEpCommParams: top_k"),
                                    HasSubstr("rank 2: HostAlltoAllConfig: timeout_sec")));
}

// FR-111: what a rank lacks is everybody's error, of another kind than a bad value.
TEST(AgreementTest, FailedAllocationOnOneRankFailsEveryRank) {
  // The whole address space does not hold these slices, so it fails on every rank; each is named.
  for (const std::string& text : construct<MoEEpError>(2, 0, [](Arguments&) {})) {
    EXPECT_EQ(text, "");
  }
  EXPECT_TRUE(all_ok(
      spawn_ranks(RankKind::kThreads, 2, [&](int rank, const std::shared_ptr<CommBackend>& comm) {
        Arguments a;
        a.bootstrap = {.world_size = 2, .rank = rank};
        a.config.comm_backend = comm;
        a.params.max_tokens_per_rank = 2147483647;
        a.params.hidden_size = 1 << 20;
        try {
          HostAlltoAll instance(a.bootstrap, a.params, a.config);
          ADD_FAILURE() << "sixteen petabytes were there";
        } catch (const MoEEpError& error) {
          // One reason for both, unless free memory changed in between.
          EXPECT_THAT(error.what(), AnyOf(HasSubstr("ranks 0 and 1"),
                                          AllOf(HasSubstr("rank 0: "), HasSubstr("rank 1: "))));
        }
      })));
}

// A backend that counts, and can be told to misbehave.
class FaultyComm final : public CommBackend {
 public:
  enum class Fault { kNone, kShort, kReversed, kOnlyOwn, kForeign };

  FaultyComm(std::shared_ptr<CommBackend> inner, Fault fault)
      : inner_(std::move(inner)), fault_(fault) {}
  int get_rank() const override { return inner_->get_rank(); }
  int get_size() const override { return inner_->get_size(); }
  std::vector<std::string> allgather(std::string_view message) override {
    ++num_calls;
    std::vector<std::string> all = inner_->allgather(message);
    switch (fault_) {
      case Fault::kNone:
        break;
      case Fault::kShort:
        all.pop_back();
        break;
      case Fault::kReversed:
        std::swap(all.front(), all.back());
        break;
      case Fault::kOnlyOwn:
        all.assign(all.size(), std::string(message));
        break;
      case Fault::kForeign:
        all.back() = "hello";
        break;
    }
    return all;
  }
  std::string bcast(std::string_view message, int root) override {
    ++num_calls;
    return inner_->bcast(message, root);
  }
  void barrier() override {
    ++num_calls;
    inner_->barrier();
  }
  std::shared_ptr<CommBackend> split(int color, int key) override {
    ++num_calls;
    return inner_->split(color, key);
  }

  int num_calls = 0;

 private:
  std::shared_ptr<CommBackend> inner_;
  Fault fault_;
};

// FR-165.
TEST(AgreementTest, BrokenAllgatherIsCaughtInTheConstructor) {
  using Fault = FaultyComm::Fault;
  for (const Fault fault : {Fault::kShort, Fault::kReversed, Fault::kOnlyOwn, Fault::kForeign}) {
    EXPECT_TRUE(all_ok(
        spawn_ranks(RankKind::kThreads, 2, [&](int rank, const std::shared_ptr<CommBackend>& comm) {
          Arguments a;
          a.bootstrap = {.world_size = 2, .rank = rank};
          a.config.comm_backend = std::make_shared<FaultyComm>(comm, fault);
          try {
            HostAlltoAll instance(a.bootstrap, a.params, a.config);
            ADD_FAILURE() << "fault " << static_cast<int>(fault) << " went unnoticed";
          } catch (const MoEEpError& error) {
            EXPECT_THAT(error.what(), HasSubstr("allgather must return every rank's message"));
          }
        })));
  }
}

// FR-021: refused before any collective.
TEST(AgreementTest, TooManyRanksAreRefusedWithoutACollective) {
  class Crowd final : public CommBackend {
   public:
    int get_rank() const override { return 3; }
    int get_size() const override { return 1000; }
    std::vector<std::string> allgather(std::string_view) override {
      return fail(), std::vector<std::string>{};
    }
    std::string bcast(std::string_view, int) override { return fail(), std::string{}; }
    void barrier() override { fail(); }
    std::shared_ptr<CommBackend> split(int, int) override { return fail(), nullptr; }

   private:
    static void fail() { ADD_FAILURE() << "a collective was begun"; }
  };
  Arguments a;
  a.bootstrap = {.world_size = 1000, .rank = 3};
  a.params.num_experts = 1000;
  a.config.comm_backend = std::make_shared<Crowd>();
  try {
    HostAlltoAll instance(a.bootstrap, a.params, a.config);
    ADD_FAILURE() << "1000 ranks were taken";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "BootstrapConfig: world_size must lie in 1..256, got 1000");
  }
}

TEST(AgreementTest, GroupsNeedABackendUnlessTheyAreOfOne) {
  Arguments a;
  HostAlltoAll alone({}, a.params);
  EXPECT_GT(alone.workspace_bytes(), 0);
  a.bootstrap = {.world_size = 2, .rank = 0};
  try {
    HostAlltoAll instance(a.bootstrap, a.params, a.config);
    ADD_FAILURE() << "no backend was taken";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "HostAlltoAll: comm_backend is required when world_size > 1, got none with "
                 "world_size 2");
  }
}

// A frontend that must give up tells the others why.
TEST(AgreementTest, RefusedConstructionIsEverybodysError) {
  EXPECT_TRUE(all_ok(
      spawn_ranks(RankKind::kThreads, 3, [&](int rank, const std::shared_ptr<CommBackend>& comm) {
        Arguments a;
        a.bootstrap = {.world_size = 3, .rank = rank};
        a.config.comm_backend = comm;
        try {
          if (rank == 1) refuse_construction(a.bootstrap, *comm, "HostAlltoAll", "no such tensor");
          HostAlltoAll instance(a.bootstrap, a.params, a.config);
          ADD_FAILURE() << "rank " << rank << " was made";
        } catch (const std::invalid_argument& error) {
          EXPECT_STREQ(error.what(),
                       "HostAlltoAll: every rank must pass its own checks, got rank 1: no such "
                       "tensor");
        }
      })));
}

#if !defined(MOE_EP_HAS_CUDA)
// An unsupported platform is an error of every rank, and a bad value is told apart from it.
TEST(AgreementTest, UnsupportedBackendsSayWhyOnEveryRank) {
  EXPECT_FALSE(NVLinkOneSidedAlltoAll::is_platform_supported());
  EXPECT_FALSE(NVLinkOneSidedAlltoAll::explain_platform().empty());
  EXPECT_TRUE(all_ok(
      spawn_ranks(RankKind::kThreads, 2, [&](int rank, const std::shared_ptr<CommBackend>& comm) {
        Arguments a;
        a.bootstrap = {.world_size = 2, .rank = rank};
        NVLinkOneSidedConfig config;
        config.comm_backend = comm;
        try {
          NVLinkOneSidedAlltoAll instance(a.bootstrap, a.params, config);
          ADD_FAILURE() << "was made";
        } catch (const MoEEpError& error) {
          EXPECT_THAT(error.what(), AllOf(HasSubstr("NVLinkOneSidedAlltoAll"),
                                          HasSubstr(NVLinkOneSidedAlltoAll::explain_platform())));
        }
        config.timeout_sec = 0;
        EXPECT_THROW(NVLinkOneSidedAlltoAll(a.bootstrap, a.params, config), std::invalid_argument);
      })));
}
#endif

}  // namespace
}  // namespace moe_ep
