#include "support/resources.hpp"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <system_error>

namespace moe_ep::testing {
namespace {

// Looking opens descriptors itself, which ranks that are threads must not count.
std::mutex& looking() {
  static std::mutex mutex;
  return mutex;
}

std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TempDir::TempDir() {
  path_ = "/tmp/moe_ep-test-" + std::to_string(::getpid()) + "-XXXXXX";
  if (::mkdtemp(path_.data()) == nullptr) {
    throw std::system_error(errno, std::generic_category(), "mkdtemp");
  }
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::vector<std::string> TempDir::entries() const {
  return names_in(path_);
}

Resources Resources::now() {
  const std::lock_guard lock(looking());
  Resources resources;
  resources.num_fds = static_cast<int>(names_in("/proc/self/fd").size());
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("moe_ep") != line.npos && line.find("(deleted)") != line.npos) {
      ++resources.num_shared_mappings;
    }
  }
  return resources;
}

std::ostream& operator<<(std::ostream& out, const Resources& resources) {
  return out << resources.num_fds << " descriptors, " << resources.num_shared_mappings
             << " shared mappings";
}

std::string access_at(const void* address) {
  const std::lock_guard lock(looking());
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t first = 0;
    std::uintptr_t last = 0;
    char access[5] = {};
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s", &first, &last, access) == 3 &&
        first <= wanted && wanted < last) {
      return access;
    }
  }
  return {};
}

std::size_t virtual_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t pages = 0;
  statm >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

ScopedEnv::ScopedEnv(const char* name, const char* value) : name_(name) {
  if (const char* const old = std::getenv(name)) {
    had_ = true;
    old_ = old;
  }
  value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
}

ScopedEnv::~ScopedEnv() {
  had_ ? ::setenv(name_, old_.c_str(), 1) : ::unsetenv(name_);
}

}  // namespace moe_ep::testing
