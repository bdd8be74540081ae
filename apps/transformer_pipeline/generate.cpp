#include "apps/transformer_pipeline/generate.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/softmax.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "engine/base/random.hpp"
#include "engine/data/utf8.hpp"
#include "messages/base/format.hpp"

namespace troupe::apps {
namespace {

/// [1, T] i64
at::Tensor tokens_of(std::string_view text) {
  auto tokens = at::empty({1, static_cast<std::int64_t>(text.size())}, at::kLong);
  std::ranges::transform(text, tokens.mutable_data_ptr<std::int64_t>(),
                         [](char c) { return static_cast<unsigned char>(c); });
  return tokens;
}

/// [tokens] f32, of what comes behind the last one of those that were scored
at::Tensor chances(const at::Tensor& scores, double temperature) {
  return at::softmax(scores.select(0, 0).select(0, -1).to(at::kFloat).div(temperature), 0)
      .contiguous();
}

/// Whether a terminal might act on a character instead of showing it: C0 but for line end and tab,
/// DEL, and C1.
bool is_control(std::string_view character) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 2) return at(0) == 0xc2 && at(1) < 0xa0;
  return character.size() == 1 && character != "\n" && character != "\t" &&
         (at(0) < 0x20 || at(0) == 0x7f);
}

char draw(const at::Tensor& chances, engine::splitmix64& random) {
  double left = static_cast<double>(random.next() >> 11) * 0x1p-53;  // [0, 1)
  const auto* chance = chances.const_data_ptr<float>();
  std::int64_t token = 0;
  while (token + 1 < chances.numel() && left >= chance[token]) left -= chance[token++];
  return static_cast<char>(token);
}

}  // namespace

result<std::string> generate(const token_predictor& predict, const std::string& prompt,
                             const generation& how) {
  const c10::NoGradGuard no_grad;
  engine::splitmix64 random(how.seed);
  std::string text = prompt;
  for (std::int64_t i = 0; i < how.bytes; ++i) {
    std::string_view seen = text;
    seen.remove_prefix(seen.size() - std::min(seen.size(), static_cast<std::size_t>(how.context)));
    const auto scores = predict(tokens_of(seen));
    if (!scores) return tl::unexpected(scores.error());
    text += draw(chances(*scores, how.temperature), random);
  }
  return text;
}

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const auto length = engine::utf8_length(text);
    const bool shows = length > 0 && !is_control(text.substr(0, length));
    const auto byte = static_cast<unsigned char>(text.front());
    shown += shows ? std::string(text.substr(0, length))
                   : format("\\x%02x", static_cast<unsigned>(byte));
    text.remove_prefix(shows ? length : 1);
  }
  return shown;
}

}  // namespace troupe::apps
