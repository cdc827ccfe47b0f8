// A memory model weaker than any CPU's that runs the tests: every thread has a store buffer, and
// loads may be stale.
//
// Stores     wait in the thread's buffer and become visible one by one in any order, but for one
//            address in program order; a release only after all earlier ones of its thread. Some
//            are held back for long. Of two threads' stores to one address that no release
//            orders either may win, whichever is visible first.
// Loads      see the thread's own buffer first. Otherwise they give any version of the word that is
//            not older than what this thread has seen of it, and not older than the last release
//            this thread acquired.
// Words      are 4 or 8 bytes; an access of 8 bytes is one word. A word is always accessed alike.
//
// What code writes without this model is visible to everybody at once.
#pragma once

#include <algorithm>
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
    Thread& self = threads_[std::size_t(thread)];
    auto* at = static_cast<std::byte*>(address);
    self.buffer.push_back(
        {at, size, value, release, kind, scheduler_.now() + hold, self.oldest_choice(at)});
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
    const std::uint64_t oldest = self.oldest_choice(at);
    std::size_t first = versions.size() - 1;
    while (first > 0 && versions[first].time > oldest)
      --first;
    const std::size_t choices = versions.size() - first;
    const bool newest = choices == 1 || scheduler_.draw(3) != 0;
    const Version& version = newest ? versions.back() : versions[first + scheduler_.draw(choices)];
    self.seen[at] = version.time;
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
    std::uint64_t known;  // it follows what its thread knew of the word by then
  };
  struct Version {
    std::uint64_t time;  // when it became visible
    std::uint64_t value;
    bool release;
    int writer;
  };
  static constexpr int kOutside = -1;  // a writer that does not use the model

  struct Thread {
    std::deque<Pending> buffer;
    std::unordered_map<const std::byte*, std::uint64_t> seen;
    std::uint64_t floor = 0;

    // Versions older than the last one of this time are behind the thread.
    std::uint64_t oldest_choice(const std::byte* address) { return std::max(seen[address], floor); }
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
      versions.assign(1, {++time_, value, false, kOutside});
    }
    return versions;
  }

  void drain_one() {
    const std::size_t drained = scheduler_.draw(threads_.size());
    Thread& thread = threads_[drained];
    const std::size_t count = thread.buffer.size();
    if (count == 0) return;
    const std::size_t first = scheduler_.draw(count);
    for (std::size_t offset = 0; offset < count; ++offset) {
      const std::size_t index = (first + offset) % count;
      if (!may_drain(thread, index)) continue;
      const Pending pending = thread.buffer[index];
      thread.buffer.erase(thread.buffer.begin() + static_cast<std::ptrdiff_t>(index));
      // Whoever stored it does not go back.
      thread.seen[pending.address] = make_visible(pending, static_cast<int>(drained));
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
  std::uint64_t make_visible(const Pending& pending, int writer) {
    constexpr std::size_t kMaxVersions = 6;
    std::vector<Version>& versions = versions_of(pending.address, pending.size);
    const Version& last = versions.back();
    const bool ordered = pending.kind == Kind::kAdd || last.writer == kOutside ||
                         last.writer == writer || last.time <= pending.known;
    if (!ordered && scheduler_.draw(4) == 0) return last.time;  // loses to it, unseen
    const std::uint64_t value =
        pending.kind == Kind::kAdd ? versions.back().value + pending.value : pending.value;
    std::memcpy(pending.address, &value, static_cast<std::size_t>(pending.size));
    // An add continues the release sequence of what it adds to.
    const bool release = pending.release || (pending.kind == Kind::kAdd && versions.back().release);
    versions.push_back({++time_, value, release, writer});
    if (versions.size() > kMaxVersions) versions.erase(versions.begin());
    return time_;
  }

  Scheduler& scheduler_;
  std::vector<Thread> threads_;
  std::unordered_map<const std::byte*, std::vector<Version>> versions_;
  std::uint64_t time_ = 0;
};

}  // namespace moe_ep::testing::simulation
