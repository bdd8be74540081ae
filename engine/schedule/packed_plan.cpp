#include "engine/schedule/packed_plan.hpp"

#include <bit>
#include <cstddef>
#include <string>

namespace troupe::engine {
namespace {

// From the lowest bit: the kind, the chunk, the micro-batch.
constexpr int kind_bits = 2;
constexpr int chunk_bits = std::bit_width(max_chunks - 1);
constexpr int microbatch_bits = std::bit_width(max_microbatches - 1);
constexpr std::int32_t end_of_actions = 1 << (kind_bits + chunk_bits + microbatch_bits);
static_assert(std::has_single_bit(max_chunks) && std::has_single_bit(max_microbatches),
              "every number below the end is an action");

/// Of one stage: F, I and W of each micro-batch in each chunk.
constexpr std::size_t most_actions = std::size_t{3} * max_chunks * max_microbatches;

}  // namespace

std::vector<std::int32_t> pack(const std::vector<action>& actions) {
  std::vector<std::int32_t> numbers;
  numbers.reserve(actions.size());
  for (const auto& [kind, microbatch, chunk] : actions)
    numbers.push_back(static_cast<std::int32_t>(
        static_cast<std::uint32_t>(kind) | chunk << kind_bits |
        static_cast<std::uint32_t>(microbatch.value) << (kind_bits + chunk_bits)));
  return numbers;
}

result<std::vector<action>> unpack(std::span<const std::int32_t> numbers) {
  if (numbers.size() > most_actions)
    return fail(errc::bad_frame, "a stage's plan of " + std::to_string(numbers.size()) +
                                     " actions: the most is " + std::to_string(most_actions));
  std::vector<action> actions;
  actions.reserve(numbers.size());
  for (const std::int32_t number : numbers) {
    if (number < 0 || number >= end_of_actions)
      return fail(errc::bad_frame, "action " + std::to_string(actions.size()) +
                                       " of a stage's plan is none: " + std::to_string(number));
    const auto bits = static_cast<std::uint32_t>(number);
    actions.push_back({static_cast<action_kind>(bits & ((1U << kind_bits) - 1)),
                       {bits >> (kind_bits + chunk_bits)},
                       (bits >> kind_bits) & (max_chunks - 1)});
  }
  return actions;
}

}  // namespace troupe::engine
