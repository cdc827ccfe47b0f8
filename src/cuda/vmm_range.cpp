#include "cuda/vmm_range.hpp"

namespace moe_ep::cuda {
namespace {

CUdeviceptr address_of(const std::byte* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

}  // namespace

VmmRange::VmmRange(int num_slices, std::size_t stride, std::size_t granularity, int device)
    : stride_(stride), device_(device), mapped_(static_cast<std::size_t>(num_slices)) {
  CUdeviceptr base = 0;
  MOE_EP_DRIVER_CHECK(Driver::get(), cuMemAddressReserve, &base, mapped_.size() * stride_,
                      granularity, 0, 0);
  base_ = reinterpret_cast<std::byte*>(base);
}

VmmRange::~VmmRange() {
  for (std::size_t index = 0; index < mapped_.size(); ++index)
    unmap(static_cast<int>(index));
  Driver::look().cuMemAddressFree(address_of(base_), mapped_.size() * stride_);
}

void VmmRange::map(int index, const VmmHandle& handle) {
  const Driver& driver = Driver::get();
  const CUdeviceptr address = address_of(slice(index));
  MOE_EP_DRIVER_CHECK(driver, cuMemMap, address, stride_, 0, handle.get(), 0);
  mapped_[static_cast<std::size_t>(index)] = true;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device_;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult result = driver.cuMemSetAccess(address, stride_, &access, 1);
  if (result == CUDA_SUCCESS) return;
  unmap(index);
  throw MoEEpError(
      driver.call_text("cuMemSetAccess for device " + std::to_string(device_), result));
}

void VmmRange::unmap(int index) noexcept {
  const auto at = static_cast<std::size_t>(index);
  if (!mapped_[at]) return;
  Driver::look().cuMemUnmap(address_of(slice(index)), stride_);
  mapped_[at] = false;
}

}  // namespace moe_ep::cuda
