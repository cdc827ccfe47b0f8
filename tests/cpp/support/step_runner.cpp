#include "support/step_runner.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>

#include "support/reference.hpp"

namespace moe_ep::testing {
namespace {

std::vector<std::byte> nan_row(std::int64_t bytes) {
  return std::vector<std::byte>(static_cast<std::size_t>(bytes), std::byte{0xff});
}

}  // namespace

Tensor::Tensor(const SuiteBackend& backend, DType dtype, std::int64_t rows, std::int64_t width,
               std::int64_t row_gap, std::int64_t offset)
    : backend_(backend),
      bytes_(static_cast<std::size_t>(rows * (width + row_gap) * itemsize(dtype) + offset + 1)) {
  memory_ = backend.allocate(bytes_);
  view_ = TensorView(memory_.get() + offset, dtype, {rows, width}, backend.device());
  view_.strides[0] = width + row_gap;
}

void Tensor::set_row(std::int64_t row, const std::vector<std::byte>& bytes) {
  check(static_cast<std::int64_t>(bytes.size()) == row_bytes(), "a row of another size");
  if (bytes.empty()) return;
  backend_.upload(
      static_cast<std::byte*>(view_.data) + row * view_.stride(0) * itemsize(view_.dtype),
      bytes.data(), bytes.size());
}

std::vector<std::byte> Tensor::row(std::int64_t row) const {
  return row_of(backend_, view_, row);
}

void Tensor::fill(std::byte value) {
  const std::vector<std::byte> bytes(bytes_, value);
  backend_.upload(memory_.get(), bytes.data(), bytes.size());
}

std::vector<std::byte> row_of(const SuiteBackend& backend, const TensorView& view,
                              std::int64_t row) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(view.size(1) * itemsize(view.dtype)));
  backend.download(
      bytes.data(),
      static_cast<const std::byte*>(view.data) + row * view.stride(0) * itemsize(view.dtype),
      bytes.size());
  return bytes;
}

std::vector<std::int32_t> ints_of(const SuiteBackend& backend, const TensorView& view) {
  check(view.dtype == kInt32 && view.is_contiguous(), "int32 expected, got " + describe(view));
  std::vector<std::int32_t> values(static_cast<std::size_t>(view.numel()));
  backend.download(reinterpret_cast<std::byte*>(values.data()),
                   static_cast<const std::byte*>(view.data), values.size() * sizeof(std::int32_t));
  return values;
}

StepRunner::StepRunner(const SuiteBackend& backend, MoEEpCommunication& comm, const GroupStep& step,
                       const StepOptions& options)
    : backend_(backend),
      comm_(comm),
      step_(step),
      options_(options),
      rank_(comm.bootstrap().rank),
      ids_(backend, options.wide_ids ? kInt64 : kInt32,
           step.num_tokens[static_cast<std::size_t>(comm.bootstrap().rank)], step.top_k,
           options.row_gap, 0) {
  const std::int64_t num_tokens = step.num_tokens[static_cast<std::size_t>(rank_)];
  const auto add = [&](int kind, DType dtype, std::int64_t width) {
    Tensor tensor(backend, dtype, num_tokens, width, options.row_gap, options.offset);
    for (std::int64_t token = 0; token < num_tokens; ++token) {
      tensor.set_row(token, payload_row(step, kind, rank_, token, tensor.row_bytes()));
    }
    sent_.push_back({tensor, kind});
  };
  add(kHiddenPayload, options.hidden_dtype, options.width.value_or(step.hidden));
  if (options.weights) add(kWeightsPayload, kFloat32, step.top_k);
  if (options.scale_dtype) add(kScalePayload, *options.scale_dtype, options.scale_width);
  for (std::size_t extra = 0; extra < options.extras.size(); ++extra) {
    add(kFirstExtraPayload + static_cast<int>(extra), options.extras[extra].dtype,
        options.extras[extra].width);
  }
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    std::vector<std::byte> row(static_cast<std::size_t>(ids_.row_bytes()));
    for (std::int64_t k = 0; k < step.top_k; ++k) {
      const std::int64_t id = step.id(rank_, token, k);
      const auto narrow = static_cast<std::int32_t>(id);
      if (options.wide_ids) {
        std::memcpy(row.data() + 8 * k, &id, sizeof id);
      } else {
        check(narrow == id, "an id that needs wide_ids");
        std::memcpy(row.data() + 4 * k, &narrow, sizeof narrow);
      }
    }
    ids_.set_row(token, row);
  }
}

