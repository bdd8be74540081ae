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

/// Why stages cannot be trained on card `index` of the machine that this driver is of, and what to
/// do. Never empty so far: training on cards is not there yet.
[[nodiscard]] std::string reason_against_training_on(int index, const driver_facts& driver);

/// The same for a machine whose driver nobody has asked.
[[nodiscard]] std::string_view reason_against_training_on_cards();

}  // namespace troupe::engine
