#include "host/team.hpp"

#include <unistd.h>

namespace moe_ep::host {

Team::~Team() {
  if (workers_.empty() || owner_ != ::getpid()) {
    // Threads of a parent process do not exist here; there is nothing to join.
    for (std::thread& worker : workers_) worker.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Team::start_workers() {
  if (owner_ == ::getpid()) return;
  for (std::thread& worker : workers_) worker.detach();
  workers_.clear();
  owner_ = ::getpid();
  workers_.reserve(static_cast<std::size_t>(num_threads_ - 1));
  for (int thread = 1; thread < num_threads_; ++thread) {
    workers_.emplace_back([this, thread] { work(thread); });
  }
}

void Team::run(const std::function<void(int)>& job) {
  start_workers();
  {
    const std::lock_guard lock(mutex_);
    job_ = &job;
    running_ = num_threads_ - 1;
    ++generation_;
  }
  wake_.notify_all();
  job(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return running_ == 0; });
  job_ = nullptr;
}

void Team::work(int thread) {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stopping_ || generation_ != seen; });
    if (stopping_) return;
    seen = generation_;
    const auto* job = job_;
    lock.unlock();
    (*job)(thread);
    lock.lock();
    if (--running_ == 0) done_.notify_one();
  }
}

}  // namespace moe_ep::host
