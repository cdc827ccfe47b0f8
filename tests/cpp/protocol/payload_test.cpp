// Element codecs against lists of all values.
#include "protocol/payload.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "protocol/small_float.hpp"
#include "support/float_oracle.hpp"

namespace moe_ep::protocol {
namespace {

using testing::bits_of;
using testing::float_of;
using testing::FormatOracle;
using testing::sweep_floats;

const FormatOracle& bf16() {
  static const FormatOracle kOracle(8, 7, true);
  return kOracle;
}
const FormatOracle& fp16() {
  static const FormatOracle kOracle(5, 10, true);
  return kOracle;
}
const FormatOracle& e4m3() {
  static const FormatOracle kOracle(4, 3, false, 1);
  return kOracle;
}
const FormatOracle& e2m1() {
  static const FormatOracle kOracle(2, 1, false);
  return kOracle;
}

template <class Type>
void expect_decodes_every_code(const FormatOracle& oracle) {
  for (std::uint32_t code = 0; code < 2 * oracle.sign_mask(); ++code) {
    const float value = Type::to_float(static_cast<typename Type::Bits>(code));
    if (oracle.is_nan(code)) {
      ASSERT_TRUE(std::isnan(value)) << code;
    } else {
      ASSERT_EQ(bits_of(value), bits_of(static_cast<float>(oracle.decode(code)))) << code;
      ASSERT_EQ(Type::from_float(value), code);
    }
  }
}

template <class Type>
void expect_rounds_to_nearest_even(const FormatOracle& oracle) {
  int failures = 0;
  sweep_floats(oracle, [&](float value) {
    const std::uint32_t code = Type::from_float(value);
    if (code != oracle.encode(static_cast<double>(value)) && ++failures < 10) {
      ADD_FAILURE() << value << " became " << code << ", not "
                    << oracle.encode(static_cast<double>(value));
    }
  });
  EXPECT_EQ(failures, 0);
}

// NaNs of every kind: quiet, signalling, with payload bits in either half.
constexpr std::uint32_t kNans[] = {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u,
                                   0x7fffffffu, 0x7f80ffffu, 0x7f807fffu, 0xffffffffu};

template <class Type>
void expect_keeps_nan() {
  for (const std::uint32_t bits : kNans) {
    EXPECT_TRUE(std::isnan(Type::to_float(Type::from_float(float_of(bits))))) << bits;
  }
}

TEST(Bf16Test, DecodesEveryPattern) {
  expect_decodes_every_code<Bf16>(bf16());
}
TEST(Bf16Test, RoundsToNearestEven) {
  expect_rounds_to_nearest_even<Bf16>(bf16());
}
TEST(Bf16Test, KeepsNan) {
  expect_keeps_nan<Bf16>();
}

TEST(Fp16Test, DecodesEveryPattern) {
  expect_decodes_every_code<Fp16>(fp16());
}
TEST(Fp16Test, RoundsToNearestEven) {
  expect_rounds_to_nearest_even<Fp16>(fp16());
}
TEST(Fp16Test, KeepsNan) {
  expect_keeps_nan<Fp16>();
}

TEST(Fp32Test, KeepsEveryNumber) {
  sweep_floats(fp16(), [](float value) {
    ASSERT_EQ(Fp32::from_float(value), bits_of(value));
    ASSERT_EQ(bits_of(Fp32::to_float(bits_of(value))), bits_of(value));
  });
}
TEST(Fp32Test, MakesNanQuiet) {
  for (const std::uint32_t bits : kNans) {
    EXPECT_EQ(Fp32::from_float(float_of(bits)), bits | 0x400000u);
  }
}

TEST(E4M3Test, DecodesEveryByte) {
  expect_decodes_every_code<E4M3>(e4m3());
}
TEST(E4M3Test, RoundsToNearestEvenAndSaturates) {
  expect_rounds_to_nearest_even<E4M3>(e4m3());
}
TEST(E4M3Test, KnowsItsLimits) {
  EXPECT_EQ(E4M3::to_float(0x7e), 448.0f);
  EXPECT_EQ(E4M3::to_float(0x01), 0x1p-9f);
  EXPECT_EQ(E4M3::from_float(1e30f), 0x7e);
  EXPECT_EQ(E4M3::from_float(-HUGE_VALF), 0xfe);
  for (const std::uint32_t bits : kNans)
    EXPECT_EQ(E4M3::from_float(float_of(bits)), E4M3::kNan);
}

TEST(E2M1Test, DecodesEveryCode) {
  expect_decodes_every_code<E2M1>(e2m1());
  constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (std::uint8_t code = 0; code < 8; ++code)
    EXPECT_EQ(E2M1::to_float(code), kValues[code]);
}
TEST(E2M1Test, RoundsToNearestEvenAndSaturates) {
  expect_rounds_to_nearest_even<E2M1>(e2m1());
}
TEST(E2M1Test, HoldsTheEvenElementInTheLowNibble) {
  EXPECT_EQ(E2M1::pack(0x3, 0xc), 0xc3);
  EXPECT_EQ(E2M1::unpack(0xc3, 0), 0x3);
  EXPECT_EQ(E2M1::unpack(0xc3, 1), 0xc);
}

TEST(E8M0Test, DecodesEveryByte) {
  for (int code = 0; code < 255; ++code) {
    const float value = E8M0::to_float(static_cast<E8M0::Bits>(code));
    EXPECT_EQ(static_cast<double>(value), std::ldexp(1.0, code - 127)) << code;
    EXPECT_EQ(E8M0::from_float_up(value), code);
  }
  EXPECT_TRUE(std::isnan(E8M0::to_float(0xff)));
}
TEST(E8M0Test, RoundsUp) {
  sweep_floats(e4m3(), [](float value) {
    const int code = E8M0::from_float_up(value);
    const double size = std::fabs(static_cast<double>(value));
    if (size > std::ldexp(1.0, 127)) {
      ASSERT_EQ(code, 0xff) << value;
    } else {
      ASSERT_GE(std::ldexp(1.0, code - 127), size) << value;
      if (code > 0) {
        ASSERT_LT(std::ldexp(1.0, code - 128), size) << value;
      }
    }
  });
  EXPECT_EQ(E8M0::from_float_up(std::nanf("")), E8M0::kNan);
}

TEST(CodecTest, CoversTheTypesThatCombineAdds) {
  EXPECT_EQ(codec_of(kBFloat16), Codec::kBf16);
  EXPECT_EQ(codec_of(kFloat16), Codec::kFp16);
  EXPECT_EQ(codec_of(kFloat32), Codec::kFp32);
  for (const DType dtype : {kBFloat16, kFloat16, kFloat32}) {
    EXPECT_TRUE(has_codec(dtype));
    EXPECT_EQ(codec_bytes(codec_of(dtype)), itemsize(dtype));
  }
  for (const DType dtype : {kFloat64, kInt32, kUInt16, kFloat8E4M3FN}) {
    EXPECT_FALSE(has_codec(dtype));
  }
}

}  // namespace
}  // namespace moe_ep::protocol
