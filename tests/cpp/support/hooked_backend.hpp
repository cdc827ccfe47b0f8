// A CommBackend that lets a test interfere with another one's collectives.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <moe_ep/comm_backend.hpp>

namespace moe_ep::testing {

// Counts the calls that communicate from 1. `before(n)` may throw or kill the process instead of
// taking part in call n; `after(n, result)` may also change what an allgather returns.
class HookedBackend final : public CommBackend {
 public:
  using Before = std::function<void(int call)>;
  using After = std::function<void(int call, std::vector<std::string>& result)>;

  explicit HookedBackend(std::shared_ptr<CommBackend> inner, Before before = {}, After after = {})
      : inner_(std::move(inner)), before_(std::move(before)), after_(std::move(after)) {}

  int get_rank() const override { return inner_->get_rank(); }
  int get_size() const override { return inner_->get_size(); }
  std::vector<std::string> allgather(std::string_view message) override {
    const int call = enter();
    std::vector<std::string> result = inner_->allgather(message);
    if (after_) after_(call, result);
    return result;
  }
  std::string bcast(std::string_view message, int root) override {
    enter();
    return inner_->bcast(message, root);
  }
  void barrier() override {
    enter();
    inner_->barrier();
  }
  std::shared_ptr<CommBackend> split(int color, int key) override {
    enter();
    return inner_->split(color, key);
  }

  int num_calls() const { return num_calls_; }

 private:
  int enter() {
    ++num_calls_;
    if (before_) before_(num_calls_);
    return num_calls_;
  }

  std::shared_ptr<CommBackend> inner_;
  Before before_;
  After after_;
  int num_calls_ = 0;
};

// Throws std::runtime_error in call `call` of the backend, without taking part in it.
inline HookedBackend::Before throw_at(int call) {
  return [call](int now) {
    if (now == call) throw std::runtime_error("injected failure");
  };
}

}  // namespace moe_ep::testing