void StepRunner::fail(const std::string& what) const {
  std::ostringstream text;
  text << "rank " << rank_ << ", seed " << step_.seed << ", R " << step_.num_ranks << ", E "
       << step_.num_experts << ", K " << step_.top_k << ", H " << step_.hidden << ", T "
       << step_.tokens_per_rank << ": " << what;
  throw std::runtime_error(text.str());
}

void StepRunner::send() {
  DispatchInputs inputs;
  inputs.topk_ids = ids_.view();
  for (const Sent& sent : sent_) {
    switch (sent.kind) {
      case kHiddenPayload:
        inputs.hidden_states = sent.tensor.view();
        break;
      case kWeightsPayload:
        inputs.topk_weights = sent.tensor.view();
        break;
      case kScalePayload:
        inputs.hidden_states_scale = sent.tensor.view();
        break;
      default:
        inputs.extra_payloads.push_back(
            {"extra" + std::to_string(sent.kind - kFirstExtraPayload), sent.tensor.view()});
    }
  }
  inputs.runtime_max_tokens_per_rank = step_.tokens_per_rank;
  if (options_.pass_mask) inputs.active_rank_mask = step_.active;
  received_ = comm_.dispatch(inputs);
}

void StepRunner::settle() const {
  backend_.wait();
  comm_.check();
}

std::vector<std::int64_t> StepRunner::placed(int src) const {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(step_.tokens_per_rank), -1);
  const bool by_token = comm_.last_transport() == Transport::kLamport;
  std::size_t next = 0;
  for (const std::int64_t token : reference::arrivals(step_, src, rank_))
    rows[by_token ? static_cast<std::size_t>(token) : next++] = token;
  return rows;
}

void StepRunner::check_payload(const TensorView& view, const Sent& sent) const {
  const TensorView& like = sent.tensor.view();
  const std::int64_t rows = step_.num_ranks * step_.tokens_per_rank;
  if (view.dtype != like.dtype || view.ndim != 2 || view.size(0) != rows ||
      view.size(1) != like.size(1) || !view.is_contiguous()) {
    fail("payload " + std::to_string(sent.kind) + " came as " + describe(view));
  }
  for (int src = 0; src < step_.num_ranks; ++src) {
    const auto tokens = placed(src);
    for (std::size_t row = 0; row < tokens.size(); ++row) {
      if (tokens[row] < 0) continue;
      const auto index = src * step_.tokens_per_rank + static_cast<std::int64_t>(row);
      if (row_of(backend_, view, index) !=
          payload_row(step_, sent.kind, src, tokens[row], sent.tensor.row_bytes())) {
        fail("payload " + std::to_string(sent.kind) + " of rank " + std::to_string(src) +
             "'s token " + std::to_string(tokens[row]) + " differs in row " +
             std::to_string(index));
      }
    }
  }
}

void StepRunner::check_received() const {
  if (received_.tokens_per_rank != step_.tokens_per_rank) fail("another tokens_per_rank");
  for (const Sent& sent : sent_) {
    switch (sent.kind) {
      case kHiddenPayload:
        check_payload(received_.hidden_states, sent);
        break;
      case kWeightsPayload:
        check_payload(received_.topk_weights.value(), sent);
        break;
      case kScalePayload:
        check_payload(received_.hidden_states_scale.value(), sent);
        break;
      default: {
        const auto extra = static_cast<std::size_t>(sent.kind - kFirstExtraPayload);
        check_payload(received_.extra_payloads.at(extra).tensor, sent);
        if (received_.extra_payloads[extra].name != "extra" + std::to_string(extra)) {
          fail("an extra payload under another name");
        }
      }
    }
  }
  if (!options_.weights && received_.topk_weights) fail("weights that nobody sent");
  if (!options_.scale_dtype && received_.hidden_states_scale) fail("scales that nobody sent");
  const auto counts = ints_of(backend_, received_.recv_counts);
  const auto ids = ints_of(backend_, received_.topk_ids);
  if (received_.topk_ids.size(0) != step_.num_ranks * step_.tokens_per_rank ||
      received_.topk_ids.size(1) != step_.top_k) {
    fail("ids came as " + describe(received_.topk_ids));
  }
  for (int src = 0; src < step_.num_ranks; ++src) {
    const auto tokens = placed(src);
    const std::size_t num_arrivals = reference::arrivals(step_, src, rank_).size();
    if (counts[static_cast<std::size_t>(src)] != static_cast<std::int64_t>(num_arrivals)) {
      fail("rank " + std::to_string(src) + " sent " + std::to_string(num_arrivals) +
           " tokens, recv_counts says " + std::to_string(counts[static_cast<std::size_t>(src)]));
    }
    for (std::int64_t row = 0; row < step_.tokens_per_rank; ++row) {
      for (std::int64_t k = 0; k < step_.top_k; ++k) {
        const auto index = (src * step_.tokens_per_rank + row) * step_.top_k + k;
        const std::int32_t got = ids[static_cast<std::size_t>(index)];
        std::int64_t want = step_.invalid_expert_id;
        bool void_pick = false;
        if (tokens[static_cast<std::size_t>(row)] >= 0) {
          want = step_.id(src, tokens[static_cast<std::size_t>(row)], k);
          void_pick = reference::owner(want, step_.num_experts, step_.num_ranks) < 0;
        }
        // A void pick arrives as given or as invalid_expert_id.
        if (got == want || (void_pick && got == step_.invalid_expert_id)) continue;
        fail("id " + std::to_string(k) + " of row " + std::to_string(row) + " of rank " +
             std::to_string(src) + " must be " + std::to_string(want) + ", got " +
             std::to_string(got));
      }
    }
  }
}

