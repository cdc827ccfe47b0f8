// Dispatch and combine on GPUs against a naive reference, byte by byte.
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "protocol/transport/lamport_dispatch.hpp"
#include "step.hpp"

namespace moe_ep::testing {
namespace {

constexpr int kExperts = 5;  // of the statistics
constexpr std::int64_t kDispatchRow = 1600;
constexpr std::int64_t kCombineRow = 1400;

protocol::WorkspaceLayout layout_for(int num_ranks, int max_tokens, protocol::DataWords words) {
  protocol::TransportRegions regions;
  regions.lamport = {.max_tokens = max_tokens,
                     .top_k = kMaxTopK,
                     .value_bytes = kDispatchRow,
                     .scale_bytes = 128,
                     .combine_bytes = kCombineRow,
                     .words = words};
  return protocol::WorkspaceLayout::make(
      num_ranks, max_tokens, kExperts,
      protocol::WorkspaceLayout::required_bytes(num_ranks, max_tokens, kExperts, kDispatchRow,
                                                kCombineRow, regions),
      regions);
}

// Fence and Lamport steps in any order.
StepShape any_shape(Random& random, Rig& rig) {
  const protocol::WorkspaceLayout& layout = rig[0].workspace.layout;
  if (pick(random, 0, 1) == 0) {
    return random_lamport_shape(random, layout, kDispatchRow, kCombineRow);
  }
  return random_shape(random, layout.num_ranks, layout.max_tokens, kExperts, kDispatchRow,
                      kCombineRow);
}

struct Place {
  std::string name;
  std::vector<int> devices;
};

std::vector<Place> places() {
  std::vector<Place> all;
  for (const int ranks : {1, 2, 3, 4, 8}) {
    all.push_back(
        {"OneGpu" + std::to_string(ranks), std::vector<int>(static_cast<std::size_t>(ranks))});
  }
  all.push_back({"TwoGpus2", {0, 1}});
  all.push_back({"TwoGpus5", {0, 1, 1, 0, 1}});
  return all;
}

class DispatchCombineGpuTest : public ::testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    const int needed = *std::max_element(GetParam().devices.begin(), GetParam().devices.end()) + 1;
    if (num_gpus() < needed) {
      GTEST_SKIP() << "needs " << needed << " GPUs, got " << num_gpus();
    }
  }
  int num_ranks() const { return static_cast<int>(GetParam().devices.size()); }
  std::unique_ptr<Rig> make_rig(int max_tokens,
                                protocol::DataWords words = protocol::DataWords::kBf16) const {
    return std::make_unique<Rig>(GetParam().devices, layout_for(num_ranks(), max_tokens, words));
  }
};

int num_cases(int wanted) {
  const char* text = std::getenv("MOE_EP_GPU_TEST_CASES");
  return text == nullptr ? wanted : std::max(1, wanted * std::atoi(text) / 100);
}

// Enqueues the steps one after another, then checks them all. Throws with what differs, and where.
void run_on_end(Rig& rig, const std::vector<std::unique_ptr<Step>>& steps) {
  for (const auto& step : steps)
    step->run();
  rig.synchronize();
  for (std::size_t index = 0; index < steps.size(); ++index) {
    try {
      steps[index]->check();
    } catch (const std::exception& error) {
      throw std::runtime_error("step " + std::to_string(index) + ": " + error.what());
    }
  }
}

// Ways to get the rows: pulled, pushed, pushed to some and pulled by others.
void choose_tuning(Step& step, Random& random) {
  const int way = pick(random, 0, 3);
  const int push_percent = pick(random, 1, 90);
  const int threads = pick(random, 0, 1) == 0 ? 512 : 1024;
  const std::int64_t part_bytes = pick(random, 0, 1) == 0 ? 1 : 4 << 10;
  for (StepRank& rank : step.ranks()) {
    rank.tuning.push_bytes = way == 0 ? -1 : 0;
    rank.tuning.min_push_sms = way == 1 || pick(random, 0, 1) == 0 ? 1 : 1000;
    rank.tuning.threads = threads;
    rank.tuning.push_percent = rank.tuning.fp8_push_percent = push_percent;
    rank.tuning.part_bytes = part_bytes;
  }
}

