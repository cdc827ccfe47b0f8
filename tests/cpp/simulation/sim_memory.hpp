// The protocol's Memory concepts over the model, and the faults that tests plant in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "protocol/concepts.hpp"
#include "protocol/transport/lamport.hpp"
#include "simulation/model.hpp"

namespace moe_ep::testing::simulation {

enum class Plant : std::uint8_t {
  kNone,
  kRelaxedFlags,     // fence flags do not release the rows before them
  kRelaxedTags,      // tags do not release what was re-armed before them; devices' are like that
  kRelaxedCounters,  // bytes are counted before they are there
  kEarlyRearm,       // a group of words is armed when its first word has come
  kTornVector,       // a group of words is taken when its last word has come
};

template <Plant P>
class SimMemory {
 public:
  SimMemory(Scheduler& scheduler, Model& model, int thread)
      : scheduler_(scheduler), model_(model), thread_(thread) {}

  // Rows are words that anything may happen to until a release.
  void copy_row(std::byte* to, const std::byte* from, std::int64_t bytes) {
    for (std::int64_t at = 0; at < bytes; at += 4)
      model_.store(thread_, to + at, 4, protocol::load_bytes(from + at, 4), false);
  }
  std::uint32_t load_row_word(const std::byte* from) {
    return static_cast<std::uint32_t>(model_.load(thread_, from, 4, false));
  }

  void store_release(std::uint32_t* word, std::uint32_t value) {
    model_.store(thread_, word, 4, value, P != Plant::kRelaxedFlags);
  }
  std::uint32_t load_acquire(const std::uint32_t* word) {
    return static_cast<std::uint32_t>(model_.load(thread_, word, 4, true));
  }
  void store_relaxed(std::uint32_t* word, std::uint32_t value) {
    model_.store(thread_, word, 4, value, false);
  }
  std::uint32_t load_relaxed(const std::uint32_t* word) {
    return static_cast<std::uint32_t>(model_.load(thread_, word, 4, false));
  }
  void store_tag(std::uint64_t* tag, std::uint64_t value) {
    model_.store(thread_, tag, 8, value, P != Plant::kRelaxedTags);
  }
  std::uint64_t load_tag(const std::uint64_t* tag) { return model_.load(thread_, tag, 8, true); }
  void add_release(std::uint64_t* counter, std::uint64_t bytes) {
    model_.store(thread_, counter, 8, bytes, P != Plant::kRelaxedCounters, Model::Kind::kAdd);
  }
  std::uint64_t load_acquire(const std::uint64_t* counter) {
    return model_.load(thread_, counter, 8, true);
  }

  std::int64_t take_words(std::byte* to, std::uint32_t* landing, std::int64_t count,
                          std::uint32_t sentinel)
    requires(P == Plant::kEarlyRearm || P == Plant::kTornVector)
  {
    constexpr std::int64_t kGroup = 4;
    if (count == 0) return 0;
    const std::int64_t group = count < kGroup ? count : kGroup;
    std::uint32_t words[kGroup];
    for (std::int64_t word = 0; word < group; ++word)
      words[word] = load_relaxed(landing + word);
    const bool torn = P == Plant::kTornVector;
    if (words[torn ? group - 1 : 0] == sentinel) return 0;
    for (std::int64_t word = 0; word < group; ++word)
      store_relaxed(landing + word, sentinel);
    std::int64_t taken = 0;
    while (taken < group && (torn || words[taken] != sentinel)) {
      std::memcpy(to + 4 * taken, &words[taken], 4);
      ++taken;
    }
    return taken;
  }

  std::uint64_t now_ns() { return scheduler_.now(); }
  void pause(std::uint32_t) { scheduler_.yield(); }
  // Now and then lets the others run for long.
  void linger() {
    constexpr std::uint64_t kLongest = 3000;
    if (scheduler_.draw(6) != 0) return;
    const std::uint64_t until = scheduler_.now() + scheduler_.draw(kLongest);
    while (scheduler_.now() < until)
      scheduler_.yield();
  }

 private:
  Scheduler& scheduler_;
  Model& model_;
  int thread_;
};

static_assert(protocol::TagMemory<SimMemory<Plant::kNone>> &&
              protocol::CounterMemory<SimMemory<Plant::kNone>>);

}  // namespace moe_ep::testing::simulation
