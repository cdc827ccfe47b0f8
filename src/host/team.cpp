#include "host/team.hpp"

#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace moe_ep::host {

class Team::Crew {
 public:
  explicit Crew(int num_workers) {
    workers_.reserve(static_cast<std::size_t>(num_workers));
    try {
      for (int thread = 1; thread <= num_workers; ++thread) {
        workers_.emplace_back([this, thread] { work(thread); });
      }
    } catch (...) {
      stop();
      throw;
    }
  }
  ~Crew() { stop(); }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  void run(const std::function<void(int)>& job) {
    {
      const std::lock_guard lock(mutex_);
      job_ = &job;
      running_ = workers_.size();
      ++generation_;
    }
    wake_.notify_all();
    job(0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return running_ == 0; });
    job_ = nullptr;
  }

 private:
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_)
      worker.join();
  }

  void work(int thread) {
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

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  const std::function<void(int)>* job_ = nullptr;  // guarded by mutex_, as all below
  std::uint64_t generation_ = 0;
  std::size_t running_ = 0;
  bool stopping_ = false;
};

Team::Team(int num_threads) : num_threads_(num_threads) {}

Team::~Team() {
  forget_foreign_crew();
}

// Threads of a parent process do not exist here, and a fork may have copied their locks in any
// state: such a crew can be neither stopped nor destroyed, only left alone.
void Team::forget_foreign_crew() {
  if (crew_ != nullptr && owner_ != ::getpid()) (void)crew_.release();
}

void Team::run(const std::function<void(int)>& job) {
  forget_foreign_crew();
  if (crew_ == nullptr) {
    crew_ = std::make_unique<Crew>(num_threads_ - 1);
    owner_ = ::getpid();
  }
  crew_->run(job);
}

}  // namespace moe_ep::host