TEST_P(DispatchCombineGpuTest, RandomStepsAreExact) {
  Random random(17u + static_cast<unsigned>(num_ranks()));
  for (const int max_tokens : {3, 70}) {
    const auto rig = make_rig(
        max_tokens, max_tokens == 3 ? protocol::DataWords::kFp4 : protocol::DataWords::kFp8);
    for (int index = 0; index < num_cases(24); ++index) {
      SCOPED_TRACE("capacity " + std::to_string(max_tokens) + ", case " + std::to_string(index));
      const StepShape shape = any_shape(random, *rig);
      Step step(*rig, shape, random);
      choose_tuning(step, random);
      step.run();
      rig->synchronize();
      ASSERT_NO_THROW(step.check());
      if (shape.active != RankMask::first(num_ranks())) rig->reset();  // epochs have come apart
    }
  }
}

TEST_P(DispatchCombineGpuTest, StepsFollowEachOtherWithoutTheHost) {
  Random random(4711u + static_cast<unsigned>(num_ranks()));
  const auto rig = make_rig(40);
  for (const cuda::Pdl pdl : {cuda::Pdl::kOff, cuda::Pdl::kLate, cuda::Pdl::kEarly}) {
    for (int rank = 0; rank < rig->size(); ++rank)
      (*rig)[rank].options.pdl = pdl;
    std::vector<std::unique_ptr<Step>> steps;
    for (int index = 0; index < num_cases(12); ++index) {
      StepShape shape = any_shape(random, *rig);
      shape.active = RankMask::first(num_ranks());
      steps.push_back(std::make_unique<Step>(*rig, shape, random));
      choose_tuning(*steps.back(), random);
    }
    ASSERT_NO_THROW(run_on_end(*rig, steps));
  }
}

// As in a graph: a kernel that is launched early finds its predecessor still at work.
TEST_P(DispatchCombineGpuTest, KernelsFollowEachOtherWithNothingBetween) {
  Random random(815u + static_cast<unsigned>(num_ranks()));
  const auto rig = make_rig(40);
  for (const cuda::Pdl pdl : {cuda::Pdl::kOff, cuda::Pdl::kLate, cuda::Pdl::kEarly}) {
    for (int rank = 0; rank < rig->size(); ++rank)
      (*rig)[rank].options.pdl = pdl;
    std::vector<std::unique_ptr<Step>> steps;
    for (int index = 0; index < num_cases(12); ++index) {
      StepShape shape = any_shape(random, *rig);
      shape.active = RankMask::first(num_ranks());
      shape.chained = true;
      steps.push_back(std::make_unique<Step>(*rig, shape, random));
      choose_tuning(*steps.back(), random);
      if (index % 3 == 0) continue;
      for (StepRank& rank : steps.back()->ranks())
        rank.tuning.push_bytes = -1;
    }
    ASSERT_NO_THROW(run_on_end(*rig, steps));
  }
}

// Ranks that share a GPU and are in a Lamport step wait for one that is still in the fence step
// before: its large blocks must find multiprocessors to run on, beside many small ones.
TEST_P(DispatchCombineGpuTest, BlocksOfAllSizesFindRoom) {
  constexpr int kTokens = 40;
  Random random(3u);
  const auto rig = make_rig(kTokens);
  StepShape shape;
  shape.tokens_per_rank = kTokens;
  shape.top_k = 4;
  shape.hidden_bytes = kDispatchRow - 4 * shape.top_k;
  shape.elements = kCombineRow / 2;
  shape.active = RankMask::first(num_ranks());
  shape.num_tokens.assign(static_cast<std::size_t>(num_ranks()), kTokens);
  shape.chained = true;
  std::vector<std::unique_ptr<Step>> steps;
  for (int index = 0; index < num_cases(8); ++index) {
    shape.transport = index % 2 == 0 ? Transport::kFence : Transport::kLamport;
    steps.push_back(std::make_unique<Step>(*rig, shape, random));
    for (StepRank& rank : steps.back()->ranks()) {
      rank.tuning.push_bytes = index % 4 == 0 ? 0 : -1;
      rank.tuning.min_push_sms = 1;
    }
  }
  ASSERT_NO_THROW(run_on_end(*rig, steps));
}

// Rows of a dispatch lie where the combine before it has let peers' rows land.
TEST_P(DispatchCombineGpuTest, ADispatchWaitsUntilPushedRowsAreRead) {
  Random random(31u);
  const auto rig = make_rig(40);
  StepShape shape;
  shape.tokens_per_rank = 40;
  shape.top_k = 8;
  shape.hidden_bytes = kDispatchRow - 4 * shape.top_k;
  shape.elements = kCombineRow / 2;
  shape.active = RankMask::first(num_ranks());
  std::vector<std::unique_ptr<Step>> steps;
  for (int index = 0; index < num_cases(12); ++index) {
    steps.push_back(std::make_unique<Step>(*rig, shape, random));
    for (StepRank& rank : steps.back()->ranks()) {
      rank.tuning.push_bytes = 0;
      rank.tuning.min_push_sms = 1;
    }
  }
  ASSERT_NO_THROW(run_on_end(*rig, steps));
}

