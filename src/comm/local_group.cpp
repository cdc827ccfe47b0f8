// LocalGroup: every operation is one round of an allgather. The last rank to enter completes the
// round and wakes the others, which read it without the lock: nobody writes to a round that is
// done.
#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>

#include <moe_ep/comm_backend.hpp>

#include "comm/deadline.hpp"
#include "comm/group_failure.hpp"

namespace moe_ep {

namespace {

enum class Call { kAllgather, kBcast, kBarrier, kSplit };

// What a rank enters. All ranks of a round must make the same call, with the same root.
struct Operation {
  Call call;
  int root = 0;
  int color = 0;
  int key = 0;

  bool matches(const Operation& other) const { return call == other.call && root == other.root; }
  std::string text() const {
    switch (call) {
      case Call::kAllgather:
        return "allgather";
      case Call::kBcast:
        return "bcast(root " + std::to_string(root) + ")";
      case Call::kBarrier:
        return "barrier";
      case Call::kSplit:
        return "split";
    }
    return "unknown call";
  }
};

struct Entry {
  Operation operation;
  std::string message;
};

}  // namespace

struct LocalGroup::State : std::enable_shared_from_this<LocalGroup::State> {
  class Member final : public CommBackend {
   public:
    Member(State& state, int rank) : state_(state), rank_(rank) {}

    int get_rank() const override { return rank_; }
    int get_size() const override { return static_cast<int>(state_.members.size()); }
    std::vector<std::string> allgather(std::string_view message) override;
    std::string bcast(std::string_view message, int root) override;
    void barrier() override { state_.run(rank_, {{.call = Call::kBarrier}, {}}); }
    std::shared_ptr<CommBackend> split(int color, int key) override;

   private:
    State& state_;
    const int rank_;
  };

  struct Round {
    explicit Round(std::size_t size) : entries(size) {}
    std::vector<std::optional<Entry>> entries;
    std::size_t arrived = 0;
    bool done = false;
    std::map<int, std::shared_ptr<State>> groups;  // of a split, by color
  };

  State(int size, std::chrono::milliseconds timeout_);
  std::shared_ptr<const Round> run(int rank, Entry entry);
  void complete(Round& round);
  [[noreturn]] void fail(detail::GroupFailure why);

  const std::chrono::milliseconds timeout;
  std::vector<std::unique_ptr<Member>> members;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Round> current_;
  std::optional<detail::GroupFailure> failure_;
};

LocalGroup::State::State(int size, std::chrono::milliseconds timeout_) : timeout(timeout_) {
  for (int rank = 0; rank < size; ++rank)
    members.push_back(std::make_unique<Member>(*this, rank));
  current_ = std::make_shared<Round>(members.size());
}

std::shared_ptr<const LocalGroup::State::Round> LocalGroup::State::run(int rank, Entry entry) {
  const detail::Deadline deadline(timeout);
  std::unique_lock lock(mutex_);
  if (failure_) failure_->raise();
  const std::shared_ptr<Round> round = current_;
  auto& own = round->entries[static_cast<std::size_t>(rank)];
  const std::string name = entry.operation.text();
  if (own) {
    throw std::logic_error("LocalGroup." + name +
                           ": one thread must use a rank, got a second one in rank " +
                           std::to_string(rank));
  }
  own = std::move(entry);
  if (++round->arrived == round->entries.size()) {
    complete(*round);
    return round;
  }
  const auto over = [&] { return round->done || failure_; };
  if (!changed_.wait_until(lock, deadline.end(), over)) {
    std::vector<int> missing;
    for (std::size_t peer = 0; peer < round->entries.size(); ++peer) {
      if (!round->entries[peer]) missing.push_back(static_cast<int>(peer));
    }
    fail({"LocalGroup." + name + ": every rank must enter within " +
              std::to_string(timeout.count()) + " ms, got nothing from " +
              detail::ranks_text(missing),
          missing});
  }
  if (!round->done) failure_->raise();
  return round;
}

void LocalGroup::State::complete(Round& round) {
  const Operation& first = round.entries[0]->operation;
  for (std::size_t rank = 1; rank < round.entries.size(); ++rank) {
    const Operation& other = round.entries[rank]->operation;
    if (first.matches(other)) continue;
    fail({"LocalGroup: every rank must call the same operation, got " + first.text() +
              " on rank 0 and " + other.text() + " on rank " + std::to_string(rank),
          {}});
  }
  if (first.call == Call::kSplit) {
    std::map<int, int> sizes;
    for (const auto& entry : round.entries)
      ++sizes[entry->operation.color];
    for (const auto& [color, size] : sizes) {
      round.groups[color] = std::make_shared<State>(size, timeout);
    }
  }
  round.done = true;
  current_ = std::make_shared<Round>(members.size());
  changed_.notify_all();
}

// Ends the group for everybody: those who wait throw too, and so does every later call.
void LocalGroup::State::fail(detail::GroupFailure why) {
  failure_ = std::move(why);
  changed_.notify_all();
  failure_->raise();
}

std::vector<std::string> LocalGroup::State::Member::allgather(std::string_view message) {
  const auto round = state_.run(rank_, {{.call = Call::kAllgather}, std::string(message)});
  std::vector<std::string> messages;
  for (const auto& entry : round->entries)
    messages.push_back(entry->message);
  return messages;
}

std::string LocalGroup::State::Member::bcast(std::string_view message, int root) {
  if (root < 0 || root >= get_size()) {
    throw std::invalid_argument("LocalGroup.bcast: root must be in [0, " +
                                std::to_string(get_size()) + "), got " + std::to_string(root));
  }
  const auto round = state_.run(rank_, {{.call = Call::kBcast, .root = root},
                                        std::string(rank_ == root ? message : std::string_view())});
  return round->entries[static_cast<std::size_t>(root)]->message;
}

std::shared_ptr<CommBackend> LocalGroup::State::Member::split(int color, int key) {
  const auto round = state_.run(rank_, {{.call = Call::kSplit, .color = color, .key = key}, {}});
  std::vector<std::pair<int, int>> order;  // (key, rank) of my group
  for (std::size_t rank = 0; rank < round->entries.size(); ++rank) {
    const Operation& other = round->entries[rank]->operation;
    if (other.color == color) order.emplace_back(other.key, static_cast<int>(rank));
  }
  std::sort(order.begin(), order.end());
  const auto own = std::find(order.begin(), order.end(), std::pair(key, rank_)) - order.begin();
  const std::shared_ptr<State>& group = round->groups.at(color);
  return {group, group->members[static_cast<std::size_t>(own)].get()};
}

LocalGroup::LocalGroup(int size, std::chrono::milliseconds timeout) {
  if (size < 1) {
    throw std::invalid_argument("LocalGroup: size must be positive, got " + std::to_string(size));
  }
  if (timeout.count() <= 0) {
    throw std::invalid_argument("LocalGroup: timeout must be positive, got " +
                                std::to_string(timeout.count()) + " ms");
  }
  state_ = std::make_shared<State>(size, timeout);
}

LocalGroup::~LocalGroup() = default;

int LocalGroup::size() const {
  return static_cast<int>(state_->members.size());
}

std::shared_ptr<CommBackend> LocalGroup::backend(int rank) {
  if (rank < 0 || rank >= size()) {
    throw std::invalid_argument("LocalGroup.backend: rank must be in [0, " +
                                std::to_string(size()) + "), got " + std::to_string(rank));
  }
  return {state_, state_->members[static_cast<std::size_t>(rank)].get()};
}

}  // namespace moe_ep
