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

assigned_device assign_device(const usable_cards& cards, std::uint32_t seat, std::uint32_t seats) {
  const auto& all = cards.indices;
  if (all.empty())
    return {.device = "cpu",
            .said = "device = \"auto\": stages compute on the CPU, for no GPU can be used: " +
                    cards.why_none};
  assigned_device made{.device = format("cuda:%d", all[seat % all.size()])};
  if (seats > all.size())
    made.said = format(
        "device = \"auto\": %u stages share %zu GPU%s, for there are no more: use "
        "fewer stages, or more machines",
        seats, all.size(), all.size() == 1 ? "" : "s");
  return made;
}

}  // namespace troupe::engine
