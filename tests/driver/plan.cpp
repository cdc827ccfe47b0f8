// Which calls are refused.
#include <mutex>

#include "driver_double.hpp"

namespace moe_ep::testing {
namespace {

std::mutex mutex;
DriverPlan present;
int num_calls = 0;  // of the failing rank
std::string refused;
thread_local int own_rank = -1;

}  // namespace

void follow(const DriverPlan& plan) {
  const std::lock_guard lock(mutex);
  present = plan;
  num_calls = 0;
  refused.clear();
}

void play(int rank) {
  own_rank = rank;
}

std::string refused_call() {
  const std::lock_guard lock(mutex);
  return refused;
}

bool is_refused(const char* call) {
  const std::lock_guard lock(mutex);
  if (own_rank != present.failing_rank || ++num_calls != present.failing_call) return false;
  refused = call;
  return true;
}

Fabric fabric_here() {
  const std::lock_guard lock(mutex);
  const auto found = present.fabric_of.find(own_rank);
  return found == present.fabric_of.end() ? present.fabric : found->second;
}

}  // namespace moe_ep::testing
