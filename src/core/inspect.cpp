#include <moe_ep/inspect.hpp>

#include "core/message.hpp"
#include "protocol/layout.hpp"
#include "protocol/transport/lamport_dispatch.hpp"

namespace moe_ep {
namespace {

using protocol::CountedAccount;
using protocol::CountedLine;
using protocol::Epoch;
using protocol::PeerLine;
using protocol::SliceHeader;
using protocol::WorkspaceLayout;

// A word that its owner may write at this moment.
template <class T>
T load(const T& word) {
  return __atomic_load_n(&word, __ATOMIC_RELAXED);
}

Epoch later(Epoch a, Epoch b) {
  return protocol::has_reached(a, b) ? a : b;
}

class SliceReader {
 public:
  SliceReader(const std::byte* slice, std::size_t bytes)
      : slice_(slice), bytes_(static_cast<std::int64_t>(bytes)) {
    const auto refuse = [](bool holds, const char* what) {
      detail::require(holds, "inspect_slice: the bytes must be a slice of the host backend, got ",
                      what);
    };
    refuse(bytes >= sizeof(SliceHeader), "too few");
    refuse(load(header().magic) == protocol::kSliceMagic, "others");
    num_ranks_ = load(header().num_ranks);
    rank_ = load(header().rank);
    refuse(num_ranks_ >= 1 && num_ranks_ <= kMaxRanks && rank_ >= 0 && rank_ < num_ranks_,
           "one that does not say whose it is");
    layout_ = WorkspaceLayout::make(num_ranks_, 0, 0, bytes_);
    lamport_lines_ = load(header().lamport_lines);
    counters_ = load(header().counters);
    accounts_ = load(header().accounts);
    const std::int64_t lamport_bytes =
        protocol::kLamportBanks * num_ranks_ * protocol::kLamportLineBytes;
    refuse(fits(layout_.send_counts, 4ll * num_ranks_) && fits(lamport_lines_, lamport_bytes) &&
               fits(counters_, static_cast<std::int64_t>(sizeof(CountedLine)) * num_ranks_) &&
               fits(accounts_, static_cast<std::int64_t>(sizeof(CountedAccount)) * num_ranks_),
           "one that is too small for what it says");
  }

  SliceInspection read() const {
    SliceInspection slice;
    slice.rank = rank_;
    slice.num_ranks = num_ranks_;
    slice.max_tokens = load(header().max_tokens);
    slice.epoch = load(header().epoch);
    for (int word = 0; word < kRankMaskWords; ++word)
      slice.active.words[word] = load(header().active.words[word]);
    slice.active = slice.active & RankMask::first(num_ranks_);
    slice.has_lamport = lamport_lines_ != 0;
    slice.has_counted = counters_ != 0;
    for (int peer = 0; peer < num_ranks_; ++peer)
      slice.peers.push_back(read_peer(peer));
    return slice;
  }

 private:
  template <class T>
  const T& at(std::int64_t offset) const {
    return *reinterpret_cast<const T*>(slice_ + offset);
  }
  const SliceHeader& header() const { return at<SliceHeader>(0); }
  // Offset 0: the region is not there.
  bool fits(std::int64_t offset, std::int64_t bytes) const {
    return offset >= 0 && offset % 8 == 0 && offset <= bytes_ && bytes <= bytes_ - offset;
  }

  PeerInspection read_peer(int rank) const {
    const auto& line = at<PeerLine>(layout_.line(rank));
    PeerInspection peer;
    peer.rank = rank;
    peer.dispatch_epoch = peer.dispatch_flag = load(line.dispatch_flag);
    peer.combine_epoch = peer.combine_flag = load(line.combine_flag);
    peer.announced_rows = load(line.num_rows);
    peer.combine_code = load(line.combine_code);
    peer.tokens_per_rank = load(line.signature.fields[protocol::kTokensPerRank]);
    const std::int32_t transport = load(line.signature.fields[protocol::kTransport]);
    const bool sent = peer.tokens_per_rank > 0;  // else nothing since the reset
    if (sent && transport >= 0 && transport <= static_cast<std::int32_t>(Transport::kCounted)) {
      peer.transport = static_cast<Transport>(transport);
    }
    peer.rows_received = load(at<std::int32_t>(layout_.recv_counts + 4ll * rank));
    peer.rows_sent = load(at<std::int32_t>(layout_.send_counts + 4ll * rank));
    if (lamport_lines_ != 0) read_tags(peer);
    if (counters_ != 0 && accounts_ != 0) {
      const auto& counters = *(&at<CountedLine>(counters_) + rank);
      const auto& account = *(&at<CountedAccount>(accounts_) + rank);
      peer.dispatch_bytes = load(counters.dispatch_bytes);
      peer.combine_bytes = load(counters.combine_bytes);
      peer.expected_dispatch_bytes = load(account.dispatch_bytes);
      peer.expected_combine_bytes = load(account.combine_bytes);
    }
    return peer;
  }

  void read_tags(PeerInspection& peer) const {
    for (std::size_t bank = 0; bank < peer.line_tags.size(); ++bank) {
      const std::int64_t line =
          lamport_lines_ +
          (static_cast<std::int64_t>(bank) * num_ranks_ + peer.rank) * protocol::kLamportLineBytes;
      const auto epoch_of = [&](std::int32_t tag) {
        return protocol::tag_epoch(load(at<std::uint64_t>(line + 8ll * tag)));
      };
      peer.line_tags[bank] = epoch_of(protocol::kLineRows);
      peer.combine_tags[bank] = epoch_of(protocol::kLineCombine);
      peer.dispatch_epoch = later(peer.dispatch_epoch, peer.line_tags[bank]);
      peer.combine_epoch = later(peer.combine_epoch, peer.combine_tags[bank]);
    }
  }

  const std::byte* slice_;
  const std::int64_t bytes_;
  int num_ranks_ = 0;
  int rank_ = 0;
  WorkspaceLayout layout_;  // of the regions in front; they depend on num_ranks alone
  std::int64_t lamport_lines_ = 0;
  std::int64_t counters_ = 0;
  std::int64_t accounts_ = 0;
};

}  // namespace

SliceInspection inspect_slice(const std::byte* slice, std::size_t bytes) {
  return SliceReader(slice, bytes).read();
}

}  // namespace moe_ep
