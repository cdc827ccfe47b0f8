// What a test may not leave behind: descriptors, mappings, names.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace moe_ep::testing {

// A fresh directory under /tmp whose name holds the process id; removed with what is in it.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  // Names in it, sorted.
  std::vector<std::string> entries() const;

 private:
  std::string path_;
};

// What the process holds now. Take one before and one after; they must be equal.
struct Resources {
  static Resources now();

  int num_fds = 0;
  int num_shared_mappings = 0;  // of the library's shared memory

  friend bool operator==(const Resources&, const Resources&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Resources& resources);
};

// How /proc/self/maps describes an address: "rw-s", "---p"; empty when nothing is mapped there.
std::string access_at(const void* address);

// Address space of the process. Comparable only within one thread and after a first round, since
// allocators keep what they once took.
std::size_t virtual_bytes();

// Sets an environment variable, or removes it (nullptr), until the end of the scope.
class ScopedEnv {
 public:
  ScopedEnv(const char* name, const char* value);
  ~ScopedEnv();
  ScopedEnv(const ScopedEnv&) = delete;
  ScopedEnv& operator=(const ScopedEnv&) = delete;

 private:
  const char* name_;
  std::string old_;
  bool had_ = false;
};

}  // namespace moe_ep::testing
