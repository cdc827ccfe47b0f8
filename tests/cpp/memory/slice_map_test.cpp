#include "memory/slice_map.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <moe_ep/error.hpp>

#include "memory/host_segment.hpp"
#include "memory/publication.hpp"
#include "support/resources.hpp"

namespace moe_ep::memory {
namespace {

using testing::access_at;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::size_t kPage = SliceMap::page_bytes();

TEST(SliceMapTest, StrideIsWholePagesAndAGuardPage) {
  EXPECT_EQ(SliceMap::stride_of(1, 4), 2 * kPage);
  EXPECT_EQ(SliceMap::stride_of(kPage, 4), 2 * kPage);
  EXPECT_EQ(SliceMap::stride_of(kPage + 1, 4), 3 * kPage);
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 256}) {
    EXPECT_THAT([&] { SliceMap::stride_of(bytes, 256); },
                ThrowsMessage<MoEEpError>(HasSubstr("must fit into the address space")));
  }
}

TEST(SliceMapTest, GuardPagesLieBeforeBetweenAndAfterSlices) {
  const std::size_t bytes = 3 * kPage;
  const HostSegment segment = HostSegment::create(bytes);
  SliceMap view(3, bytes);
  for (int rank = 0; rank < 3; ++rank)
    view.map(rank, segment.id().fd);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(access_at(view.slice(rank) - 1), "---p");
    EXPECT_EQ(access_at(view.slice(rank)), "rw-s");
    EXPECT_EQ(access_at(view.slice(rank) + bytes - 1), "rw-s");
    EXPECT_EQ(access_at(view.slice(rank) + bytes), "---p");
    EXPECT_EQ(view.slice(rank) - view.base(), std::ptrdiff_t(std::size_t(rank) * view.stride()));
  }
}

TEST(SliceMapTest, TouchingAGuardPageFaults) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const HostSegment segment = HostSegment::create(kPage);
  SliceMap view(1, kPage);
  view.map(0, segment.id().fd);
  volatile auto* const bytes = reinterpret_cast<volatile unsigned char*>(view.base());
  bytes[kPage - 1] = 1;
  EXPECT_DEATH(bytes[kPage] = 1, "");
  EXPECT_DEATH(bytes[-1] = 1, "");
}

TEST(SliceMapTest, UnmappedSlicesKeepTheirAddressesReserved) {
  const HostSegment segment = HostSegment::create(kPage);
  const testing::Resources mapped_nothing = testing::Resources::now();
  SliceMap view(2, kPage);
  view.map(0, segment.id().fd);
  view.map(1, segment.id().fd);
  view.unmap(0);
  EXPECT_EQ(access_at(view.slice(0)), "---p");
  EXPECT_EQ(access_at(view.slice(1)), "rw-s");
  view.unmap_all();
  EXPECT_EQ(access_at(view.slice(1)), "---p");
  EXPECT_EQ(testing::Resources::now(), mapped_nothing);
}

TEST(SliceMapTest, FailedMappingLeavesTheReservation) {
  const HostSegment segment = HostSegment::create(kPage);
  SliceMap view(1, kPage);
  view.map(0, segment.id().fd);
  EXPECT_THROW(view.map(0, -1), MoEEpError);
  EXPECT_EQ(access_at(view.slice(0)), "---p");
}

TEST(SliceMapTest, DestructionGivesTheAddressesBack) {
  const HostSegment segment = HostSegment::create(kPage);
  auto view = std::make_unique<SliceMap>(2, kPage);
  view->map(1, segment.id().fd);
  const std::byte* const address = view->slice(1);
  const std::size_t before = testing::virtual_bytes();
  view.reset();
  EXPECT_EQ(access_at(address), "");
  EXPECT_EQ(before - testing::virtual_bytes(), 5 * kPage);
}

TEST(PublicationTest, IsFoundWhileItLives) {
  auto view = std::make_shared<SliceMap>(1, kPage);
  EXPECT_THROW(Publication<SliceMap>::find(7), MoEEpError);
  {
    const Publication<SliceMap> publication(7, view);
    EXPECT_EQ(Publication<SliceMap>::find(7), view);
    EXPECT_THROW(Publication<SliceMap>::find(8), MoEEpError);
  }
  EXPECT_THROW(Publication<SliceMap>::find(7), MoEEpError);
  const Publication<SliceMap> publication(9, view);
  view.reset();
  EXPECT_THROW(Publication<SliceMap>::find(9), MoEEpError);  // it keeps nothing alive
}

}  // namespace
}  // namespace moe_ep::memory
