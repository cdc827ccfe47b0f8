#include "comm/frame.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <moe_ep/error.hpp>

#include "comm/group_failure.hpp"
#include "comm/unique_fd.hpp"

namespace moe_ep::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class FrameTest : public ::testing::Test {
 protected:
  FrameTest() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    left_ = UniqueFd(fds[0]);
    right_ = UniqueFd(fds[1]);
  }

  // The header of an empty barrier frame, as bytes.
  std::string header_bytes() {
    EXPECT_EQ(send_frame(left_.get(), FrameType::kBarrier, 1, 0, {}, Deadline(1s)),
              IoResult::kDone);
    std::string bytes(64, '\0');
    bytes.resize(static_cast<std::size_t>(::recv(right_.get(), bytes.data(), bytes.size(), 0)));
    EXPECT_EQ(bytes.size(), 24U);
    return bytes;
  }
  void send_bytes(const std::string& bytes) {
    ASSERT_EQ(::send(left_.get(), bytes.data(), bytes.size(), 0), ssize_t(bytes.size()));
  }

  UniqueFd left_;
  UniqueFd right_;
  FrameReader reader_;
};

TEST_F(FrameTest, CarriesEveryField) {
  const std::string payload("a\0b", 3);
  send_frame(left_.get(), FrameType::kBcast, 7, 3, payload, Deadline(1s));
  Frame frame;
  ASSERT_EQ(receive_frame(right_.get(), reader_, frame, Deadline(1s)), IoResult::kDone);
  EXPECT_EQ(frame.type, FrameType::kBcast);
  EXPECT_EQ(frame.sequence, 7U);
  EXPECT_EQ(frame.argument, 3U);
  EXPECT_EQ(frame.payload, payload);
}

TEST_F(FrameTest, SurvivesDeliveryByteByByte) {
  std::string bytes = header_bytes();
  bytes[16] = 2;  // length
  bytes += "xyz";
  for (std::size_t i = 0; i < 26; ++i) {
    EXPECT_EQ(reader_.read_from(right_.get()), IoResult::kPending) << i;
    send_bytes(bytes.substr(i, 1));
  }
  EXPECT_EQ(reader_.read_from(right_.get()), IoResult::kDone);
  EXPECT_EQ(reader_.take().payload, "xy");
}

TEST_F(FrameTest, TakesNoByteOfTheNextFrame) {
  send_frame(left_.get(), FrameType::kBarrier, 1, 0, "one", Deadline(1s));
  send_frame(left_.get(), FrameType::kBarrier, 2, 0, "two", Deadline(1s));
  for (const char* expected : {"one", "two"}) {
    ASSERT_EQ(reader_.read_from(right_.get()), IoResult::kDone);
    EXPECT_EQ(reader_.take().payload, expected);
  }
  EXPECT_EQ(reader_.read_from(right_.get()), IoResult::kPending);
}

TEST_F(FrameTest, RefusesForeignBytes) {
  send_bytes("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT([&] { reader_.read_from(right_.get()); },
              ThrowsMessage<MoEEpError>(HasSubstr("magic number")));
}

TEST_F(FrameTest, RefusesAHeaderThatIsNotQuiteOurs) {
  for (const std::size_t changed : {0, 3, 6, 7}) {  // bytes of the magic number and of the zero
    std::string bytes = header_bytes();
    bytes[changed] = static_cast<char>(bytes[changed] ^ 1);
    send_bytes(bytes);
    FrameReader reader;
    EXPECT_THAT([&] { reader.read_from(right_.get()); },
                ThrowsMessage<MoEEpError>(HasSubstr("magic number")));
  }
}

TEST_F(FrameTest, RefusesUnknownTypes) {
  for (const char type : {'\0', '\x63'}) {
    std::string bytes = header_bytes();
    bytes[4] = type;
    send_bytes(bytes);
    FrameReader reader;
    EXPECT_THAT([&] { reader.read_from(right_.get()); },
                ThrowsMessage<MoEEpError>(HasSubstr("a frame must have a known type")));
  }
}