void StepRunner::combine() {
  const std::int64_t rows = step_.num_ranks * step_.tokens_per_rank;
  std::optional<Tensor> external;
  TensorView answers = comm_.get_combine_input_buffer(step_.dtype);
  if (answers.size(0) != rows || answers.size(1) != step_.hidden) {
    fail("combine input buffer came as " + describe(answers));
  }
  if (!options_.in_place) {
    external.emplace(backend_, step_.dtype, rows, step_.hidden, options_.row_gap,
                     options_.offset - options_.offset % itemsize(step_.dtype));
    answers = external->view();
  }
  const std::int64_t row_bytes = step_.hidden * itemsize(step_.dtype);
  for (int src = 0; src < step_.num_ranks; ++src) {
    const auto tokens = placed(src);
    for (std::int64_t row = 0; row < step_.tokens_per_rank; ++row) {
      const std::int64_t token = tokens[static_cast<std::size_t>(row)];
      const auto bytes = token < 0 ? nan_row(row_bytes) : expert_row(step_, rank_, src, token);
      const std::int64_t index = src * step_.tokens_per_rank + row;
      backend_.upload(
          static_cast<std::byte*>(answers.data) + index * answers.stride(0) * itemsize(step_.dtype),
          bytes.data(), bytes.size());
    }
  }
  const std::int64_t num_tokens = step_.num_tokens[static_cast<std::size_t>(rank_)];
  if (comm_.num_local_tokens() != num_tokens) fail("another num_local_tokens");
  Tensor output(backend_, step_.dtype, num_tokens, step_.hidden);
  output.fill(std::byte{0x5a});
  comm_.combine(answers, output.view(),
                options_.pass_mask ? std::optional(step_.active) : std::nullopt);
  settle();
  results_.clear();
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    results_.push_back(output.row(token));
    check_result(token, results_.back());
  }
}

void StepRunner::check_result(std::int64_t token, const std::vector<std::byte>& row) const {
  const auto rows = reference::contributions(step_, rank_, token);
  for (std::size_t element = 0; element < static_cast<std::size_t>(step_.hidden); ++element) {
    const std::byte* at = row.data() + element * static_cast<std::size_t>(itemsize(step_.dtype));
    if (!options_.low_precision) {
      const double want = reference::rounded(step_.dtype, reference::sum(rows, element));
      if (reference::is_value(step_.dtype, at, want)) continue;
      std::ostringstream text;
      text << "element " << element << " of token " << token << " must be " << want << ", got "
           << reference::decode(step_.dtype, at);
      fail(text.str());
    }
    double exact = 0;
    bool finite = true;
    for (const auto& contribution : rows) {
      finite = finite && std::isfinite(contribution[element]);
      exact += contribution[element];
    }
    const double got = reference::decode(step_.dtype, at);
    if (!finite) {
      if (!std::isnan(got)) fail("a non-finite element must give NaN");
      continue;
    }
    const double largest = std::max(std::fabs(exact), std::fabs(got));
    const double bound = reference::low_precision_bound(rows, element, step_.dtype, largest);
    if (std::fabs(got - exact) <= bound) continue;
    std::ostringstream text;
    text << "element " << element << " of token " << token << " must be within " << bound << " of "
         << exact << ", got " << got;
    fail(text.str());
  }
}

void run_step(const SuiteBackend& backend, MoEEpCommunication& comm, const GroupStep& step,
              const StepOptions& options) {
  StepRunner runner(backend, comm, step, options);
  runner.dispatch();
  runner.combine();
}

}  // namespace moe_ep::testing
