// Bytes of peers that are broken: an error or a result, never a crash. Made for the sanitizers.
#include "trust/decoders.hpp"

#include <gmock/gmock.h>
#include <moe_ep/host.hpp>

#include "support/resources.hpp"
#include "trust/hostile_group.hpp"

namespace moe_ep::testing {
namespace {

// A stream of frames as the hub sends them.
std::string good_frames() {
  SocketEnds ends(SOCK_STREAM);
  const detail::Deadline deadline(std::chrono::seconds(1));
  const std::vector<std::string> messages = {"one", "", std::string(300, 'x')};
  detail::send_frame(ends.left.get(), detail::FrameType::kResult, 1, 0,
                     detail::pack_messages(messages), deadline);
  detail::send_frame(ends.left.get(), detail::FrameType::kFailure, 2, 0,
                     detail::GroupFailure{"late", {1, 2}}.encode(), deadline);
  std::string bytes(4096, '\0');
  bytes.resize(static_cast<std::size_t>(::recv(ends.right.get(), bytes.data(), bytes.size(), 0)));
  return bytes;
}

TEST(DecodersTest, AnyBytesAreAnErrorOrAResult) {
  const memory::Proof proof{.rank = 1};
  const std::vector<std::string> corpus = {
      good_frames(),
      detail::pack_messages({"a", "bc", "", "defg"}),
      detail::GroupFailure{"rank 1 left", {1}}.encode(),
      std::string(reinterpret_cast<const char*>(&proof), sizeof proof),
      {}};
  const Resources before = Resources::now();
  for (std::uint64_t seed = 0; seed < 3000; ++seed)
    decode_anything(Mutator(seed).mutate(corpus[seed % corpus.size()]));
  EXPECT_EQ(Resources::now(), before);
}

// FR-088: what a peer says is checked by name, so that no reader's own error reaches the user.
bool says_what_was_wrong(const std::exception& error) {
  return std::string_view(error.what()).find(": ") != std::string_view::npos;
}

// Whatever one peer says in whichever message of a construction, and no matter in which word.
TEST(HostileGroupTest, ConstructionEndsInAnErrorOrAnInstance) {
  const TempDir directory;
  const ScopedEnv rendezvous("MOE_EP_RENDEZVOUS_DIR", directory.path().c_str());
  const ScopedEnv timeout("MOE_EP_RENDEZVOUS_TIMEOUT_SEC", "1");
  constexpr int kNumCalls = 6;
  int num_errors = 0;
  for (std::uint64_t seed = 0; seed < 1200; ++seed) {
    const Resources before = Resources::now();
    HostAlltoAllConfig config;
    config.comm_backend =
        std::make_shared<HostileGroup>(3, seed, static_cast<int>(seed % kNumCalls));
    try {
      const HostAlltoAll comm(
          {.world_size = 3, .rank = 0},
          {.num_experts = 6, .top_k = 2, .max_tokens_per_rank = 2, .hidden_size = 8}, config);
    } catch (const std::exception& error) {
      const bool known = dynamic_cast<const MoEEpError*>(&error) != nullptr ||
                         dynamic_cast<const std::invalid_argument*>(&error) != nullptr;
      EXPECT_TRUE(known && says_what_was_wrong(error)) << "seed " << seed << ": " << error.what();
      ++num_errors;
    }
    EXPECT_EQ(Resources::now(), before) << "seed " << seed;
  }
  EXPECT_GT(num_errors, 300);
  EXPECT_THAT(directory.entries(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace moe_ep::testing
