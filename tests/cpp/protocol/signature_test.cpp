#include "protocol/signature.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>

namespace moe_ep::protocol {
namespace {

TEST(SignatureTest, EqualSignaturesHaveNoDifference) {
  StepSignature signature;
  for (std::int32_t field = 0; field < kNumSignatureFields; ++field) {
    signature.fields[field] = 3 * field + 1;
  }
  EXPECT_EQ(signature.first_difference(signature), -1);
  EXPECT_EQ(StepSignature{}.first_difference(StepSignature{}), -1);
}

TEST(SignatureTest, EveryFieldIsCompared) {
  for (std::int32_t field = 0; field < kNumSignatureFields; ++field) {
    for (const std::int32_t value : {1, -1, std::numeric_limits<std::int32_t>::min()}) {
      StepSignature other;
      other.fields[field] = value;
      EXPECT_EQ(StepSignature{}.first_difference(other), field);
      EXPECT_EQ(other.first_difference(StepSignature{}), field);
    }
  }
}

TEST(SignatureTest, FirstOfSeveralDifferencesIsNamed) {
  StepSignature other;
  other.fields[kTopK] = 1;
  other.fields[kNumPayloads] = 1;
  EXPECT_EQ(StepSignature{}.first_difference(other), kTopK);
}

TEST(SignatureTest, FieldsAreDistinctAndRowBytesFollowThem) {
  std::set<std::int32_t> fields;
  std::set<std::string> texts;
#define MOE_EP_ADD(field, text) \
  fields.insert(field);         \
  texts.insert(text);
  MOE_EP_FOR_EACH_SIGNATURE_FIELD(MOE_EP_ADD)
#undef MOE_EP_ADD
  EXPECT_EQ(fields.size(), static_cast<std::size_t>(kFirstRowBytes));
  EXPECT_EQ(texts.size(), fields.size());
  EXPECT_EQ(*fields.rbegin() + 1, kFirstRowBytes);
  EXPECT_EQ(kNumSignatureFields, kFirstRowBytes + kMaxPayloads);
}

TEST(SignatureTest, EveryMixOfPresentPartsHasItsOwnValue) {
  std::set<std::int32_t> values;
  for (int flags = 0; flags < 8; ++flags) {
    for (int extras = 0; extras <= kMaxExtraPayloads; ++extras) {
      values.insert((flags & 1 ? kHasScale : 0) | (flags & 2 ? kHasWeights : 0) |
                    (flags & 4 ? kHasEplbStats : 0) | extras * kExtraPayload);
    }
  }
  EXPECT_EQ(values.size(), 8u * (kMaxExtraPayloads + 1));
}

}  // namespace
}  // namespace moe_ep::protocol
