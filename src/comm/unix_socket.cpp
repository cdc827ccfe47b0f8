#include <algorithm>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include <moe_ep/comm_backend.hpp>
#include <moe_ep/error.hpp>

#include "comm/random.hpp"
#include "comm/unix_star.hpp"

namespace moe_ep {

using detail::FrameType;

namespace {

struct ColorKey {
  std::int32_t color = 0;
  std::int32_t key = 0;
};

ColorKey parse_color_key(const std::string& bytes) {
  ColorKey value;
  if (bytes.size() != sizeof value) {
    throw MoEEpError("UnixSocketBackend.split: color and key must have 8 bytes, got " +
                     std::to_string(bytes.size()));
  }
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

void require(bool ok, const std::string& requirement_and_value) {
  if (!ok) throw std::invalid_argument("UnixSocketBackend: " + requirement_and_value);
}

}  // namespace

class UnixSocketBackend::Impl {
 public:
  Impl(const std::string& path, int rank, int size, std::chrono::milliseconds timeout)
      : path_(std::filesystem::absolute(path).string()),
        rank_(rank),
        size_(size),
        timeout_(timeout) {
    if (size > 1) star_ = detail::Star::join(path_, rank, size, timeout);
  }

  int rank() const { return rank_; }
  int size() const { return size_; }

  std::vector<std::string> run(FrameType operation, int root, std::string_view message) {
    if (star_) return star_->run(operation, root, message);
    if (operation == FrameType::kBarrier) return {};
    return {std::string(message)};
  }

  std::shared_ptr<CommBackend> split(int color, int key) {
    const ColorKey own{color, key};
    const std::vector<std::string> all =
        run(FrameType::kSplit, 0, {reinterpret_cast<const char*>(&own), sizeof own});
    std::vector<std::pair<int, int>> order;  // (key, rank) of my group
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const ColorKey other = parse_color_key(all[rank]);
      if (other.color == color) order.emplace_back(other.key, static_cast<int>(rank));
    }
    std::sort(order.begin(), order.end());
    const auto new_rank =
        std::find(order.begin(), order.end(), std::pair(key, rank_)) - order.begin();
    if (new_rank == static_cast<std::ptrdiff_t>(order.size())) {
      throw MoEEpError(
          "UnixSocketBackend.split: every rank's color and key must come back, got "
          "others for rank " +
          std::to_string(rank_));
    }
    // A group of its own, with its own sockets: it outlives this one. Its rank 0 chooses the name.
    const std::string name = new_rank == 0 ? path_ + "." + detail::random_hex(8) : std::string();
    const std::vector<std::string> names = run(FrameType::kSplit, 0, name);
    const auto leader = static_cast<std::size_t>(order.front().second);
    return std::make_shared<UnixSocketBackend>(names[leader], static_cast<int>(new_rank),
                                               static_cast<int>(order.size()), timeout_);
  }

 private:
  const std::string path_;
  const int rank_;
  const int size_;
  const std::chrono::milliseconds timeout_;
  std::unique_ptr<detail::Star> star_;  // empty in a group of one
};

UnixSocketBackend::UnixSocketBackend(const std::string& path, int rank, int world_size,
                                     std::chrono::milliseconds timeout) {
  require(world_size >= 1, "world_size must be positive, got " + std::to_string(world_size));
  require(rank >= 0 && rank < world_size,
          "rank must be in [0, " + std::to_string(world_size) + "), got " + std::to_string(rank));
  require(timeout.count() > 0,
          "timeout must be positive, got " + std::to_string(timeout.count()) + " ms");
  require(!path.empty(), "path must name a socket, got ''");
  impl_ = std::make_unique<Impl>(path, rank, world_size, timeout);
}

UnixSocketBackend::~UnixSocketBackend() = default;

int UnixSocketBackend::get_rank() const {
  return impl_->rank();
}

int UnixSocketBackend::get_size() const {
  return impl_->size();
}

std::vector<std::string> UnixSocketBackend::allgather(std::string_view message) {
  return impl_->run(FrameType::kAllgather, 0, message);
}

std::string UnixSocketBackend::bcast(std::string_view message, int root) {
  if (root < 0 || root >= get_size()) {
    throw std::invalid_argument("UnixSocketBackend.bcast: root must be in [0, " +
                                std::to_string(get_size()) + "), got " + std::to_string(root));
  }
  const bool is_root = root == get_rank();
  return impl_->run(FrameType::kBcast, root, is_root ? message : std::string_view()).front();
}

void UnixSocketBackend::barrier() {
  impl_->run(FrameType::kBarrier, 0, {});
}

std::shared_ptr<CommBackend> UnixSocketBackend::split(int color, int key) {
  return impl_->split(color, key);
}

}  // namespace moe_ep
