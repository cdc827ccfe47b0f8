// The emulated machine: GPUs whose threads are fibers, all on one operating system thread.
//
// Whoever synchronises runs it. A turn of the scheduler belongs to one warp, drawn at random from
// those that can go on; the warp's lanes run one after another until each has to wait, or polls a
// word that another rank may write. So the order of warps, blocks, kernels and copies differs from
// turn to turn, and one seed gives one run. Some kernels, drawn at random too, are slow: they fall
// behind those of other ranks by more than chance would let them.
//
// **Time** is virtual: a turn takes kTurnNs, and the longer nothing has happened but polls, the
// faster it passes, so that a timeout of seconds is over soon.
//
// **Host threads.** One mutex guards the machine; whoever synchronises holds it while the machine
// runs on his thread. With Config::host_threads another thread may still enqueue what kernels wait
// for. So when nothing but polls can run, the synchronising thread gives the mutex away and sleeps
// until somebody enqueues; meanwhile virtual time may pass kHaste times as fast as real time, no
// faster. A timeout of a second is over after 250 ms without news, one of a minute after 15 s.
// Without it runs are deterministic.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fiber.hpp"
#include "machine_calls.hpp"

namespace moe_ep::emulator {

struct Config {
  int num_devices = 1;
  int num_sms = 8;  // of a device
  std::uint64_t seed = 1;
  bool host_threads = false;  // see above
};
// Starts the machine anew; no stream may exist. The first use of the machine takes num_devices,
// num_sms and seed from MOE_EP_EMULATOR_DEVICES, _SMS and _SEED.
void configure(const Config& config);

// Whether the calling host thread has chosen a device.
bool has_current_context();

// Threads that a multiprocessor holds: what 64 registers each leave room for.
inline constexpr unsigned kThreadsPerSm = 1024;
inline constexpr unsigned kLanes = 32;

struct Block;
struct Warp;

struct Lane {
  Fiber fiber;
  Warp* warp = nullptr;
  unsigned index = 0;
};

// Sets of lanes are bits.
struct Warp {
  Block* block = nullptr;
  unsigned index = 0;  // in the block
  std::uint32_t present = 0;
  std::uint32_t runnable = 0;
  std::uint32_t yielded = 0;  // runnable, but not in this turn
  std::uint32_t exited = 0;
  std::uint32_t at_barrier = 0;
  std::uint32_t at_meeting = 0;
  Meeting meeting{};
  unsigned round = 0;                                 // of meetings
  std::array<std::uint64_t, kLanes> brought[2] = {};  // of this round and the one before
  bool acted = false;                                 // in this turn
  bool awake = false;                                 // a lane polls without sleeping
  std::uint64_t wake_ns = 0;
  std::array<Lane, kLanes> lanes;
};

// What a stream does: a kernel, or something with memory that is over at once.
struct Work {
  std::function<void()> run;  // by every thread, or once
  unsigned blocks = 0;        // 0: no kernel
  unsigned threads = 0;
  std::size_t shared_bytes = 0;
  bool early = false;  // may start before its predecessor has ended
};

struct Operation {
  Work work;
  std::uint64_t number = 0;  // of the machine's operations
  bool slow = false;         // its warps get few turns while others can run
  bool started = false;
  bool ended = false;
  unsigned next_block = 0;
  unsigned blocks_ended = 0;
  unsigned blocks_let_go = 0;  // ended, or told dependents to launch
};

struct Device;
struct Graph {
  std::vector<Work> works;
};
struct Stream {
  Device* device = nullptr;
  Graph* capture = nullptr;
  std::deque<std::unique_ptr<Operation>> queue;
};

struct Block {
  Operation* kernel = nullptr;
  Stream* stream = nullptr;
  unsigned index = 0;
  std::size_t sm = 0;
  std::vector<Warp*> warps;
  unsigned live = 0;  // threads that have not exited
  unsigned arrived = 0;
  Barrier barrier{};
  unsigned round = 0;  // of barriers
  bool any = false;
  bool result[2] = {};
  bool let_go = false;
  std::map<const void*, std::unique_ptr<std::byte[]>> shared;
};

struct Device {
  std::vector<unsigned> free_threads;  // of each multiprocessor
  // Kernels with blocks that have not started. One that has begun goes first: hardware places all
  // blocks of a kernel before those of the next.
  struct Waiting {
    Operation* kernel;
    Stream* stream;
  };
  std::deque<Waiting> waiting;
  Stream default_stream;
};

class Machine {
 public:
  static Machine& get();

  void configure(const Config& config);
  const Config& config() const { return config_; }
  Device& device(int index) { return devices_[static_cast<std::size_t>(index)]; }

  // Of host threads.
  void attach(Stream* stream);
  void detach(Stream* stream);
  void enqueue(Stream& stream, Work work);
  // Runs the machine until `stream` is empty.
  void drain(Stream& stream);
  // Runs it until all has ended that was enqueued on the device before.
  void drain_device(int index);
  std::uint64_t host_now();

  std::uint64_t now() const { return now_; }
  std::uint64_t draw(std::uint64_t below);
  Lane* running() const { return running_; }

  // Of the running lane.
  void leave(bool ends = false);  // the next lane of the warp, or the scheduler
  void sleep(std::uint64_t ns);
  void act();
  void exit_lane();
  void let_dependents_go(Block& block);
  bool is_first(const Block& block) const;
  void make_runnable(Warp& warp, std::uint32_t lanes);

 private:
  // streams.cpp, block.cpp
  void advance();
  bool may_start(const Stream& stream, std::size_t index) const;
  void start(Stream& stream, Operation& operation);
  bool place_block(Device& device);
  void start_block(Device::Waiting& waiting, std::size_t sm);
  void end_block(Block& block);

  // hosts.cpp
  using Lock = std::unique_lock<std::mutex>;
  void run_until(Lock& lock, const std::function<bool()>& done);
  bool is_quiet() const;
  bool wait_for_news(Lock& lock, const std::function<bool()>& done);

  // scheduler.cpp
  void step();
  Warp* pick();
  void take_turn(Warp& warp);
  void file(Warp& warp);
  void resume(Lane& lane, Fiber& from, bool ends);
  [[noreturn]] void report_deadlock(const char* why);

  Config config_;
  std::uint64_t random_ = 0;
  std::uint64_t now_ = 0;
  std::uint64_t last_act_ = 0;
  std::uint64_t num_operations_ = 0;
  std::uint64_t idle_turns_ = 0;  // since the last act
  bool changed_ = false;          // an operation may be able to start or to end

  std::vector<Device> devices_;
  std::vector<Stream*> streams_;
  std::vector<std::unique_ptr<Block>> blocks_;  // that run
  std::vector<Warp*> busy_, polling_;
  std::multimap<std::uint64_t, Warp*> sleeping_;
  std::vector<std::unique_ptr<Warp>> warps_;  // all that there are
  std::vector<Warp*> free_warps_;

  Lane* running_ = nullptr;
  Fiber scheduler_;

  std::mutex mutex_;
  std::condition_variable news_;
  std::uint64_t num_news_ = 0;  // operations that came while somebody may have waited
  std::uint64_t quiet_act_ = 0;
  std::chrono::steady_clock::time_point quiet_since_;  // of the quiet after quiet_act_
};

// Who a warp is and what its lanes do, for messages.
std::string describe(const Warp& warp);

}  // namespace moe_ep::emulator
