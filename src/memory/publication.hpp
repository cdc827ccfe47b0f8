// How ranks of one process come to share an object that one of them has made.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include <moe_ep/error.hpp>

namespace moe_ep::memory {

// Holds an object out under a key that the ranks have agreed on. The others call find() while the
// Publication lives; it keeps no object alive.
template <class Object>
class Publication {
 public:
  Publication(std::uint64_t key, const std::shared_ptr<Object>& object) : key_(key) {
    const std::lock_guard lock(registry().mutex);
    registry().objects[key_] = object;
  }
  ~Publication() {
    const std::lock_guard lock(registry().mutex);
    registry().objects.erase(key_);
  }
  Publication(const Publication&) = delete;
  Publication& operator=(const Publication&) = delete;

  // @throws MoEEpError when nothing is published under `key`, or its owner has let go of it
  static std::shared_ptr<Object> find(std::uint64_t key) {
    const std::lock_guard lock(registry().mutex);
    const auto found = registry().objects.find(key);
    const bool published = found != registry().objects.end();
    std::shared_ptr<Object> object = published ? found->second.lock() : nullptr;
    if (!object) {
      throw MoEEpError("shared memory: a rank of this process must hold it out, got nothing");
    }
    return object;
  }

 private:
  struct Registry {
    std::mutex mutex;
    std::map<std::uint64_t, std::weak_ptr<Object>> objects;
  };
  static Registry& registry() {
    static auto& instance = *new Registry;  // never destroyed: threads may outlive main()
    return instance;
  }

  const std::uint64_t key_;
};

}  // namespace moe_ep::memory
