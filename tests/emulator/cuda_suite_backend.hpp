// NVLinkOneSidedAlltoAll on the emulated machine as the behaviour suite sees it: ranks are threads,
// each with a stream of its own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include <moe_ep/nvlink.hpp>

#include "cuda/check.hpp"
#include "machine.hpp"
#include "support/step_runner.hpp"

namespace moe_ep::testing {

class CudaSuiteBackend final : public SuiteBackend {
  struct OwnStream {
    OwnStream() { MOE_EP_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
    ~OwnStream() { cudaStreamDestroy(stream); }
    cudaStream_t stream = nullptr;
  };

 public:
  // `neighbours` ranks have a GPU, the next ones the next one, and so on in circles.
  CudaSuiteBackend(const char* name, Transport transport, int neighbours)
      : name_(name), transport_(transport), neighbours_(neighbours) {}

  const char* name() const override { return name_; }
  RankKind kind() const override { return RankKind::kThreads; }
  // The calling thread's.
  Device device() const override {
    int current = 0;
    MOE_EP_CUDA_CHECK(cudaGetDevice(&current));
    return {Device::kCuda, current};
  }
  SuiteConfig configure(const SuiteConfig& config) const override {
    SuiteConfig own = config;
    if (own.lamport || own.cft) return own;
    own.lamport = is_lamport();
    if (*own.lamport && !own.lamport_max_tokens) own.lamport_max_tokens = 1 << 20;
    return own;
  }
  std::unique_ptr<MoEEpCommunication> create(const BootstrapConfig& bootstrap,
                                             const MoEEpCommParams& params,
                                             const SuiteConfig& config) const override {
    const SuiteConfig own = configure(config);
    NVLinkOneSidedConfig options;
    options.extra_payload_bytes_per_token = own.extra_payload_bytes_per_token;
    options.eplb_stats_num_experts = own.eplb_stats_num_experts;
    options.enable_rank_mask = own.enable_rank_mask;
    options.use_low_precision_combine = own.use_low_precision_combine;
    options.comm_backend = own.comm_backend;
    options.cft = own.cft;
    options.lamport = own.lamport;
    options.lamport_max_tokens = own.lamport_max_tokens;
    options.timeout_sec = own.timeout_sec;
    options.share_workspace = own.share_workspace;
    if (is_lamport()) options.max_sms = 2;  // its kernels take what they get
    BootstrapConfig placed = bootstrap;
    if (!emulator::has_current_context()) {
      const int num_devices = emulator::Machine::get().config().num_devices;
      MOE_EP_CUDA_CHECK(cudaSetDevice(bootstrap.rank / neighbours_ % num_devices));
    }
    placed.stream = reinterpret_cast<std::uintptr_t>(stream());
    return create_communication(placed, params, options);
  }

  // Plain memory, given back in the order of the stream. cudaFree() would wait for the device,
  // where another rank's kernel may wait for this one's next step.
  std::shared_ptr<std::byte> allocate(std::size_t bytes) const override {
    constexpr std::size_t kAlignment = 256;
    const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
    return {memory, [own = stream()](std::byte* freed) {
              cudaLaunchHostFunc(own, [](void* data) { std::free(data); }, freed);
            }};
  }
  void upload(std::byte* to, const std::byte* from, std::size_t bytes) const override {
    wait();
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void download(std::byte* to, const std::byte* from, std::size_t bytes) const override {
    wait();
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

  void wait() const override { MOE_EP_CUDA_CHECK(cudaStreamSynchronize(stream())); }
  // The calling thread's.
  static cudaStream_t stream() {
    thread_local const OwnStream own;
    return own.stream;
  }
  std::chrono::nanoseconds now() const override {
    return std::chrono::nanoseconds(emulator::Machine::get().host_now());
  }
  std::uint64_t rounds(std::uint64_t usual) const override {
    if (usual < 10) return usual;
    return is_lamport() ? 3 + usual / 40 : 5 + usual / 20;
  }
  int max_ranks() const override { return is_lamport() ? 8 : 16; }  // a multiprocessor each

 private:
  bool is_lamport() const { return transport_ == Transport::kLamport; }

  const char* name_;
  const Transport transport_;
  const int neighbours_;
};

// Two ranks and more on a GPU, and up to four ranks with a GPU each.
inline const CudaSuiteBackend kCudaFence("fence", Transport::kFence, 2);
inline const CudaSuiteBackend kCudaLamport("lamport", Transport::kLamport, 1);

}  // namespace moe_ep::testing
