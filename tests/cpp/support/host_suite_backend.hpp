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
  HostSuiteBackend(const char* name, RankKind kind) : name_(name), kind_(kind) {}

  const char* name() const override { return name_; }
  RankKind kind() const override { return kind_; }
  Device device() const override { return {}; }
  std::unique_ptr<MoEEpCommunication> create(const BootstrapConfig& bootstrap,
                                             const MoEEpCommParams& params,
                                             const SuiteConfig& config) const override {
    return create_communication(bootstrap, params, config);
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
};

}  // namespace moe_ep::testing
