#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "engine/schedule/plan.hpp"
#include "messages/base/named_values.hpp"

namespace troupe::engine {

// Every generator makes a valid plan for any p = `stages` and m = `microbatches`, in time linear in
// the number of its actions. F, I and W are the costs of one micro-batch on a whole stage; idle
// time is that of a stage in one step; docs/schedules.md has the table and says how each formula
// was checked.

/// All forwards, then all backwards (Huang et al., "GPipe", 2019). Idle: (p-1)(F+I), since a
/// backward hands on its input's gradient before it computes those of the weights. Holds every
/// micro-batch of the step.
[[nodiscard]] plan gpipe(std::uint32_t stages, std::uint32_t microbatches);

/// One forward and one backward in turn after a warm-up (PipeDream-flush: Narayanan et al., 2021).
/// Idle as gpipe; stage r of p holds at most p-r micro-batches.
[[nodiscard]] plan one_f_one_b(std::uint32_t stages, std::uint32_t microbatches);

/// 1F1B over several chunks per stage, looped, in rounds of p micro-batches (Narayanan et al.,
/// "Efficient large-scale language model training", 2021). Idle: (p-1)(F+I)/v if p divides m.
/// Stage 0 holds the most: pv+p-1 chunks' activations.
[[nodiscard]] plan interleaved_1f1b(std::uint32_t stages, std::uint32_t microbatches,
                                    std::uint32_t chunks);

/// 1F1B with its backward split, and weight gradients late enough to fill the idle time of 1F1B at
/// the end (Qi et al., "Zero Bubble Pipeline Parallelism", 2023). Idle: (p-1)(F+I-W) for m >= p and
/// W no more than F or I. Every stage holds at most p micro-batches, as the first of 1F1B.
[[nodiscard]] plan zb_h1(std::uint32_t stages, std::uint32_t microbatches);

/// As zb_h1 with a longer warm-up that also fills the idle time of 1F1B at the beginning. Idle
/// between a stage's first and last action: (p-1)(F+I-2W) for m >= 2p-1 and W no more than F or I.
/// The stages begin (p-1)F apart, in this step and the next. Holds at most 2p-1 micro-batches.
[[nodiscard]] plan zb_h2(std::uint32_t stages, std::uint32_t microbatches);

/// Two chunks per stage, laid out as a V, so that a stage has work from both ends of the model (Qi
/// et al., "Pipeline Parallelism with Controllable Memory", 2024). If F = I = W and m >= 2p-1: no
/// idle time between a stage's first and last action; the stages begin (p-1)F/2 apart. Holds at
/// most 2p chunks' activations, which are those of p micro-batches.
[[nodiscard]] plan zb_v(std::uint32_t stages, std::uint32_t microbatches);

/// An evaluation step: every micro-batch forward, in order.
[[nodiscard]] plan forward_only(const model_layout& layout, std::uint32_t microbatches);

/// What makes a schedule's plans, and how many chunks a stage may have.
struct schedule_generator {
  /// The plan of a training step: sound for any number of stages and micro-batches, and any chunks
  /// within the bounds, laid out as `order` says.
  std::function<plan(std::uint32_t stages, std::uint32_t microbatches, std::uint32_t chunks)> make;
  std::uint32_t least_chunks = 1;
  std::uint32_t most_chunks = 1;
  chunk_order order = chunk_order::looped;
};

/// The schedules that a run can name.
using schedule_registry = named_values<schedule_generator>;

/// The built-in schedules: gpipe, 1f1b, interleaved-1f1b, zb-h1, zb-h2, zb-v.
[[nodiscard]] const schedule_registry& built_in_schedules();

/// How the steps of a pipeline are planned: by a generator, or by a given plan.
struct schedule_choice {
  std::string name = "1f1b";  ///< Of a generator; not used if a plan is given.
  std::uint32_t chunks = 0;   ///< Of each stage; 0: the least that the generator takes.
  std::optional<plan> given = std::nullopt;
  schedule_registry known = built_in_schedules();  ///< Where the name is looked up.
};

/// How that schedule distributes a model over `stages`. Errors: bad_config for an unknown name
/// (lists the known ones), sizes outside of their bounds, chunks that the generator does not take,
/// or a given plan of another number of stages.
[[nodiscard]] result<model_layout> layout_of(const schedule_choice& schedule, std::uint32_t stages);

/// The same for a model of that many slices. Errors: as above; bad_config if the stages would not
/// have equally many.
[[nodiscard]] result<model_layout> layout_for(const schedule_choice& schedule,
                                              std::uint32_t slices);

/// The plan of a training step. A given plan may have more micro-batches than the step: those that
/// the step lacks are left out. Not checked here. Errors: as `layout_of`; bad_config for
/// micro-batches outside of 1..max_microbatches, more of them than the given plan has, or a
/// generator that makes something else.
[[nodiscard]] result<plan> plan_step(const schedule_choice& schedule, std::uint32_t stages,
                                     std::uint32_t microbatches);

}  // namespace troupe::engine
