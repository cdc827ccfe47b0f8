// The conversion instructions against the protocol's integer definitions, code by code.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "cuda/device/convert.cuh"
#include "rig.hpp"

namespace moe_ep::testing {
namespace {

struct Converted {
  std::uint32_t e4m3, bf16, fp16;
};

struct ConvertArgs {
  const float* values;
  Converted* out;
  int count;
};

__global__ void convert(const __grid_constant__ ConvertArgs args) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= args.count) return;
  const float value = args.values[i];
  args.out[i] = {cuda::pack_e4m3(value, 0.0f, value, 0.0f) & 0xff,
                 cuda::DeviceBf16::pack(value, 0.0f) & 0xffff, cuda::DeviceFp16::from_float(value)};
}

struct WidenArgs {
  float* e4m3;
  float* fp16;
};

__global__ void widen(const __grid_constant__ WidenArgs args) {
  const unsigned code = blockIdx.x * blockDim.x + threadIdx.x;
  args.fp16[code] = cuda::DeviceFp16::to_float(static_cast<std::uint16_t>(code));
  if (code < 256) args.e4m3[code] = cuda::unpack_e4m3(code).x;
}

std::uint32_t bits_of(float value) {
  return protocol::float_bits(value);
}

TEST(ConvertGpuTest, NarrowingIsTheProtocols) {
  if (num_gpus() < 1) GTEST_SKIP() << "needs a GPU, got none";
  std::vector<float> values;
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 4099) {
    values.push_back(protocol::bits_float(static_cast<std::uint32_t>(bits)));
  }
  for (std::uint32_t high = 0; high < (1u << 16);
       ++high) {  // every bf16, its neighbours, midpoints
    for (const std::uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      values.push_back(protocol::bits_float(high << 16 | low));
    }
  }
  const int count = static_cast<int>(values.size());
  DeviceBuffer in(0, 4 * values.size()), out(0, sizeof(Converted) * values.size());
  in.upload(values.data(), 4 * values.size());
  MOE_EP_CUDA_CHECK(cuda::enqueue(convert, (count + 255) / 256, 256, 0, cuda::Pdl::kOff, nullptr,
                                  ConvertArgs{reinterpret_cast<const float*>(in.data()),
                                              reinterpret_cast<Converted*>(out.data()), count}));
  const auto bytes = out.download();
  const auto* got = reinterpret_cast<const Converted*>(bytes.data());
  int wrong = 0;
  for (int i = 0; i < count && wrong < 10; ++i) {
    const float x = values[static_cast<std::size_t>(i)];
    const bool nan = std::isnan(x);
    const bool ok =
        got[i].e4m3 == protocol::E4M3::from_float(x) &&
        (nan ? std::isnan(protocol::Bf16::to_float(static_cast<std::uint16_t>(got[i].bf16)))
             : got[i].bf16 == protocol::Bf16::from_float(x)) &&
        (nan ? std::isnan(protocol::Fp16::to_float(static_cast<std::uint16_t>(got[i].fp16)))
             : got[i].fp16 == protocol::Fp16::from_float(x));
    if (ok) continue;
    ++wrong;
    ADD_FAILURE() << std::hex << "bits " << bits_of(x) << ": e4m3 " << got[i].e4m3 << " bf16 "
                  << got[i].bf16 << " fp16 " << got[i].fp16;
  }
}

TEST(ConvertGpuTest, WideningIsTheProtocols) {
  if (num_gpus() < 1) GTEST_SKIP() << "needs a GPU, got none";
  DeviceBuffer e4m3(0, 4 << 8), fp16(0, 4 << 16);
  MOE_EP_CUDA_CHECK(cuda::enqueue(
      widen, 256, 256, 0, cuda::Pdl::kOff, nullptr,
      WidenArgs{reinterpret_cast<float*>(e4m3.data()), reinterpret_cast<float*>(fp16.data())}));
  const auto small = e4m3.download(), half = fp16.download();
  const auto same = [](float got, float want) {
    return std::isnan(want) ? std::isnan(got) : bits_of(got) == bits_of(want);
  };
  for (unsigned code = 0; code < (1u << 16); ++code) {
    if (code < 256) {
      EXPECT_TRUE(same(reinterpret_cast<const float*>(small.data())[code],
                       protocol::E4M3::to_float(static_cast<std::uint8_t>(code))))
          << code;
    }
    EXPECT_TRUE(same(reinterpret_cast<const float*>(half.data())[code],
                     protocol::Fp16::to_float(static_cast<std::uint16_t>(code))))
        << code;
  }
}

}  // namespace
}  // namespace moe_ep::testing