// One thread enqueues everything of one rank before anything of the next.
TEST_P(DispatchCombineGpuTest, RanksMayBeLaunchedOneAfterAnother) {
  Random random(99u);
  const auto rig = make_rig(33);
  for (int index = 0; index < num_cases(8); ++index) {
    StepShape shape = any_shape(random, *rig);
    shape.active = RankMask::first(num_ranks());
    Step step(*rig, shape, random);
    choose_tuning(step, random);
    for (int rank = 0; rank < rig->size(); ++rank) {
      step.dispatch(rank);
      step.combine(rank);
    }
    rig->synchronize();
    ASSERT_NO_THROW(step.check());
  }
}

struct Graph {
  std::vector<cudaGraphExec_t> execs;
  ~Graph() {
    for (cudaGraphExec_t exec : execs)
      cudaGraphExecDestroy(exec);
  }
};

std::unique_ptr<Graph> capture(Rig& rig, Step& step) {
  auto graph = std::make_unique<Graph>();
  for (int rank = 0; rank < rig.size(); ++rank) {
    const cudaStream_t stream = rig.use(rank).stream;
    MOE_EP_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    step.dispatch(rank);
    step.combine(rank);
    cudaGraph_t captured = nullptr;
    MOE_EP_CUDA_CHECK(cudaStreamEndCapture(stream, &captured));
    cudaGraphExec_t exec = nullptr;
    MOE_EP_CUDA_CHECK(cudaGraphInstantiate(&exec, captured, 0));
    MOE_EP_CUDA_CHECK(cudaGraphDestroy(captured));
    graph->execs.push_back(exec);
  }
  return graph;
}

TEST_P(DispatchCombineGpuTest, GraphsOfSeveralSizesMixWithEagerSteps) {
  Random random(5u + static_cast<unsigned>(num_ranks()));
  const auto rig = make_rig(64);
  for (const cuda::Pdl pdl : {cuda::Pdl::kOff, cuda::Pdl::kEarly}) {
    for (int rank = 0; rank < rig->size(); ++rank)
      (*rig)[rank].options.pdl = pdl;
    std::vector<std::unique_ptr<Step>> steps;
    std::vector<std::unique_ptr<Graph>> graphs;
    for (const int tokens : {1, 7, 64}) {
      StepShape shape = any_shape(random, *rig);
      shape.active = RankMask::first(num_ranks());
      shape.tokens_per_rank = tokens;
      steps.push_back(std::make_unique<Step>(*rig, shape, random));
      choose_tuning(*steps.back(), random);
      steps.back()->run();  // eager warm-up
      rig->synchronize();
      graphs.push_back(capture(*rig, *steps.back()));
    }
    for (int round = 0; round < num_cases(20); ++round) {
      const auto which = static_cast<std::size_t>(pick(random, 0, 2));
      const bool eager = pick(random, 0, 2) == 0;
      if (eager) steps[which]->refill(random);  // a graph keeps its numbers of tokens
      if (eager) {
        steps[which]->run();
      } else {
        // Numbers of tokens are constants of a captured launch: refill until they fit again.
        for (int rank = 0; rank < rig->size(); ++rank) {
          MOE_EP_CUDA_CHECK(cudaGraphLaunch(graphs[which]->execs[static_cast<std::size_t>(rank)],
                                            rig->use(rank).stream));
        }
      }
      rig->synchronize();
      SCOPED_TRACE("round " + std::to_string(round) + (eager ? ", eager" : ", graph"));
      ASSERT_NO_THROW(steps[which]->check());
      if (eager) graphs[which] = capture(*rig, *steps[which]);
    }
  }
}

