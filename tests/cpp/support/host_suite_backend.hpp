// The host backend as the suite sees it.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>

#include <moe_ep/host.hpp>

#include "support/step_runner.hpp"

namespace moe_ep::testing {

class HostSuiteBackend final : public SuiteBackend {
 public:
  // `transport`: what every step takes that can. An instance asked for something else keeps it.
  HostSuiteBackend(const char* name, RankKind kind, Transport transport = Transport::kFence)
      : name_(name), kind_(kind), transport_(transport) {}

  const char* name() const override { return name_; }
  RankKind kind() const override { return kind_; }
  Device device() const override { return {}; }
  SuiteConfig configure(const SuiteConfig& config) const override {
    SuiteConfig own = config;
    if (own.lamport || own.cft) return own;
    own.lamport = transport_ == Transport::kLamport;
    own.cft = transport_ == Transport::kCounted;
    if (*own.lamport && !own.lamport_max_tokens) own.lamport_max_tokens = 1 << 20;
    return own;
  }
  std::unique_ptr<MoEEpCommunication> create(const BootstrapConfig& bootstrap,
                                             const MoEEpCommParams& params,
                                             const SuiteConfig& config) const override {
    return create_communication(bootstrap, params, configure(config));
  }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) const override {
    constexpr std::size_t kAlignment = 64;
    const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return {static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)), std::free};
  }
  void upload(std::byte* to, const std::byte* from, std::size_t bytes) const override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void download(std::byte* to, const std::byte* from, std::size_t bytes) const override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

 private:
  const char* name_;
  RankKind kind_;
  Transport transport_;
};

}  // namespace moe_ep::testing
