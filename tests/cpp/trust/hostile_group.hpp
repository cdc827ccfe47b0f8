// A group of which only rank 0 is there: its peers say what rank 0 says, in their own names, with
// something wrong from the `first_bad`-th message on.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <moe_ep/comm_backend.hpp>

#include "trust/mutator.hpp"

namespace moe_ep::testing {

class HostileGroup final : public CommBackend {
 public:
  HostileGroup(int size, std::uint64_t seed, int bad_call)
      : size_(size), mutator_(seed), bad_call_(bad_call) {}

  int get_rank() const override { return 0; }
  int get_size() const override { return size_; }
  std::vector<std::string> allgather(std::string_view message) override {
    const bool bad = num_calls_++ == bad_call_;
    std::vector<std::string> all(1, std::string(message));
    for (int rank = 1; rank < size_; ++rank)
      all.push_back(as_rank(std::string(message), rank));
    if (!bad) return all;
    std::string& victim = all[1 + mutator_.below(all.size() - 1)];
    const std::string envelope = victim.substr(0, kEnvelopeBytes);
    // Mostly what is within: an envelope that is wrong is noticed at once.
    victim = mutator_.below(8) == 0 ? mutator_.mutate(victim)
                                    : envelope + mutator_.mutate(victim.substr(kEnvelopeBytes));
    return all;
  }
  std::string bcast(std::string_view message, int) override { return std::string(message); }
  void barrier() override {}
  std::shared_ptr<CommBackend> split(int, int) override { return nullptr; }

  int num_calls() const { return num_calls_; }

 private:
  static constexpr std::size_t kEnvelopeBytes = 16;  // magic, rank, size
  static constexpr std::size_t kRankOffset = 8;

  static std::string as_rank(std::string message, int rank) {
    message.replace(kRankOffset, sizeof rank, reinterpret_cast<const char*>(&rank), sizeof rank);
    const std::string own = "!rank\t0\n";
    if (const auto at = message.find(own); at != message.npos)
      message.replace(at, own.size(), "!rank\t" + std::to_string(rank) + "\n");
    return message;
  }

  const int size_;
  Mutator mutator_;
  const int bad_call_;
  int num_calls_ = 0;
};

}  // namespace moe_ep::testing
