// The emulated machine itself: what its threads, blocks, streams and clock promise, and that it
// notices programs that a GPU would not run.
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

#include "cuda/device/memory.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/kernels/launch.hpp"
#include "gpu_clock.hpp"
#include "machine.hpp"

namespace moe_ep::emulator {
namespace {

using cuda::Pdl;

class EmulatorTest : public ::testing::Test {
 protected:
  void SetUp() override { use({.num_devices = 1, .num_sms = 2, .seed = 1}); }
  void TearDown() override {
    end_streams();
    emulator::configure(before_);
  }
  void use(const Config& config) {
    end_streams();
    cudaSetDevice(0);  // another test may have left one that is gone
    emulator::configure(config);
    for (cudaStream_t& stream : streams_)
      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  }
  template <class Args>
  void run(void (*kernel)(Args), int blocks, int threads, const Args& args, int stream = 0,
           Pdl pdl = Pdl::kOff) {
    ASSERT_EQ(cuda::enqueue(kernel, blocks, threads, 0, pdl, streams_[stream], args), cudaSuccess);
  }
  void synchronize() { cudaDeviceSynchronize(); }

  cudaStream_t streams_[2] = {};

 private:
  void end_streams() {
    for (cudaStream_t& stream : streams_) {
      if (stream != nullptr) cudaStreamDestroy(stream);
      stream = nullptr;
    }
  }
  const Config before_ = Machine::get().config();
};
using EmulatorDeathTest = EmulatorTest;

struct Words {
  std::uint32_t* words;
};

struct Tile {
  std::uint32_t values[256];
};

void reverse_block(Words args) {
  Tile& tile = cuda::shared_object<Tile>();
  const unsigned at = threadIdx.x;
  tile.values[at] = blockIdx.x * 1000 + at;
  __syncthreads();
  args.words[blockIdx.x * blockDim.x + at] = tile.values[blockDim.x - 1 - at];
}

TEST_F(EmulatorTest, ABarrierSeparatesWritesFromReadsOfEachBlock) {
  std::vector<std::uint32_t> words(3 * 256);
  run(reverse_block, 3, 256, Words{words.data()});
  synchronize();
  for (unsigned i = 0; i < words.size(); ++i) {
    ASSERT_EQ(words[i], i / 256 * 1000 + 255 - i % 256);
  }
}

void read_too_early(Words args) {
  Tile& tile = cuda::shared_object<Tile>();
  const unsigned at = threadIdx.x;
  tile.values[at] = 0;
  args.words[at] = tile.values[blockDim.x - 1 - at];
}

TEST_F(EmulatorTest, WithoutABarrierOthersAreBehind) {
  std::vector<std::uint32_t> words(256);
  run(read_too_early, 1, 256, Words{words.data()});
  synchronize();
  EXPECT_GT(std::accumulate(words.begin(), words.end(), std::uint64_t{0}), 0u);
}

void vote_among_those_left(Words args) {
  if (threadIdx.x >= 64) return;
  args.words[threadIdx.x] = static_cast<std::uint32_t>(__syncthreads_or(threadIdx.x == 5));
  args.words[threadIdx.x] += 2 * static_cast<std::uint32_t>(__syncthreads_or(0));
}

TEST_F(EmulatorTest, WarpsThatHaveExitedAreNotAwaited) {
  std::vector<std::uint32_t> words(128, 7);
  run(vote_among_those_left, 1, 128, Words{words.data()});
  synchronize();
  for (unsigned i = 0; i < 128; ++i)
    EXPECT_EQ(words[i], i < 64 ? 1u : 7u);
}

void use_collectives(Words args) {
  const auto lane = threadIdx.x % 32;
  std::uint64_t sum = lane;
  for (int distance = 1; distance < 32; distance *= 2)
    sum += __shfl_xor_sync(~0u, sum, distance);
  std::uint32_t* out = args.words + 8 * lane;
  out[0] = static_cast<std::uint32_t>(sum);
  out[1] = __shfl_sync(~0u, lane + 100, 3);
  out[2] = __shfl_down_sync(~0u, lane, 4);
  out[3] = __ballot_sync(~0u, lane % 2);
  out[4] = __reduce_or_sync(~0u, 1u << lane);
  out[5] = static_cast<std::uint32_t>(__any_sync(~0u, lane == 31));
  out[6] = static_cast<std::uint32_t>(__all_sync(~0u, lane == 31));
  out[7] = __shfl_up_sync(~0u, lane, 4);
}

TEST_F(EmulatorTest, CollectivesGiveWhatTheyGiveOnADevice) {
  std::vector<std::uint32_t> words(8 * 32);
  run(use_collectives, 1, 32, Words{words.data()});
  synchronize();
  for (unsigned lane = 0; lane < 32; ++lane) {
    const std::vector<std::uint32_t> got(words.begin() + 8 * lane, words.begin() + 8 * lane + 8);
    const std::vector<std::uint32_t> want{496, 103, lane < 28 ? lane + 4 : lane, 0xaaaaaaaau, ~0u,
                                          1,   0,   lane < 4 ? lane : lane - 4};
    EXPECT_EQ(got, want) << "lane " << lane;
  }
}

void diverge(Words args) {
  if (threadIdx.x < 16) {
    args.words[0] = __ballot_sync(~0u, 1);
  } else {
    args.words[1] = __shfl_sync(~0u, 1u, 0);
  }
}
void leave_some_lanes(Words args) {
  if (threadIdx.x < 16) return;
  args.words[0] = __ballot_sync(~0u, 1);
}
void leave_before_barrier(Words) {
  if (threadIdx.x == 40) return;
  __syncthreads();
}
void mix_barriers(Words) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads_or(0);
  }
}
void wait_at_a_half_barrier(Words) {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}
void load_misaligned(Words args) {
  cuda::load_vector<16>(reinterpret_cast<const std::byte*>(args.words + 1));
}

