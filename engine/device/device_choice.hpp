#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/device/driver.hpp"

namespace troupe::engine {

/// What a user wants stages to compute on.
struct device_choice {
  enum class kind : std::uint8_t { cpu, automatic, cuda };
  kind what = kind::cpu;
  int index = 0;  ///< Of a card.

  bool operator==(const device_choice&) const = default;
};

/// Reads "cpu", "auto" or "cuda:N"; nothing: it is none of them.
[[nodiscard]] std::optional<device_choice> parse_device(std::string_view text);

/// Why the machine that this driver is of has no GPU `index` to train on, and what to do; empty:
/// it has one. Whether LibTorch can use it is another question (see reason_against).
[[nodiscard]] std::string reason_against_training_on(int index, const driver_facts& driver);

}  // namespace troupe::engine
