#include "engine/device/device_choice.hpp"

#include <charconv>

#include "messages/base/format.hpp"

namespace troupe::engine {

std::optional<device_choice> parse_device(std::string_view text) {
  constexpr std::string_view prefix = "cuda:";
  if (text == "cpu") return device_choice{};
  if (text == "auto") return device_choice{.what = device_choice::kind::automatic};
  if (!text.starts_with(prefix)) return std::nullopt;
  device_choice card{.what = device_choice::kind::cuda};
  const std::string_view digits = text.substr(prefix.size());
  const char* const end = digits.data() + digits.size();
  const auto [stop, wrong] = std::from_chars(digits.data(), end, card.index);
  if (wrong != std::errc() || stop != end || card.index < 0) return std::nullopt;
  return card;
}

std::string reason_against_training_on(int index, const driver_facts& driver) {
  if (!driver.problem.empty()) return driver.problem;
  const int cards = static_cast<int>(driver.cards.size());
  if (cards == 0) return "there is no GPU on this machine; use device = \"cpu\"";
  if (index >= cards)
    return format("there is no such GPU on this machine, which has %s; see `troupe devices`",
                  cards == 1 ? "cuda:0 alone" : format("cuda:0 to cuda:%d", cards - 1).c_str());
  return {};
}

}  // namespace troupe::engine