TEST_F(EmulatorDeathTest, ProgramsThatADeviceDoesNotRunAreNamed) {
  alignas(16) std::uint32_t words[8] = {};
  const auto run_alone = [&](void (*kernel)(Words)) {
    run(kernel, 1, 64, Words{words});
    synchronize();
  };
  EXPECT_DEATH(run_alone(diverge), "different collectives: operation 1 block 0 warp 0");
  EXPECT_DEATH(run_alone(leave_some_lanes), "different places.*0000ffff exited");
  EXPECT_DEATH(run_alone(leave_before_barrier), "exited before __syncthreads.*warp 1");
  EXPECT_DEATH(run_alone(mix_barriers), "different barriers");
  EXPECT_DEATH(run_alone(wait_at_a_half_barrier), "different places");
  EXPECT_DEATH(run_alone(load_misaligned), "misaligned access .*thread");
}

// Waits for `other`, then raises `own`; or the other way round.
struct Flags {
  std::uint32_t* own;
  const std::uint32_t* other;
  bool first;
};
void exchange(Flags args) {
  if (args.first) cuda::store_release(args.own, 1);
  while (cuda::load_acquire(args.other) == 0) {
  }
  if (!args.first) cuda::store_release(args.own, 1);
}

TEST_F(EmulatorTest, KernelsOfTwoStreamsRunAtTheSameTime) {
  std::uint32_t a = 0, b = 0;
  run(exchange, 1, 1, Flags{&a, &b, true}, 0);
  run(exchange, 1, 1, Flags{&b, &a, false}, 1);
  synchronize();
  EXPECT_EQ(a + b, 2u);
}

TEST_F(EmulatorDeathTest, KernelsOfOneStreamDoNot) {
  std::uint32_t a = 0, b = 0;
  const auto run_both = [&] {
    run(exchange, 1, 1, Flags{&a, &b, true}, 0);
    run(exchange, 1, 1, Flags{&b, &a, false}, 0);
    synchronize();
  };
  EXPECT_DEATH(run_both(), "nothing happens but polls");
}

struct Crowd {
  std::uint32_t* arrived;
  unsigned blocks;
};
void await_all_blocks(Crowd args) {
  if (threadIdx.x == 0) {
    cuda::count_up(args.arrived);
    while (cuda::load_acquire(args.arrived) < args.blocks)
      __nanosleep(100);
  }
  __syncthreads();
}

TEST_F(EmulatorTest, AsManyBlocksRunAsFit) {
  std::uint32_t arrived = 0;
  run(await_all_blocks, 4, 512, Crowd{&arrived, 4});
  synchronize();
  EXPECT_EQ(arrived, 4u);
}

TEST_F(EmulatorDeathTest, ABlockThatFindsNoRoomIsNamed) {
  std::uint32_t arrived = 0;
  const auto run_five = [&] {
    run(await_all_blocks, 5, 512, Crowd{&arrived, 5});
    synchronize();
  };
  EXPECT_DEATH(run_five(), "operation 1: block 4 of 5 has no room on device 0");
}

