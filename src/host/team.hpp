// Team: the worker threads of one rank, and the two Coops of the host.
//
// Workers start at the first job that wants them and sleep between jobs. The caller is thread 0 of
// every job. A forked child has no workers and starts its own.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "host/host_memory.hpp"

namespace moe_ep::host {

// One thread on its own.
struct SoloCoop {
  int thread_rank() const { return 0; }
  int size() const { return 1; }
  void sync() const {}
};

// A barrier for the threads of one job: the last to arrive lets the others go.
class SpinBarrier {
 public:
  explicit SpinBarrier(int size) : size_(size) {}

  void arrive_and_wait() {
    const std::uint32_t round = round_.load(std::memory_order_relaxed);
    // acq_rel: the last arrival acquires what every earlier one released ...
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);  // pairs with the load below
      return;
    }
    // ... and everybody acquires it from the round.
    for (std::uint32_t polls = 1; round_.load(std::memory_order_acquire) == round; ++polls) {
      spin_pause(polls);
    }
  }

 private:
  const int size_;
  std::atomic<int> arrived_{0};
  std::atomic<std::uint32_t> round_{0};
};

// A thread's place in a job of several.
class TeamCoop {
 public:
  TeamCoop(int thread_rank, int size, SpinBarrier& barrier)
      : thread_rank_(thread_rank), size_(size), barrier_(barrier) {}
  int thread_rank() const { return thread_rank_; }
  int size() const { return size_; }
  void sync() const { barrier_.arrive_and_wait(); }

 private:
  int thread_rank_;
  int size_;
  SpinBarrier& barrier_;
};

class Team {
 public:
  // @param num_threads of a job, the caller included; at least 1
  explicit Team(int num_threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int num_threads() const { return num_threads_; }

  // Runs `job(thread)` once for every thread in [0, num_threads) and returns when all are done. The
  // job must not throw.
  // @throws std::system_error when a worker cannot be started; nothing has run then
  void run(const std::function<void(int)>& job);

 private:
  class Crew;  // the workers and what they wait on

  void forget_foreign_crew();

  const int num_threads_;
  std::unique_ptr<Crew> crew_;
  pid_t owner_ = 0;  // process whose threads the crew is
};

}  // namespace moe_ep::host
