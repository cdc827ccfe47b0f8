// A memory model weaker than any CPU's that runs the tests: every thread has a store buffer, and
// loads may be stale.
//
// Stores     wait in the thread's buffer and become visible one by one in any order, but for one
//            address in program order; a release only after all earlier ones of its thread. Some
//            are held back for long.
// Loads      see the thread's own buffer first. Otherwise they give any version of the word that is
//            not older than what this thread has seen of it, and not older than the last release
//            this thread acquired.
// Words      are 4 or 8 bytes; an access of 8 bytes is one word. A word is always accessed alike.
//
// What code writes without this model is visible to everybody at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <unordered_map>
#include <vector>

#include "simulation/scheduler.hpp"

namespace moe_ep::testing::simulation {

class Model {
 public:
  Model(Scheduler& scheduler, int num_threads)
      : scheduler_(scheduler), threads_(static_cast<std::size_t>(num_threads)) {
    scheduler_.on_drain([this] { drain_one(); });
  }

  enum class Kind : std::uint8_t { kStore, kAdd };

  void store(int thread, void* address, int size, std::uint64_t value, bool release,
             Kind kind = Kind::kStore) {
    constexpr std::uint64_t kLongHold = 1500;
    const std::uint64_t hold = scheduler_.draw(12) == 0 ? scheduler_.draw(kLongHold) : 0;
    threads_[std::size_t(thread)].buffer.push_back(
        {static_cast<std::byte*>(address), size, value, release, kind, scheduler_.now() + hold});
    scheduler_.maybe_yield();
  }

  std::uint64_t load(int thread, const void* address, int size, bool acquire) {
    scheduler_.maybe_yield();
    Thread& self = threads_[std::size_t(thread)];
    const auto* at = static_cast<const std::byte*>(address);
    for (auto pending = self.buffer.rbegin(); pending != self.buffer.rend(); ++pending) {
      if (pending->address == at && pending->kind == Kind::kStore) return pending->value;
    }
    std::vector<Version>& versions = versions_of(at, size);
    std::uint64_t& seen = self.seen[at];
    const std::uint64_t oldest = seen > self.floor ? seen : self.floor;
    std::size_t first = versions.size() - 1;
    while (first > 0 && versions[first].time > oldest)
      --first;
    const std::size_t choices = versions.size() - first;
    const bool newest = choices == 1 || scheduler_.draw(3) != 0;
    const Version& version = newest ? versions.back() : versions[first + scheduler_.draw(choices)];
    seen = version.time;
    if (acquire && version.release && version.time > self.floor) self.floor = version.time;
    return version.value;
  }

  // Waits until everything this thread has stored is visible, as the end of its life does.
  void finish(int thread) {
    while (!threads_[std::size_t(thread)].buffer.empty())
      scheduler_.yield();
  }

 private:
  struct Pending {
    std::byte* address;
    int size;
    std::uint64_t value;
    bool release;
    Kind kind;
    std::uint64_t not_before;
  };
  struct Version {
    std::uint64_t time;  // when it became visible
    std::uint64_t value;
    bool release;
  };
  struct Thread {
    std::deque<Pending> buffer;
    std::unordered_map<const std::byte*, std::uint64_t> seen;
    std::uint64_t floor = 0;
  };

  static std::uint64_t read(const std::byte* address, int size) {
    std::uint64_t value = 0;
    std::memcpy(&value, address, static_cast<std::size_t>(size));
    return value;
  }

  // Versions of a word, oldest first; the last is what lies in memory.
  std::vector<Version>& versions_of(const std::byte* address, int size) {
    std::vector<Version>& versions = versions_[address];
    const std::uint64_t value = read(address, size);
    if (versions.empty() || versions.back().value != value) {
      versions.assign(1, {++time_, value, false});  // written outside the model
    }
    return versions;
  }

  void drain_one() {
    Thread& thread = threads_[scheduler_.draw(threads_.size())];
    const std::size_t count = thread.buffer.size();
    if (count == 0) return;
    const std::size_t first = scheduler_.draw(count);
    for (std::size_t offset = 0; offset < count; ++offset) {
      const std::size_t index = (first + offset) % count;
      if (!may_drain(thread, index)) continue;
      const Pending pending = thread.buffer[index];
      thread.buffer.erase(thread.buffer.begin() + static_cast<std::ptrdiff_t>(index));
      thread.seen[pending.address] = make_visible(pending);  // whoever stored it does not go back
      return;
    }
  }

  bool may_drain(const Thread& thread, std::size_t index) const {
    const Pending& pending = thread.buffer[index];
    if (pending.release && index > 0) return false;
    if (pending.not_before > scheduler_.now()) return false;
    for (std::size_t earlier = 0; earlier < index; ++earlier) {
      if (thread.buffer[earlier].address == pending.address) return false;
    }
    return true;
  }

  // Returns when: its version.
  std::uint64_t make_visible(const Pending& pending) {
    constexpr std::size_t kMaxVersions = 6;
    std::vector<Version>& versions = versions_of(pending.address, pending.size);
    const std::uint64_t value =
        pending.kind == Kind::kAdd ? versions.back().value + pending.value : pending.value;
    std::memcpy(pending.address, &value, static_cast<std::size_t>(pending.size));
    // An add continues the release sequence of what it adds to.
    const bool release = pending.release || (pending.kind == Kind::kAdd && versions.back().release);
    versions.push_back({++time_, value, release});
    if (versions.size() > kMaxVersions) versions.erase(versions.begin());
    return time_;
  }

  Scheduler& scheduler_;
  std::vector<Thread> threads_;
  std::unordered_map<const std::byte*, std::vector<Version>> versions_;
  std::uint64_t time_ = 0;
};

}  // namespace moe_ep::testing::simulation
