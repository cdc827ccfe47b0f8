#include "memory/publication.hpp"

#include <map>
#include <mutex>

#include <moe_ep/error.hpp>

namespace moe_ep::memory {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::uint64_t, std::weak_ptr<SliceMap>> views;
};

Registry& registry() {
  static auto& instance = *new Registry;  // never destroyed: threads may outlive main()
  return instance;
}

}  // namespace

Publication::Publication(std::uint64_t key, const std::shared_ptr<SliceMap>& view) : key_(key) {
  const std::lock_guard lock(registry().mutex);
  registry().views[key_] = view;
}

Publication::~Publication() {
  const std::lock_guard lock(registry().mutex);
  registry().views.erase(key_);
}

std::shared_ptr<SliceMap> Publication::find(std::uint64_t key) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().views.find(key);
  std::shared_ptr<SliceMap> view = found == registry().views.end() ? nullptr : found->second.lock();
  if (!view) {
    throw MoEEpError("shared memory: a rank of this process must have mapped it, got nothing");
  }
  return view;
}

}  // namespace moe_ep::memory
