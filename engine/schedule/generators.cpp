#include "engine/schedule/generators.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "messages/base/near_miss.hpp"

namespace troupe::engine {
namespace {

/// Writes one stage's actions, counting micro-batches by chunk and kind.
class stage_writer {
 public:
  stage_writer(std::uint32_t chunks, std::uint32_t microbatches)
      : next_(chunks), microbatches_(microbatches) {
    made_.actions.reserve(std::size_t{3} * chunks * microbatches);
  }

  /// Appends the next action of that kind; the micro-batches beyond the step are counted only.
  void add(action_kind kind, std::uint32_t chunk = 0) {
    auto& [forwards, gradients, weights] = next_[chunk];
    const std::uint32_t index = kind == action_kind::forward           ? forwards++
                                : kind == action_kind::weight_gradient ? weights++
                                                                       : gradients++;
    if (kind == action_kind::backward) ++weights;
    if (index < microbatches_) made_.actions.push_back({kind, {index}, chunk});
  }
  void forward(std::uint32_t chunk = 0) { add(action_kind::forward, chunk); }
  void backward(std::uint32_t chunk = 0) { add(action_kind::backward, chunk); }
  void input_gradient(std::uint32_t chunk = 0) { add(action_kind::input_gradient, chunk); }
  void weight_gradient(std::uint32_t chunk = 0) { add(action_kind::weight_gradient, chunk); }

  [[nodiscard]] std::uint32_t forwards(std::uint32_t chunk = 0) const {
    return next_[chunk].forwards;
  }

  stage_plan finish(std::uint32_t memory_cap) {
    made_.memory_cap = memory_cap;
    return std::move(made_);
  }

