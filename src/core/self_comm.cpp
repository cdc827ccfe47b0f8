#include "core/communication_state.hpp"
#include "core/message.hpp"

namespace moe_ep::detail {
namespace {

// A group of one.
class SelfComm final : public CommBackend {
 public:
  int get_rank() const override { return 0; }
  int get_size() const override { return 1; }
  std::vector<std::string> allgather(std::string_view message) override {
    return {std::string(message)};
  }
  std::string bcast(std::string_view message, int root) override {
    require(root == 0, "bcast: root must be 0 in a group of one, got ", root);
    return std::string(message);
  }
  void barrier() override {}
  std::shared_ptr<CommBackend> split(int /*color*/, int /*key*/) override {
    return std::make_shared<SelfComm>();
  }
};

}  // namespace

std::shared_ptr<CommBackend> self_comm() {
  return std::make_shared<SelfComm>();
}

}  // namespace moe_ep::detail
