// What is read from a pipeline's stages and given to them between steps.

#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>

#include "actors/futures/combine.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/messages/slices.hpp"
#include "actors/messages/step_end.hpp"
#include "actors/messages/transfer.hpp"
#include "actors/pipeline/pipeline_ask.hpp"
#include "actors/transfer/pieces.hpp"
#include "engine/state/scaler_state.hpp"

namespace troupe::actors {
namespace {

engine::loss_scaler scaler_with(engine::loss_scaler scaler, const loss_scale_now& then) {
  scaler.scale = then.scale;
  scaler.applied = then.applied;
  return scaler;
}

}  // namespace

std::vector<std::size_t> pipeline::owners_of_state() const {
  const std::size_t end = shares_state_ ? stages_.size() : layout_.stages;
  std::vector<std::size_t> owners;
  for (std::size_t stage = 0; stage < layout_.stages; ++stage)
    for (auto at = stage; at < end; at += layout_.stages) owners.push_back(at);
  return owners;
}

template <class Answer, class Request>
auto pipeline::pieces_of(std::size_t stage, Request request) {
  return [this, stage, request](const list_place& from) mutable -> result<tensor_piece> {
    request.from = from;
    request.most = options_.pieces;
    auto part = ask<Answer>(stages_.at(stage), request);
    if (!part) return tl::unexpected(part.error());
    return std::move(part->piece);
  };
}

template <class Answer, class Request>
result<void> pipeline::read(std::size_t stage, Request request,
                            std::vector<engine::named_tensor>& into) {
  auto all = gather_pieces(pieces_of<Answer>(stage, request));
  if (!all) return tl::unexpected(all.error());
  std::ranges::move(*all, std::back_inserter(into));
  return {};
}

template <class Answer, class Request>
result<void> pipeline::visit(std::size_t stage, Request request, const part_taker& take) {
  constexpr auto all_tensors = std::numeric_limits<std::uint64_t>::max();
  return visit_pieces(0, all_tensors, pieces_of<Answer>(stage, request), take);
}

template <class Request>
result<void> pipeline::tell_replicas(std::size_t stage, const Request& message) {
  for (auto at = stage; at < stages_.size(); at += layout_.stages)
    if (auto taken = ask<acknowledged>(stages_.at(at), message); !taken)
      return tl::unexpected(taken.error());
  return {};
}

template <class Request>
result<void> pipeline::give(std::size_t stage, Request message, const piece_source& next) {
  while (true) {
    auto piece = next();
    if (!piece) return tl::unexpected(piece.error());
    message.piece = std::move(*piece);
    if (auto taken = tell_replicas(stage, message); !taken || message.piece.last) return taken;
  }
}

template <class Request>
result<void> pipeline::load(std::size_t stage, Request message,
                            const std::vector<engine::named_tensor>& tensors) {
  return give_pieces(tensors, options_.pieces, [&](tensor_piece piece) {
    message.piece = std::move(piece);
    return tell_replicas(stage, message);
  });
}

result<engine::step_result> pipeline::dry_run(const engine::batch& batch,
                                              std::uint32_t microbatches, double loss_scale) {
  const auto loss = dry_run_unread(batch, microbatches, loss_scale);
  if (!loss) return tl::unexpected(loss.error());
  engine::step_result whole{.loss = *loss};
  for (std::size_t stage = 0; stage < layout_.stages; ++stage) {
    auto part = read<dry_run_part>(stage, read_dry_run{false}, whole.gradients).and_then([&] {
      return read<dry_run_part>(stage, read_dry_run{true}, whole.buffers);
    });
    if (!part) return tl::unexpected(part.error());
  }
  return whole;
}

result<at::Tensor> pipeline::predict(const at::Tensor& inputs) {
  const auto outcome =
      run_alone({inputs, {}}, {.kind = engine::step_kind::evaluation, .microbatches = 1});
  if (!outcome) return tl::unexpected(outcome.error());
  std::vector<engine::named_tensor> outputs;
  const auto last = layout_.slice_at(layout_.virtual_stages() - 1).stage;
  if (auto part = read<outputs_piece>(last, read_outputs{}, outputs); !part)
    return tl::unexpected(part.error());
  return outputs.front().tensor;
}

result<void> pipeline::visit_weights(std::uint32_t virtual_stage, const part_taker& take) {
  const auto [stage, chunk] = layout_.slice_at(virtual_stage);
  return visit<weights_piece>(stage, actors::read_weights{chunk}, take);
}

result<void> pipeline::visit_state(const part_taker& take) {
  for (const auto owner : owners_of_state())
    if (auto done = visit<kept_state>(owner, actors::read_state{}, take); !done) return done;
  if (!options_.scaler) return {};
  return read_scaler().and_then([&](const engine::named_tensor& kept) {
    return take({kept.name, kept.tensor});
  });
}

result<std::vector<engine::tensor_form>> pipeline::list_state() {
  std::vector<engine::tensor_form> forms;
  actors::read_state request;
  request.forms = true;
  const auto list = [&](const tensor_part& part) -> result<void> {
    if (!part.range)
      return fail(errc::bad_frame, "a form of '" + part.name + "' came without its shape");
    forms.push_back({part.name, part.tensor.scalar_type(), part.range->shape});
    return {};
  };
  for (const auto owner : owners_of_state())
    if (auto listed = visit<kept_state>(owner, request, list); !listed)
      return tl::unexpected(listed.error());
  if (!options_.scaler) return forms;
  const auto scaler = read_scaler();
  if (!scaler) return tl::unexpected(scaler.error());
  forms.push_back(engine::form_of(*scaler));
  return forms;
}

result<void> pipeline::take_versions(std::uint64_t step) {
  std::vector<future<acknowledged>> answers;
  for (const auto& stage : stages_) answers.push_back(tell(stage, take_version{step}));
  return all(std::move(answers)).get().map([](const auto&) {});
}

result<void> pipeline::adopt_versions(const std::vector<version_place>& from) {
  std::vector<future<acknowledged>> answers;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    const auto& [keeper, step] = from.at(i);
    answers.push_back(tell(stages_[i], adopt_version{keeper, static_cast<std::uint32_t>(i), step}));
  }
  return all(std::move(answers)).get().map([](const auto&) {});
}