 private:
  struct counts {
    std::uint32_t forwards = 0, gradients = 0, weights = 0;
  };
  std::vector<counts> next_;
  std::uint32_t microbatches_;
  stage_plan made_;
};

/// 1F1B with split backwards: `warm_up` forwards first, and weight gradients `lag` micro-batches
/// after their input gradients.
stage_plan split_1f1b(std::uint32_t microbatches, std::uint32_t warm_up, std::uint32_t lag,
                      std::uint32_t cap) {
  stage_writer stage(1, microbatches);
  for (std::uint32_t i = 0; i < warm_up; ++i) stage.forward();
  for (std::uint32_t i = 0; i < microbatches; ++i) {
    stage.input_gradient();
    if (i >= lag) stage.weight_gradient();
    stage.forward();
  }
  for (std::uint32_t i = 0; i < lag; ++i) stage.weight_gradient();
  return stage.finish(std::min(cap, microbatches));
}

/// Stage r of p of the V. Chunk 0 goes down from stage 0, chunk 1 comes back up to it. `rounds`: at
/// least 2p-1 micro-batches, so that every phase below has its full length.
stage_plan v_stage(std::uint32_t p, std::uint32_t r, std::uint32_t microbatches,
                   std::uint32_t rounds) {
  stage_writer stage(2, microbatches);
  const auto backward = [&](std::uint32_t chunk) {
    stage.input_gradient(chunk);
    stage.weight_gradient(chunk);
  };
  // Until chunk 1 gets its first input, then until it gets its first gradient.
  for (std::uint32_t i = 0; i < 2 * (p - r) - 1; ++i) stage.forward(0);
  for (std::uint32_t i = 0; i < r; ++i) {
    stage.forward(1);
    stage.forward(0);
  }
  // Until chunk 0 gets its first gradient.
  for (std::uint32_t i = 0; i < p - r; ++i) {
    stage.forward(1);
    backward(1);
  }
  while (stage.forwards(1) < stage.forwards(0) || stage.forwards(0) < rounds) {
    if (stage.forwards(0) < rounds) stage.forward(0);
    backward(0);
    stage.forward(1);
    backward(1);
  }
  // Input gradients first, for the stages that wait for them; weight gradients fill the end.
  for (std::uint32_t i = 0; i < r; ++i) {
    stage.input_gradient(0);
    stage.input_gradient(1);
  }
  for (std::uint32_t i = 0; i < p - r; ++i) {
    stage.input_gradient(0);
    stage.weight_gradient(0);
  }
  for (std::uint32_t i = 0; i < r; ++i) stage.weight_gradient(1);
  for (std::uint32_t i = 0; i < r; ++i) stage.weight_gradient(0);
  return stage.finish(2 * std::min(p, microbatches));
}

template <plan (*make)(std::uint32_t, std::uint32_t)>
plan without_chunks(std::uint32_t stages, std::uint32_t microbatches, std::uint32_t /*chunks*/) {
  return make(stages, microbatches);
}

schedule_registry make_built_in() {
  schedule_registry made;
  made.add("gpipe", {without_chunks<gpipe>});
  made.add("1f1b", {without_chunks<one_f_one_b>});
  made.add("interleaved-1f1b", {interleaved_1f1b, 2, max_chunks});
  made.add("zb-h1", {without_chunks<zb_h1>});
  made.add("zb-h2", {without_chunks<zb_h2>});
  made.add("zb-v", {without_chunks<zb_v>, 2, 2, chunk_order::v_shaped});
  return made;
}

result<void> check_size(std::string_view what, std::uint32_t value, std::uint32_t least,
                        std::uint32_t most) {
  if (value >= least && value <= most) return {};
  return fail(errc::bad_config, std::string(what) + " = " + std::to_string(value) +
                                    " is out of range: " + std::to_string(least) +
                                    (least == most ? "" : " to " + std::to_string(most)));
}

result<const schedule_generator*> find_generator(const schedule_choice& schedule) {
  if (const auto* found = schedule.known.find(schedule.name)) return found;
  return fail(errc::bad_config, "no schedule called '" + schedule.name +
                                    "'; known schedules: " + join(schedule.known.names()));
}

result<void> check_given(const plan& given, std::uint32_t stages) {
  if (given.stages.size() == stages) return {};
  return fail(errc::bad_config, "the plan '" + given.schedule + "' is for " +
                                    std::to_string(given.stages.size()) + " stages, not for " +
                                    std::to_string(stages));
}

// Leaves out all micro-batches from `microbatches` on. What is left of a sound plan is sound: every
// wait that remains was there before.
plan shortened(plan steps, std::uint32_t microbatches) {
  if (microbatches >= steps.microbatches) return steps;
  steps.microbatches = microbatches;
  for (auto& stage : steps.stages)
    std::erase_if(stage.actions, [microbatches](const action& what) {
      return what.microbatch.value >= microbatches;
    });
  return steps;
}

}  // namespace

plan gpipe(std::uint32_t stages, std::uint32_t microbatches) {
  stage_writer stage(1, microbatches);
  for (std::uint32_t i = 0; i < microbatches; ++i) stage.forward();
  for (std::uint32_t i = 0; i < microbatches; ++i) stage.backward();
  return {"gpipe", microbatches, std::vector<stage_plan>(stages, stage.finish(microbatches))};
}

plan one_f_one_b(std::uint32_t stages, std::uint32_t microbatches) {
  plan made{"1f1b", microbatches, {}};
  for (std::uint32_t r = 0; r < stages; ++r) {
    stage_writer stage(1, microbatches);
    const std::uint32_t held = std::min(microbatches, stages - r);
    for (std::uint32_t i = 0; i < held; ++i) stage.forward();
    for (std::uint32_t i = 0; i < microbatches; ++i) {
      stage.backward();
      stage.forward();
    }
    made.stages.push_back(stage.finish(held));
  }
  return made;
}

// Made for whole rounds of p micro-batches; those of the last round that the step lacks are left
// out (see `shortened`).
plan interleaved_1f1b(std::uint32_t stages, std::uint32_t microbatches, std::uint32_t chunks) {
  plan made{"interleaved-1f1b", microbatches, {}, chunks};
  const std::uint32_t rounds = (microbatches + stages - 1) / stages;
  const std::uint32_t total = rounds * stages * chunks;
  const auto chunk_of = [&](std::uint32_t n) { return n / stages % chunks; };
  for (std::uint32_t r = 0; r < stages; ++r) {
    stage_writer stage(chunks, microbatches);
    const std::uint32_t held = std::min(total, 2 * (stages - r - 1) + (chunks - 1) * stages + 1);
    for (std::uint32_t n = 0; n < held; ++n) stage.forward(chunk_of(n));
    for (std::uint32_t n = 0; n < total; ++n) {
      stage.backward(chunks - 1 - chunk_of(n));
      if (held + n < total) stage.forward(chunk_of(held + n));
    }
    made.stages.push_back(stage.finish(std::min(held, chunks * microbatches)));
  }
  return made;
}

plan zb_h1(std::uint32_t stages, std::uint32_t microbatches) {
  plan made{"zb-h1", microbatches, {}};
  for (std::uint32_t r = 0; r < stages; ++r)
    made.stages.push_back(split_1f1b(microbatches, stages - r, r, stages));
  return made;
}

plan zb_h2(std::uint32_t stages, std::uint32_t microbatches) {
  plan made{"zb-h2", microbatches, {}};
  for (std::uint32_t r = 0; r < stages; ++r)
    made.stages.push_back(split_1f1b(microbatches, 2 * (stages - r) - 1, 2 * r, 2 * stages - 1));
  return made;
}

plan zb_v(std::uint32_t stages, std::uint32_t microbatches) {
  plan made{"zb-v", microbatches, {}, 2, chunk_order::v_shaped};
  const std::uint32_t rounds = std::max(microbatches, 2 * stages - 1);
  for (std::uint32_t r = 0; r < stages; ++r)
    made.stages.push_back(v_stage(stages, r, microbatches, rounds));
  return made;
}

// A stage does its forwards in the order of the time at which each could run, were all of one
// length: virtual stage k gets a micro-batch k after it has entered the model.
plan forward_only(const model_layout& layout, std::uint32_t microbatches) {
  plan made{"forward_only", microbatches, {}, layout.chunks, layout.order};
  const auto entered = [&](std::uint32_t i) -> std::uint64_t {
    if (layout.order == chunk_order::v_shaped) return std::uint64_t{layout.chunks} * i;
    return std::uint64_t{i / layout.stages} * layout.virtual_stages() + i % layout.stages;
  };
  for (std::uint32_t s = 0; s < layout.stages; ++s) {
    std::vector<std::pair<std::uint64_t, action>> timed;
    for (std::uint32_t chunk = 0; chunk < layout.chunks; ++chunk)
      for (std::uint32_t i = 0; i < microbatches; ++i)
        timed.emplace_back(entered(i) + layout.virtual_stage_of({s, chunk}),
                           action{action_kind::forward, {i}, chunk});
    std::ranges::stable_sort(timed, {}, [](const auto& each) { return each.first; });
    stage_plan stage{{}, 1};
    for (const auto& [time, what] : timed) stage.actions.push_back(what);
    made.stages.push_back(std::move(stage));
  }
  return made;
}

const schedule_registry& built_in_schedules() {
  static const schedule_registry made = make_built_in();
  return made;
}

result<model_layout> layout_of(const schedule_choice& schedule, std::uint32_t stages) {
  if (auto good = check_size("stages", stages, 1, max_stages); !good)
    return tl::unexpected(good.error());
  if (schedule.given) {
    if (auto good = check_given(*schedule.given, stages); !good)
      return tl::unexpected(good.error());
    return schedule.given->layout();
  }
  const auto found = find_generator(schedule);
  if (!found) return tl::unexpected(found.error());
  const auto& [make, least, most, order] = **found;
  const std::uint32_t chunks = schedule.chunks == 0 ? least : schedule.chunks;
  if (auto good = check_size("chunks of " + schedule.name, chunks, least, most); !good)
    return tl::unexpected(good.error());
  return model_layout{stages, chunks, order};
}

result<model_layout> layout_for(const schedule_choice& schedule, std::uint32_t slices) {
  auto one =
      schedule.given ? result<model_layout>(schedule.given->layout()) : layout_of(schedule, 1);
  if (!one) return one;
  if (slices % one->chunks != 0)
    return fail(errc::bad_config, std::to_string(slices) + " slices of the model cannot lie on " +
                                      "stages of " + std::to_string(one->chunks) + " chunks");
  return layout_of(schedule, slices / one->chunks);
}

result<plan> plan_step(const schedule_choice& schedule, std::uint32_t stages,
                       std::uint32_t microbatches) {
  const auto layout = layout_of(schedule, stages);
  if (!layout) return tl::unexpected(layout.error());
  const std::uint32_t most = schedule.given ? schedule.given->microbatches : max_microbatches;
  if (auto good = check_size("micro-batches", microbatches, 1, most); !good)
    return tl::unexpected(good.error());
  if (schedule.given) return shortened(*schedule.given, microbatches);
  auto made = (*find_generator(schedule))->make(stages, microbatches, layout->chunks);
  if (made.layout() == *layout && made.microbatches == microbatches) return made;
  return fail(errc::bad_config, "the schedule '" + schedule.name +
                                    "' makes plans of other stages, chunks or micro-batches than "
                                    "it was asked for");
}

}  // namespace troupe::engine
