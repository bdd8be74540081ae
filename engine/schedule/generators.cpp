#include "engine/schedule/generators.hpp"

#include <algorithm>
#include <array>
#include <string>

namespace troupe::engine {
namespace {

action forward(std::uint32_t microbatch) {
  return {action_kind::forward, {microbatch}};
}
action backward(std::uint32_t microbatch) {
  return {action_kind::backward, {microbatch}};
}

struct generator {
  std::string_view name;
  plan (*make)(std::uint32_t stages, std::uint32_t microbatches);
};

constexpr std::array generators{generator{"gpipe", gpipe}, generator{"1f1b", one_f_one_b}};

result<void> check_size(std::string_view what, std::uint32_t value, std::uint32_t most) {
  if (value >= 1 && value <= most) return {};
  return fail(errc::bad_config, std::string(what) + " = " + std::to_string(value) +
                                    " is out of range: 1 to " + std::to_string(most));
}

}  // namespace

plan gpipe(std::uint32_t stages, std::uint32_t microbatches) {
  stage_plan same;
  same.memory_cap = microbatches;
  for (std::uint32_t i = 0; i < microbatches; ++i) same.actions.push_back(forward(i));
  for (std::uint32_t i = 0; i < microbatches; ++i) same.actions.push_back(backward(i));
  return {"gpipe", microbatches, std::vector<stage_plan>(stages, same)};
}

plan one_f_one_b(std::uint32_t stages, std::uint32_t microbatches) {
  plan made{"1f1b", microbatches, {}};
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    const std::uint32_t held = std::min(microbatches, stages - stage);
    stage_plan one;
    one.memory_cap = held;
    std::uint32_t next = 0;
    while (next + 1 < held) one.actions.push_back(forward(next++));
    for (std::uint32_t done = 0; done < microbatches; ++done) {
      if (next < microbatches) one.actions.push_back(forward(next++));
      one.actions.push_back(backward(done));
    }
    made.stages.push_back(std::move(one));
  }
  return made;
}

plan forward_only(std::uint32_t stages, std::uint32_t microbatches) {
  stage_plan same;
  same.memory_cap = 1;
  for (std::uint32_t i = 0; i < microbatches; ++i) same.actions.push_back(forward(i));
  return {"forward_only", microbatches, std::vector<stage_plan>(stages, same)};
}

result<plan> make_plan(std::string_view name, std::uint32_t stages, std::uint32_t microbatches) {
  if (auto good = check_size("stages", stages, max_stages); !good)
    return tl::unexpected(good.error());
  if (auto good = check_size("microbatches", microbatches, max_microbatches); !good)
    return tl::unexpected(good.error());
  std::string known;
  for (const auto& entry : generators) {
    if (entry.name == name) return entry.make(stages, microbatches);
    known += known.empty() ? "" : ", ";
    known += entry.name;
  }
  return fail(errc::bad_config,
              "no schedule called '" + std::string(name) + "'; known schedules: " + known);
}

}  // namespace troupe::engine
