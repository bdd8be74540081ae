#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

/// The GPUs of a machine that stages can be trained on.
struct usable_cards {
  std::vector<int> indices = {};  ///< As in "cuda:0", rising.
  std::string why_none = {};      ///< And what to do; where there are none.

  bool operator==(const usable_cards&) const = default;
};

/// What a stage with device = "auto" computes on, and what its user is to know of it.
struct assigned_device {
  std::string device = "cpu";
  std::string said = {};  ///< For all stages of the machine; empty: each has a GPU of its own.

  bool operator==(const assigned_device&) const = default;
};

/// The device of stage `seat` of the `seats` stages of a machine that have device = "auto": a card
/// each, in their order. Where there are fewer cards, stages share them in turn; without any, all
/// stages compute on the CPU.
[[nodiscard]] assigned_device assign_device(const usable_cards& cards, std::uint32_t seat,
                                            std::uint32_t seats);

}  // namespace troupe::engine