// The last rank but one awaits no answer, and is through long before rank 0, on few
// multiprocessors, has read its experts' rows for the last rank. What it sends next belongs where
// the latter half of those rows is (layouts end with the slice), and must wait.
TEST_P(DispatchCombineGpuTest, FenceRowsWaitForTheAnswersOfALamportStep) {
  if (num_ranks() < 3) GTEST_SKIP() << "needs 3 ranks, got " << num_ranks();
  constexpr int kTokens = 60;
  Random random(8u);
  const auto rig = make_rig(kTokens);
  (*rig)[0].options.max_sms = 1;
  for (int round = 0; round < num_cases(8); ++round) {
    StepShape shape;
    shape.active = RankMask::first(num_ranks());
    shape.hidden_bytes = 1280;
    shape.elements = 640;
    shape.target = 0;
    shape.num_experts = 8 * num_ranks();
    shape.tokens_per_rank = kTokens;
    shape.num_tokens.assign(static_cast<std::size_t>(num_ranks()), 0);
    shape.num_tokens.back() = kTokens;
    shape.transport = Transport::kLamport;
    Step small(*rig, shape, random);
    shape.transport = Transport::kFence;
    shape.tokens_per_rank = kTokens / 6;
    shape.num_tokens.back() = 0;
    shape.num_tokens[static_cast<std::size_t>(num_ranks() - 2)] = shape.tokens_per_rank;
    Step next(*rig, shape, random);
    small.run();
    next.run();
    rig->synchronize();
    ASSERT_NO_THROW(small.check());
    ASSERT_NO_THROW(next.check());
  }
}

TEST_P(DispatchCombineGpuTest, EpochsMayWrap) {
  Random random(1u);
  const auto rig = make_rig(9);
  for (const protocol::Epoch epoch : {0x7ffffffdu, 0xfffffffdu}) {
    rig->reset(epoch);
    for (int index = 0; index < 6; ++index) {
      StepShape shape = any_shape(random, *rig);
      shape.active = RankMask::first(num_ranks());
      Step step(*rig, shape, random);
      choose_tuning(step, random);
      step.run();
      rig->synchronize();
      ASSERT_NO_THROW(step.check());
    }
  }
}

// Tags and flags that no step wrote for long are brought up to date, so that none is ever so old
// that it passes for new.
TEST_P(DispatchCombineGpuTest, OldTagsAreStamped) {
  constexpr protocol::Epoch kEpoch = 0x30000;
  Random random(2u);
  const auto rig = make_rig(9);
  rig->reset(kEpoch);
  const auto word = [&](int rank, const void* at) {
    std::uint64_t value = 0;
    rig->use(rank);
    MOE_EP_CUDA_CHECK(cudaMemcpy(&value, at, sizeof value, cudaMemcpyDeviceToHost));
    return value;
  };
  for (int rank = 0; rank < rig->size(); ++rank) {
    const protocol::Workspace& workspace = rig->use(rank).workspace;
    const protocol::Epoch old[protocol::kLamportBanks] = {kEpoch - protocol::kStampSteps - 1,
                                                          kEpoch - protocol::kStampSteps - 1};
    MOE_EP_CUDA_CHECK(
        cudaMemcpy(workspace.header()->lamport_stamped, old, sizeof old, cudaMemcpyHostToDevice));
  }
  for (int index = 0; index < 4; ++index) {
    StepShape shape =
        random_lamport_shape(random, (*rig)[0].workspace.layout, kDispatchRow, kCombineRow);
    shape.active = RankMask::first(num_ranks());
    Step step(*rig, shape, random);
    step.run();
    rig->synchronize();
    ASSERT_NO_THROW(step.check());
    // The step has stamped the bank that it did not use.
    const protocol::Epoch epoch = kEpoch + 1 + static_cast<protocol::Epoch>(index);
    const auto bank = static_cast<int>((epoch + 1) % protocol::kLamportBanks);
    for (int rank = 0; rank < rig->size(); ++rank) {
      const protocol::Workspace& workspace = (*rig)[rank].workspace;
      const std::byte* tags = workspace.own() + workspace.layout.lamport.tag_row(bank, 0, 0);
      const std::byte* last = workspace.own() + workspace.layout.lamport.tags +
                              (bank + 1) * num_ranks() * workspace.layout.lamport.max_tokens *
                                  workspace.layout.lamport.tag_stride -
                              8;
      if (index < protocol::kLamportBanks) {
        EXPECT_EQ(word(rank, tags) >> 32, epoch);
        EXPECT_EQ(word(rank, last) >> 32, epoch);
        const protocol::PeerLine* line = workspace.line(rank, 0);
        EXPECT_EQ(static_cast<std::uint32_t>(word(rank, line)), epoch);
        // Not as if the peer were past the step: the next fence dispatch waits for that.
        EXPECT_NE(static_cast<std::uint32_t>(word(rank, &line->done_flag)), epoch);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Places, DispatchCombineGpuTest, ::testing::ValuesIn(places()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace moe_ep::testing