TEST_F(FrameTest, RefusesALengthOverTheCapBeforeItAllocates) {
  std::string bytes = header_bytes();
  const std::uint64_t length = kMaxFrameBytes + 1;
  std::memcpy(bytes.data() + 16, &length, sizeof length);
  send_bytes(bytes);
  EXPECT_THAT([&] { reader_.read_from(right_.get()); },
              ThrowsMessage<MoEEpError>(HasSubstr("at most 1073741824 bytes, got 1073741825")));
}

TEST_F(FrameTest, RefusesToSendOverTheCap) {
  // Nothing is read from the view before its length is refused.
  const std::string_view huge("x", kMaxFrameBytes + 1);
  EXPECT_THROW(send_frame(left_.get(), FrameType::kBcast, 1, 0, huge, Deadline(1s)), MoEEpError);
  EXPECT_EQ(reader_.read_from(right_.get()), IoResult::kPending);
}

TEST_F(FrameTest, EndInsideAFrameIsClosedNotAFrame) {
  send_bytes(header_bytes().substr(0, 10));
  left_.reset();
  EXPECT_EQ(reader_.read_from(right_.get()), IoResult::kClosed);
}

TEST_F(FrameTest, SendingToAClosedPeerRaisesNoSignal) {
  right_.reset();
  EXPECT_EQ(send_frame(left_.get(), FrameType::kBarrier, 1, 0, {}, Deadline(1s)),
            IoResult::kClosed);
}

TEST_F(FrameTest, SendingToAPeerThatDoesNotReadEndsAtTheDeadline) {
  const std::string payload(8'000'000, 'x');
  EXPECT_EQ(send_frame(left_.get(), FrameType::kBcast, 1, 0, payload, Deadline(50ms)),
            IoResult::kPending);
}

TEST_F(FrameTest, ReceivingEndsAtTheDeadline) {
  Frame frame;
  EXPECT_EQ(receive_frame(right_.get(), reader_, frame, Deadline(30ms)), IoResult::kPending);
}

TEST(PackedMessagesTest, RoundTrip) {
  const std::vector<std::string> messages = {"", "abc", std::string("\0", 1)};
  EXPECT_EQ(unpack_messages(pack_messages(messages), 3), messages);
  EXPECT_EQ(unpack_messages("", 0), std::vector<std::string>{});
}

TEST(PackedMessagesTest, RefusesWrongCountsAndLengths) {
  const std::string packed = pack_messages({"a", "b"});
  EXPECT_THROW(unpack_messages(packed, 1), MoEEpError);
  EXPECT_THROW(unpack_messages(packed, 3), MoEEpError);
  EXPECT_THROW(unpack_messages(packed.substr(0, packed.size() - 1), 2), MoEEpError);
  EXPECT_THROW(unpack_messages(std::string(8, '\xff') + "a", 1), MoEEpError);
}

TEST(GroupFailureTest, RoundTripAndKind) {
  const auto timeout = GroupFailure::decode(GroupFailure{"late", {1, 4}}.encode());
  EXPECT_EQ(timeout.text, "late");
  EXPECT_THAT(timeout.missing, ElementsAre(1, 4));
  EXPECT_THROW(timeout.raise(), MoEEpTimeoutError);
  const auto other = GroupFailure::decode(GroupFailure{"broken", {}}.encode());
  EXPECT_THAT([&] { other.raise(); }, ThrowsMessage<MoEEpError>("broken"));
  EXPECT_THROW(GroupFailure::decode("x"), MoEEpError);
  EXPECT_THROW(GroupFailure::decode(std::string(4, '\xff')), MoEEpError);
}

TEST(RanksTextTest, ReadsAsProse) {
  EXPECT_EQ(ranks_text({3}), "rank 3");
  EXPECT_EQ(ranks_text({0, 2}), "ranks 0 and 2");
  EXPECT_EQ(ranks_text({0, 2, 5}), "ranks 0, 2 and 5");
}

}  // namespace
}  // namespace moe_ep::detail
