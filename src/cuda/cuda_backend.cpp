#include "cuda/cuda_backend.hpp"

#include <atomic>
#include <utility>

#include "cuda/device_guard.hpp"
#include "cuda/kernels/combine.hpp"
#include "cuda/kernels/dispatch.hpp"
#include "cuda/kernels/maintenance.hpp"

namespace moe_ep::cuda {
namespace {

using protocol::FailureRecord;
using protocol::StepStatus;

cudaStream_t native(Stream stream) {
  return reinterpret_cast<cudaStream_t>(stream);
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(const PlatformOptions& options, std::shared_ptr<FailureRecord> record)
      : device_(options.device.index), record_(std::move(record)) {
    const DeviceGuard guard(device_);
    cudaDeviceProp properties{};
    MOE_EP_CUDA_CHECK(cudaGetDeviceProperties(&properties, device_));
    launch_.num_sms = properties.multiProcessorCount;
    launch_.max_sms = options.max_sms.value_or(0);
    launch_.pdl = options.enable_pdl.value_or(properties.major >= 9) ? Pdl::kEarly : Pdl::kOff;
    MOE_EP_CUDA_CHECK(
        cudaHostGetDevicePointer(reinterpret_cast<void**>(&launch_.record), record_.get(), 0));
    // Loading a kernel may wait for all that runs, which may wait for kernels not launched yet.
    MOE_EP_CUDA_CHECK(preload_dispatch());
    MOE_EP_CUDA_CHECK(preload_combine());
    MOE_EP_CUDA_CHECK(preload_maintenance());
    MOE_EP_CUDA_CHECK(cudaStreamCreateWithFlags(&side_stream_, cudaStreamNonBlocking));
    const cudaError_t error =
        cudaMalloc(reinterpret_cast<void**>(&default_mask_), sizeof(RankMask));
    if (error != cudaSuccess) {
      cudaStreamDestroy(side_stream_);
      check(error, "cudaMalloc");
    }
  }

  ~CudaBackend() override {
    // At the end of a process the driver may be gone already; then so is what these free.
    cudaFree(default_mask_);
    cudaStreamDestroy(side_stream_);
    cudaGetLastError();
  }

  StepStatus dispatch(const protocol::DispatchParams& params, Stream stream) override {
    const DeviceGuard guard(device_);
    MOE_EP_CUDA_CHECK(launch_dispatch(params, launch_for(params), native(stream)));
    return {};
  }

  StepStatus combine(const protocol::CombineParams& params, const CombineOutput& output,
                     Stream stream) override {
    const DeviceGuard guard(device_);
    if (params.row_bytes == 0) {
      // An abandoned round is finished with those who are left, not with all whom its dispatch had.
      MOE_EP_CUDA_CHECK(
          launch_store_mask(&params.workspace.header()->active, params.active, native(stream)));
    }
    MOE_EP_CUDA_CHECK(launch_combine(params, output, options_now(), native(stream)));
    return {};
  }

  void sanitize(const protocol::Workspace& workspace, std::int32_t* ids,
                std::int32_t tokens_per_rank, std::int32_t top_k, std::int32_t invalid,
                Stream stream) override {
    const DeviceGuard guard(device_);
    MOE_EP_CUDA_CHECK(launch_sanitize(workspace, ids, tokens_per_rank, top_k, invalid,
                                      options_now(), native(stream)));
  }

  void set_default_mask(const RankMask& mask, std::optional<Stream> stream) override {
    const DeviceGuard guard(device_);
    const cudaStream_t on = stream ? native(*stream) : side_stream_;
    MOE_EP_CUDA_CHECK(launch_store_mask(default_mask_, mask, on));
    if (!stream) MOE_EP_CUDA_CHECK(cudaStreamSynchronize(on));
  }

  void reset(const protocol::Workspace& workspace, protocol::Epoch epoch,
             std::optional<Stream> stream) override {
    const DeviceGuard guard(device_);
    const cudaStream_t on = stream ? native(*stream) : side_stream_;
    MOE_EP_CUDA_CHECK(launch_reset(workspace, epoch, on));
    MOE_EP_CUDA_CHECK(cudaStreamSynchronize(on));
    *record_ = FailureRecord{};
  }

  void share_device(int num_ranks) override { ranks_on_device_ = num_ranks; }

  protocol::Epoch last_epoch(const protocol::Workspace& workspace) override {
    const DeviceGuard guard(device_);
    protocol::Epoch epoch = 0;
    MOE_EP_CUDA_CHECK(cudaMemcpyAsync(&epoch, &workspace.header()->epoch, sizeof epoch,
                                      cudaMemcpyDeviceToHost, side_stream_));
    MOE_EP_CUDA_CHECK(cudaStreamSynchronize(side_stream_));
    return epoch;
  }

  std::optional<StepStatus> pending_failure() const override {
    std::atomic_ref<std::uint32_t> state(record_->state);  // pairs with publish() on the device
    if (state.load(std::memory_order_acquire) != FailureRecord::kRecorded) return std::nullopt;
    return record_->status;
  }

  void synchronize() override {
    const DeviceGuard guard(device_);
    MOE_EP_CUDA_CHECK(cudaDeviceSynchronize());
  }

  void abandon(const protocol::Workspace& workspace) override {
    const DeviceGuard guard(device_);
    MOE_EP_CUDA_CHECK(launch_abandon(workspace, side_stream_));
    MOE_EP_CUDA_CHECK(cudaDeviceSynchronize());
  }

 private:
  LaunchOptions options_now() const {
    LaunchOptions options = launch_;
    options.ranks_on_device = ranks_on_device_.load(std::memory_order_relaxed);
    return options;
  }

  // The default mask is read from device memory, where replays find later ones, too.
  LaunchOptions launch_for(const protocol::DispatchParams& params) const {
    LaunchOptions options = options_now();
    if (params.follows_default_mask) options.default_mask = default_mask_;
    return options;
  }

  const int device_;
  const std::shared_ptr<FailureRecord> record_;
  LaunchOptions launch_;
  std::atomic<int> ranks_on_device_{1};  // another rank's thread may set it between steps
  cudaStream_t side_stream_ = nullptr;
  RankMask* default_mask_ = nullptr;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const PlatformOptions& options,
                                           std::shared_ptr<FailureRecord> record) {
  return std::make_unique<CudaBackend>(options, std::move(record));
}

}  // namespace moe_ep::cuda