struct Order {
  std::uint32_t* next;   // numbers events
  std::uint32_t* start;  // of the successor
  std::uint32_t* after_wait;
  std::uint32_t* end;  // of the predecessor
};
void produce(Order args) {
  cuda::launch_dependents();
  for (int i = 0; i < 200; ++i)
    yield();
  *args.end = cuda::count_up(args.next);
}
void consume(Order args) {
  *args.start = cuda::count_up(args.next);
  cuda::wait_for_producers();
  *args.after_wait = cuda::count_up(args.next);
}

TEST_F(EmulatorTest, ADependentMayStartEarlyAndWaitsForTheEnd) {
  for (const Pdl pdl : {Pdl::kOff, Pdl::kEarly}) {
    std::uint32_t next = 0, start = 9, after_wait = 9, end = 9;
    const Order order{&next, &start, &after_wait, &end};
    run(produce, 1, 1, order);
    run(consume, 1, 1, order, 0, pdl);
    synchronize();
    EXPECT_EQ(start < end, pdl == Pdl::kEarly);
    EXPECT_LT(end, after_wait);
  }
}

void add_one(Words args) {
  args.words[threadIdx.x] += 1;
}

TEST_F(EmulatorTest, AStreamKeepsItsOrderAndAGraphRepeatsIt) {
  std::uint32_t words[2][4], copy[4] = {};
  cudaGraph_t graph = nullptr;
  cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal);
  cudaMemsetAsync(words[0], 0, sizeof words[0], streams_[0]);
  for (int i = 0; i < 3; ++i)
    run(add_one, 1, 4, Words{words[0]});
  cudaMemcpyAsync(copy, words[0], sizeof copy, cudaMemcpyDefault, streams_[0]);
  run(add_one, 1, 4, Words{words[0]});
  cudaStreamEndCapture(streams_[0], &graph);
  for (int round = 0; round < 2; ++round) {
    cudaGraphLaunch(graph, streams_[0]);
    synchronize();
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(copy[i], 3u);
      EXPECT_EQ(words[0][i], 4u);
    }
  }
  cudaGraphDestroy(graph);
}

enum class Poll { kLane, kSleep, kWarp, kBlock };
struct Patience {
  std::uint64_t ns;
  Poll poll;
};
void wait_in_vain(Patience args) {
  const std::uint64_t deadline = cuda::clock_ns() + args.ns;
  const std::uint32_t never = 0;
  for (bool late = false; !late;) {
    late = cuda::load_acquire(&never) != 0 || cuda::clock_ns() >= deadline;
    if (args.poll == Poll::kSleep) __nanosleep(100);
    if (args.poll == Poll::kWarp) late = __all_sync(~0u, late);
    if (args.poll == Poll::kBlock) late = __syncthreads_or(late);
  }
}

TEST_F(EmulatorTest, TimePassesQuicklyWhereNothingHappens) {
  for (const Poll poll : {Poll::kLane, Poll::kSleep, Poll::kWarp, Poll::kBlock}) {
    const auto start = testing::GpuClock::now();
    const auto real_start = std::chrono::steady_clock::now();
    run(wait_in_vain, 2, 256, Patience{20'000'000'000, poll});
    synchronize();
    const auto took = testing::GpuClock::now() - start;
    EXPECT_GE(took, std::chrono::seconds(20));
    EXPECT_LT(took, std::chrono::seconds(25));
    EXPECT_LT(std::chrono::steady_clock::now() - real_start, std::chrono::seconds(20));
  }
}

struct Log {
  std::uint32_t* length;
  std::uint32_t* blocks;
};
void log_block(Log args) {
  for (int i = 0; i < 4; ++i)
    args.blocks[cuda::count_up(args.length)] = blockIdx.x;
}

TEST_F(EmulatorTest, ASeedDecidesTheOrder) {
  const auto run_with = [&](std::uint64_t seed) {
    use({.num_devices = 1, .num_sms = 2, .seed = seed});
    std::uint32_t length = 0;
    std::vector<std::uint32_t> blocks(4 * 16);
    run(log_block, 16, 1, Log{&length, blocks.data()});
    synchronize();
    return blocks;
  };
  std::set<std::vector<std::uint32_t>> orders;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    EXPECT_EQ(run_with(seed), run_with(seed));
    orders.insert(run_with(seed));
  }
  EXPECT_EQ(orders.size(), 8u);
}

}  // namespace
}  // namespace moe_ep::emulator
