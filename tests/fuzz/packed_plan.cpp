// A stage's plan as another process announces it: what is read is written back as it was, and only
// what the checker accepts is proved.
#include <array>
#include <cstring>

#include "engine/schedule/generators.hpp"
#include "engine/schedule/packed_plan.hpp"
#include "engine/schedule/plan_checker.hpp"
#include "engine/step/proved_plan.hpp"
#include "tests/fuzz/target.hpp"

namespace troupe::fuzz {
namespace {

/// Sizes first, a byte each, then the numbers.
std::string packed(const engine::plan& steps, char kind) {
  const auto numbers = engine::pack(steps.stages.front().actions);
  std::string bytes{static_cast<char>(steps.microbatches), static_cast<char>(steps.chunks),
                    static_cast<char>(steps.stages.front().memory_cap), kind};
  return bytes.append(reinterpret_cast<const char*>(numbers.data()),
                      numbers.size() * sizeof(std::int32_t));
}

}  // namespace

std::vector<std::string> seeds() {
  return {packed(engine::one_f_one_b(2, 4), 0), packed(engine::zb_v(1, 2), 0),
          packed(engine::forward_only({.stages = 1, .chunks = 2}, 3), 1)};
}

void run(std::span<const std::byte> input) {
  std::array<std::uint8_t, 4> sizes{};
  const auto head = std::min(input.size(), sizes.size());
  std::memcpy(sizes.data(), input.data(), head);
  std::vector<std::int32_t> numbers((input.size() - head) / sizeof(std::int32_t));
  if (!numbers.empty())
    std::memcpy(numbers.data(), input.data() + head, numbers.size() * sizeof(std::int32_t));
  const auto actions = engine::unpack(numbers);
  if (!actions) return require(!actions.error().text.empty(), "a refusal says why");
  require(engine::pack(*actions) == numbers, "a plan survives being written");
  const auto& [microbatches, chunks, cap, is_evaluation] = sizes;
  const auto kind =
      is_evaluation == 1 ? engine::step_kind::evaluation : engine::step_kind::training;
  const engine::stage_plan steps{*actions, cap};
  const auto proved = engine::proved_plan::prove(steps, microbatches, chunks, kind);
  require(
      proved.has_value() == engine::check_stage(steps, {}, microbatches, chunks, kind).has_value(),
      "what the checker accepts is proved, and nothing else");
  if (proved) require((*proved)->actions() == *actions, "what is proved is what was read");
}

}  // namespace troupe::fuzz
