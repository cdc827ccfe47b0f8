// Host threads: what they enqueue, and how they wait (the head of machine.hpp says by which rule).
#include <algorithm>

#include "host/float_environment.hpp"
#include "machine.hpp"

namespace moe_ep::emulator {
namespace {

constexpr int kHaste = 4;  // of virtual time while nothing happens, against real time
constexpr std::chrono::milliseconds kPatience{20};

thread_local bool drives = false;  // this thread runs the machine, so a caller is a kernel

}  // namespace

void Machine::attach(Stream* stream) {
  const Lock lock(mutex_);
  streams_.push_back(stream);
}

void Machine::detach(Stream* stream) {
  drain(*stream);
  const Lock lock(mutex_);
  streams_.erase(std::find(streams_.begin(), streams_.end(), stream));
}

void Machine::enqueue(Stream& stream, Work work) {
  if (stream.capture != nullptr) {
    stream.capture->works.push_back(std::move(work));
    return;
  }
  const Lock lock(mutex_);
  auto operation = std::make_unique<Operation>();
  operation->work = std::move(work);
  operation->number = ++num_operations_;
  operation->slow = draw(4) == 0;
  stream.queue.push_back(std::move(operation));
  changed_ = true;
  ++num_news_;
  news_.notify_all();
}

std::uint64_t Machine::host_now() {
  const Lock lock(mutex_);
  return now_;
}

void Machine::drain(Stream& stream) {
  if (drives) fault("a kernel synchronises");
  Lock lock(mutex_);
  run_until(lock, [&] { return stream.queue.empty(); });
}

// What others enqueue later is not waited for: it may need the caller's next step.
void Machine::drain_device(int index) {
  if (drives) fault("a kernel synchronises");
  Lock lock(mutex_);
  const Device* const wanted = &device(index);
  const std::uint64_t last = num_operations_;
  run_until(lock, [&] {
    return std::all_of(streams_.begin(), streams_.end(), [&](const Stream* stream) {
      return stream->device != wanted || stream->queue.empty() ||
             stream->queue.front()->number > last;
    });
  });
}

void Machine::run_until(Lock& lock, const std::function<bool()>& done) {
  if (!config_.host_threads) last_act_ = now_;
  const host::DefaultFloatEnvironment environment;  // a GPU does not know the caller's
  while (!done()) {
    if (config_.host_threads && is_quiet() && wait_for_news(lock, done)) continue;
    drives = true;
    step();
    drives = false;
  }
  news_.notify_all();  // others' work may be done as well
}

// Whether everybody who is on a device has polled in vain since something happened.
bool Machine::is_quiet() const {
  return busy_.empty() && !changed_ && idle_turns_ > 64 + 4 * (polling_.size() + sleeping_.size());
}

// False if virtual time may go on without news.
bool Machine::wait_for_news(Lock& lock, const std::function<bool()>& done) {
  const auto now = std::chrono::steady_clock::now();
  if (quiet_act_ != last_act_) {
    quiet_act_ = last_act_;
    quiet_since_ = now;
  }
  const std::chrono::nanoseconds allowed = kHaste * (now - quiet_since_);
  if (now_ - last_act_ < static_cast<std::uint64_t>(allowed.count())) return false;
  news_.notify_all();
  const std::uint64_t seen = num_news_;
  news_.wait_for(lock, kPatience, [&] { return num_news_ != seen || done(); });
  return true;
}

}  // namespace moe_ep::emulator
