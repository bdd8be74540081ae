#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <cstdint>
#include <memory>

#include "engine/model/blocks.hpp"
#include "engine/model/model.hpp"

namespace troupe::tests {

/// The layers "one" and "two", with the weights of one seed.
inline engine::model two_linear_layers(std::int64_t inputs, std::int64_t hidden,
                                       std::int64_t outputs) {
  const auto random = at::detail::createCPUGenerator(1);
  engine::model made;
  made.push_back(std::make_unique<engine::linear>("one", inputs, hidden, random));
  made.push_back(std::make_unique<engine::linear>("two", hidden, outputs, random));
  return made;
}

}  // namespace troupe::tests
