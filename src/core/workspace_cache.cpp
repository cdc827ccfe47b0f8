#include "core/workspace_cache.hpp"

#include <map>
#include <mutex>

namespace moe_ep::detail {
namespace {

struct Cache {
  std::mutex mutex;
  std::map<WorkspaceKey, std::weak_ptr<SharedWorkspace>> workspaces;
};

Cache& cache() {
  static auto* instance = new Cache();  // outlives static destructors that drop instances
  return *instance;
}

}  // namespace

std::shared_ptr<SharedWorkspace> find_workspace(const WorkspaceKey& key) {
  const std::lock_guard lock(cache().mutex);
  const auto found = cache().workspaces.find(key);
  return found == cache().workspaces.end() ? nullptr : found->second.lock();
}

void remember_workspace(const WorkspaceKey& key,
                        const std::shared_ptr<SharedWorkspace>& workspace) {
  const std::lock_guard lock(cache().mutex);
  std::erase_if(cache().workspaces, [](const auto& entry) { return entry.second.expired(); });
  cache().workspaces[key] = workspace;
}

}  // namespace moe_ep::detail
