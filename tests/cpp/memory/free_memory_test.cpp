#include "memory/free_memory.hpp"

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <moe_ep/error.hpp>

#include "support/resources.hpp"

namespace moe_ep::memory {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;
using ::testing::ThrowsMessage;

// A made-up /proc and /sys.
class FreeMemoryTest : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path full = root() + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  void write_meminfo() const {
    write("/proc/meminfo",
          "MemTotal:       1000 kB\nMemFree:    9 kB\nMemAvailable:  300 kB\nHugePages_Total:  7\n"
          "SwapFree:         50 kB\n");
  }
  void write_cgroup(const std::string& group, const std::string& limit) const {
    write("/proc/self/cgroup", "0::" + group + "\n");
    write("/sys/fs/cgroup" + group + "/memory.max", limit + "\n");
    write("/sys/fs/cgroup" + group + "/memory.current", "60000\n");
    write("/sys/fs/cgroup" + group + "/memory.stat",
          "anon 30000\nfile 25000\ninactive_file 10000\nactive_file 5000\n");
  }
  const std::string& root() const { return directory_.path(); }

  testing::TempDir directory_;
};

TEST_F(FreeMemoryTest, HostSaysWhatIsAvailableWithSwap) {
  write_meminfo();
  EXPECT_THAT(free_memory(root()), Optional(350 * 1024));
}

TEST_F(FreeMemoryTest, SmallerOfHostAndCgroupCounts) {
  write_meminfo();
  write_cgroup("/", "100000");  // 60000 used, 15000 of them cache that can go
  EXPECT_THAT(free_memory(root()), Optional(55000));
  write_cgroup("/box/inner", "50000");
  EXPECT_THAT(free_memory(root()), Optional(5000));
  write_cgroup("/box/inner", "1000");
  EXPECT_THAT(free_memory(root()), Optional(0));
  write_cgroup("/box/inner", "max");
  EXPECT_THAT(free_memory(root()), Optional(350 * 1024));
}

TEST_F(FreeMemoryTest, NothingIsKnownWithoutProc) {
  EXPECT_EQ(free_memory(root()), std::nullopt);
  EXPECT_NO_THROW(require_free_memory(std::uint64_t{1} << 60, root()));
}

TEST_F(FreeMemoryTest, TooMuchIsRefused) {
  write_meminfo();
  EXPECT_NO_THROW(require_free_memory(350 * 1024, root()));
  EXPECT_THAT([&] { require_free_memory(350 * 1024 + 1, root()); },
              ThrowsMessage<MoEEpError>(
                  HasSubstr("all slices must fit into free memory, got 358401 bytes wanted and "
                            "358400 free")));
}

TEST(FreeMemoryOfThisHostTest, IsKnownAndPlausible) {
  const auto free = free_memory();
  ASSERT_TRUE(free.has_value());
  EXPECT_GT(*free, 1U << 20);
  EXPECT_LT(*free, std::uint64_t{1} << 50);
}

}  // namespace
}  // namespace moe_ep::memory
