// Streams, and which blocks find room on a device.
#include <algorithm>
#include <cstring>

#include "machine.hpp"

namespace moe_ep::emulator {

// Programmatic dependent launch: a kernel that asks for it may start when every block of its
// predecessor has let it go. Whoever has not ended holds back all others.
bool Machine::may_start(const Stream& stream, std::size_t index) const {
  const Operation& operation = *stream.queue[index];
  if (operation.started) return false;
  if (index == 0) return true;
  const Operation& before = *stream.queue[index - 1];
  return operation.work.early && before.started && before.work.blocks > 0 &&
         before.blocks_let_go == before.work.blocks;
}

bool Machine::is_first(const Block& block) const {
  return block.stream->queue.front().get() == block.kernel;
}

// Ends what is over and starts something. `changed_` stays set while there may be more to start, so
// that other warps get turns in between.
void Machine::advance() {
  std::vector<std::pair<Stream*, Operation*>> ready;
  for (Stream* stream : streams_) {
    while (!stream->queue.empty() && stream->queue.front()->ended)
      stream->queue.pop_front();
    for (std::size_t i = 0; i < stream->queue.size(); ++i) {
      if (may_start(*stream, i)) ready.emplace_back(stream, stream->queue[i].get());
      if (!stream->queue[i]->started) break;
    }
  }
  changed_ = !ready.empty();
  if (ready.empty() || (!busy_.empty() && draw(4) != 0)) return;
  const auto [stream, operation] = ready[draw(ready.size())];
  start(*stream, *operation);
}

void Machine::start(Stream& stream, Operation& operation) {
  last_act_ = now_;
  idle_turns_ = 0;
  operation.started = true;
  if (operation.work.blocks == 0) {
    operation.work.run();
    operation.ended = true;
    return;
  }
  stream.device->waiting.push_back({&operation, &stream});
  while (place_block(*stream.device)) {
  }
}

bool Machine::place_block(Device& device) {
  if (device.waiting.empty()) return false;
  Device::Waiting& waiting = device.waiting.front();
  const unsigned threads = (waiting.kernel->work.threads + kLanes - 1) / kLanes * kLanes;
  const std::size_t first = draw(device.free_threads.size());
  for (std::size_t i = 0; i < device.free_threads.size(); ++i) {
    const std::size_t sm = (first + i) % device.free_threads.size();
    if (device.free_threads[sm] < threads) continue;
    device.free_threads[sm] -= threads;
    start_block(waiting, sm);
    if (waiting.kernel->next_block == waiting.kernel->work.blocks) device.waiting.pop_front();
    return true;
  }
  return false;
}

void Machine::end_block(Block& block) {
  Operation& kernel = *block.kernel;
  last_act_ = now_;
  idle_turns_ = 0;
  changed_ = true;
  let_dependents_go(block);
  if (++kernel.blocks_ended == kernel.work.blocks) kernel.ended = true;
  Device& device = *block.stream->device;
  device.free_threads[block.sm] += static_cast<unsigned>(block.warps.size()) * kLanes;
  free_warps_.insert(free_warps_.end(), block.warps.begin(), block.warps.end());
  const auto at = std::find_if(blocks_.begin(), blocks_.end(),
                               [&](const auto& other) { return other.get() == &block; });
  std::swap(*at, blocks_.back());
  blocks_.pop_back();
  while (place_block(device)) {
  }
}

void Machine::let_dependents_go(Block& block) {
  if (block.let_go) return;
  block.let_go = true;
  ++block.kernel->blocks_let_go;
  changed_ = true;
}

}  // namespace moe_ep::emulator