result<std::optional<engine::loss_scaler>> pipeline::scaler_after(std::uint64_t step) {
  if (!options_.scaler || step == options_.steps_before) return options_.scaler;
  const auto then = ask<loss_scale_now>(coordinator_, read_loss_scale{step});
  if (!then) return tl::unexpected(then.error());
  return scaler_with(*options_.scaler, *then);
}

slices_under_way pipeline::write_slices(std::uint64_t step, const std::string& folder) {
  return write_slices(step, std::vector(stages_.size(), folder), false);
}

slices_under_way pipeline::write_slices(std::uint64_t step,
                                        const std::vector<std::string>& folders) {
  return write_slices(step, folders, true);
}

slices_under_way pipeline::write_slices(std::uint64_t step, const std::vector<std::string>& folders,
                                        bool is_own) {
  slices_under_way made;
  for (const auto owner : owners_of_state()) {
    const auto replica = owner / layout_.stages;
    auto ending = ".stage-" + std::to_string(owner % layout_.stages);
    if (replica > 0) ending += ".replica-" + std::to_string(replica);
    ending += ".safetensors";
    const write_slice what{step, folders.at(owner), replica > 0 ? "" : "weights" + ending,
                           "state" + ending, is_own};
    made.slices.push_back(
        {owner, what, ask_->request<slice_written>(stages_[owner], what, usual_deadlines.write)});
  }
  if (!options_.scaler || step == options_.steps_before) {
    made.scaler = settled_future<std::optional<engine::loss_scaler>>(options_.scaler);
    return made;
  }
  made.scaler = ask_->request<loss_scale_now>(coordinator_, read_loss_scale{step, true},
                                              usual_deadlines.write)
                    .then([scaler = *options_.scaler](const loss_scale_now& then) {
                      return std::optional(scaler_with(scaler, then));
                    });
  return made;
}

result<engine::named_tensor> pipeline::read_scaler() {
  const auto scaler = ask<loss_scale_now>(coordinator_, read_loss_scale{});
  if (!scaler) return tl::unexpected(scaler.error());
  return engine::named_tensor{
      std::string(engine::scaler_name),
      engine::to_tensor({.scale = scaler->scale, .applied = scaler->applied})};
}

result<void> pipeline::visit_dry_run(std::size_t stage, bool buffers, std::uint64_t first,
                                     std::uint64_t count, const part_taker& take) {
  return visit_pieces(first, count, pieces_of<dry_run_part>(stage, read_dry_run{buffers}), take);
}

result<void> pipeline::load_weights(std::uint32_t virtual_stage, const piece_source& next) {
  const auto [stage, chunk] = layout_.slice_at(virtual_stage);
  return give(stage, actors::load_weights{chunk, {}, /*partly=*/true}, next);
}

result<void> pipeline::load_state(std::size_t stage, const piece_source& next) {
  return give(stage, actors::load_state{}, next);
}

result<bool> pipeline::load_files(std::size_t stage, const actors::load_files& which) {
  bool seen = true;
  for (auto at = stage; at < stages_.size(); at += layout_.stages) {
    const auto how = load_files_at(at, which);
    if (!how) return how;
    seen = seen && *how;
  }
  return seen;
}

result<bool> pipeline::load_files_at(std::size_t place, const actors::load_files& which) {
  return ask<files_loaded>(stages_.at(place), which).map([](const files_loaded& how) {
    return how.seen;
  });
}

result<std::vector<engine::named_tensor>> pipeline::read_weights() {
  std::vector<engine::named_tensor> all;
  for (std::uint32_t at = 0; at < layout_.virtual_stages(); ++at) {
    const auto [stage, chunk] = layout_.slice_at(at);
    if (auto part = read<weights_piece>(stage, actors::read_weights{chunk}, all); !part)
      return tl::unexpected(part.error());
  }
  return all;
}

result<std::vector<engine::named_tensor>> pipeline::read_state() {
  std::vector<engine::named_tensor> all;
  for (const auto owner : owners_of_state())
    if (auto part = read<kept_state>(owner, actors::read_state{}, all); !part)
      return tl::unexpected(part.error());
  if (!options_.scaler) return all;
  auto scaler = read_scaler();
  if (!scaler) return tl::unexpected(scaler.error());
  all.push_back(std::move(*scaler));
  return all;
}

result<void> pipeline::load_weights(std::uint32_t virtual_stage,
                                    const std::vector<engine::named_tensor>& tensors) {
  const auto [stage, chunk] = layout_.slice_at(virtual_stage);
  return load(stage, actors::load_weights{chunk, {}}, tensors);
}

result<void> pipeline::load_state(std::size_t stage,
                                  const std::vector<engine::named_tensor>& tensors) {
  return load(stage, actors::load_state{}, tensors);
}

}  // namespace troupe::actors
